# Every target makes .venv first if it is missing: `make demo` and `make test` work on a bare checkout.
.DEFAULT_GOAL := help
.PHONY: help setup up down passwords demo demo-caa test test-all test-containers test-next chaos lint fmt docs audit release bench clean
VENV := .venv/.complete
export PYTHON
# Most of a command's start is imports: without bytecode each process compiles every module again.
unexport PYTHONDONTWRITEBYTECODE

help:  ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 24

$(VENV): pyproject.toml constraints.txt
	@.ci/venv
	@touch $@

setup: $(VENV)  ## Make .venv with all dependencies
	@echo ".venv is complete. Next: make demo"

up: $(VENV)  ## Start everything on this machine, private RabbitMQ and Redis included
	@.venv/bin/perennial up

down: $(VENV)  ## Stop everything; the data stay
	@.venv/bin/perennial down

passwords:  ## Write random passwords for docker-compose.yml to .env, where they are missing
	@umask 077 && touch .env && if [ -n "$$(tail -c 1 .env)" ]; then echo >> .env; fi
	@for name in $$(grep -oE '[A-Z0-9_]+:\?run' docker-compose.yml | cut -d : -f 1 | sort -u); do \
	  grep -q "^$$name=." .env || echo "$$name=$$(od -An -N 16 -t x1 /dev/urandom | tr -d ' \n')" >> .env; done

demo: $(VENV)  ## One full round on a real site: crawl, pack, search (SITE=https://... for another)
	@.venv/bin/python -m demo $(if $(SITE),--site '$(SITE)')

demo-caa: $(VENV)  ## Cover art with a local archive: insert, change, merge, delete; a retry, a dead letter, a replay
	@.venv/bin/python -m tests.demo_caa

test: $(VENV)  ## Lint, then all tests: unit, integration, acceptance
	@.venv/bin/python tests/run.py

test-all: $(VENV)  ## The same with the long forms of tests
	@.venv/bin/python tests/run.py all

test-containers: $(VENV)  ## The containers of docker-compose.yml, started by podman, used and broken; needs root
	@.venv/bin/python -m tests.containers

test-next:  ## All tests on Debian 13: its Python, RabbitMQ and Redis, in a folder; needs root
	@.ci/next

chaos: $(VENV)  ## Crawls under faults, alone and mixed; nothing may be lost (SEED=, FAULTS=, ROUNDS=, MINUTES=)
	@.venv/bin/python -m tests.chaos $(if $(SEED),--seed $(SEED)) $(if $(FAULTS),--faults $(FAULTS)) \
	  $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(MINUTES),--minutes $(MINUTES))

lint: $(VENV)  ## Style, types, import direction and documents
	@.venv/bin/python tests/run.py lint

fmt: $(VENV)  ## Format the code and fix what can be fixed
	@.venv/bin/ruff check --fix --quiet
	@.venv/bin/ruff format --quiet

docs: $(VENV)  ## Build the documentation as a web site in build/docs
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --quiet

audit: $(VENV)  ## Compare the pinned versions with known vulnerabilities; needs the network
	@test -x build/audit/bin/pip-audit || \
		{ .venv/bin/python -m venv build/audit && build/audit/bin/python -m pip install -qq pip-audit; }
	@.ci/audit build/audit/bin/pip-audit

release: $(VENV)  ## Build and check the wheels of the last commit, with hashes, in dist (KEY= signs); needs the network
	@KEY='$(KEY)' .ci/release

bench: $(VENV)  ## Ratios against comparable programs, side by side in one run
	@.venv/bin/python -m benchmarks

clean:  ## Stop the private services, remove .venv and caches; data in .perennial stay
	@if [ -x .venv/bin/perennial ]; then .venv/bin/perennial services down >/dev/null; fi
	@rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
