# One image for every process of the Procfile; docker-compose.yml says which one a container runs.
FROM python:3.12-slim

ENV PATH=/venv/bin:$PATH \
    PERENNIAL_DATA_DIR=/data \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1

WORKDIR /perennial

# Dependencies first: a change of the code alone does not install them again. The development groups stay out.
COPY pyproject.toml constraints.txt ./
RUN python -m venv /venv \
    && python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" \
        > /tmp/requirements.txt \
    && pip install --quiet --constraint constraints.txt --requirement /tmp/requirements.txt \
    && rm /tmp/requirements.txt

COPY Procfile ./
COPY config config
COPY tasks tasks
COPY app app
# This makes the `perennial` command. Editable: the code is in the image once.
RUN pip install --quiet --no-deps --editable .

# A named volume that is mounted at one of these folders for the first time takes its owner.
RUN useradd --system --uid 10001 --no-create-home perennial \
    && install --directory --owner=perennial /data /data/dead
USER perennial
VOLUME /data

CMD ["perennial", "--help"]
