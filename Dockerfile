# One image for every process of the Procfile; docker-compose.yml says which one a container runs. Its root file system
# may be read-only: processes write to /data and /tmp.
FROM python:3.13-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_ROOT_USER_ACTION=ignore
WORKDIR /perennial

# Dependencies first: a change of the code alone does not install them again. The development groups stay out, and so
# does what no process uses: of boto's 28 MB all services but the store's and those that give out its credentials, and
# zstandard's second library of 12 MB, which is for PyPy.
COPY pyproject.toml constraints.txt ./
# Extras of the package, with commas between them.
ARG EXTRAS=""
RUN python -m venv /venv \
    && python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
print(*p['dependencies'], *(d for e in '$EXTRAS'.split(',') if e for d in p['optional-dependencies'][e]), sep='\n')" \
        > /tmp/requirements.txt \
    && /venv/bin/pip install --quiet --only-binary :all: --constraint constraints.txt --requirement /tmp/requirements.txt \
    && find /venv/lib/*/site-packages/botocore/data -mindepth 1 -maxdepth 1 -type d \
        ! -name s3 ! -name sts ! -name signin ! -name 'sso*' -exec rm -r {} + \
    && rm /venv/lib/*/site-packages/zstandard/_cffi*

COPY Procfile ./
COPY config config
COPY tasks tasks
COPY app app
# This makes the `perennial` command, and compiles the code: a process could not keep its bytecode.
RUN /venv/bin/pip install --quiet --no-deps . && /venv/bin/pip uninstall --quiet --yes pip

# The list of the Python packages in the image, for scanners.
FROM build AS sbom
RUN python -m venv /tools \
    && /tools/bin/pip install --quiet cyclonedx-bom==7.5.0 \
    && /tools/bin/cyclonedx-py environment --output-reproducible --output-file /sbom.json /venv/bin/python

FROM python:3.13-slim
ENV PATH=/venv/bin:$PATH \
    PERENNIAL_DATA_DIR=/data \
    PYTHONUNBUFFERED=1

# A named volume that is mounted at one of these folders for the first time takes its owner.
RUN useradd --uid 10001 --no-create-home perennial \
    && install --directory --owner=perennial /data /data/dead
COPY --from=build /venv /venv
COPY --from=sbom /sbom.json /usr/share/perennial/sbom.cdx.json
# By number, so that Kubernetes can see that it is not root.
USER 10001
VOLUME /data

# Of the processes that take work from queues and of searchers: each touches a file while it is connected. Those that
# serve HTTP have checks of their own in docker-compose.yml.
HEALTHCHECK --interval=15s --timeout=10s --retries=3 --start-period=60s \
    CMD find /data -mmin -1 '(' -path '/data/heartbeats/*' -o -path '/data/searchers/*/lock' ')' | grep -q .

CMD ["perennial", "--help"]

ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="Perennial" \
      org.opencontainers.image.description="Crawls web sites into searchable packs" \
      org.opencontainers.image.licenses="MIT" \
      org.opencontainers.image.version="$VERSION"
