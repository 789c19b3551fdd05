# Everything sets itself up from nothing: python3 and make are enough.
#   make demo    three questions, and a worker that is killed       make test   all tests but the long ones
#   make dev     the stack on this machine, until Ctrl-C            make check  lint, types, floors of imports
#   make chaos   thousands of runs under faults                     make bench  accept and drain, measured

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo dev test check format chaos bench lock clean

help:
	@sed -n '2,4s/^# //p' Makefile

setup: $(READY)

# pip from its own wheel where the system's python3 comes without ensurepip (Debian).
$(READY): requirements/dev.txt pyproject.toml
	@echo "setting up $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] + ": make PYTHON=python3.12 …" if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -m venv --clear $(VENV) 2>/dev/null \
	  || { $(PYTHON) -m venv --clear --without-pip $(VENV) && $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; } \
	  || { echo "python3 has neither ensurepip nor pip: install python3-venv (Debian) and try again" >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: $(READY)
	@$(BIN)/python -m researchcopilot demo

dev: $(READY)
	@$(BIN)/python -m researchcopilot dev

test: $(READY)
	$(BIN)/python -m pytest $(ARGS)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=services $(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

chaos: $(READY)
	$(BIN)/python -m tests.chaos $(ARGS)

bench: $(READY)
	$(BIN)/python -m bench $(ARGS)

# One hash-locked list for each container, and dev; no index address in any of them.
LOCK = $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
       --no-header --no-annotate --upgrade pyproject.toml
lock: $(READY)
	$(LOCK) --extra api      -o requirements/api.txt
	$(LOCK) --extra agent    -o requirements/worker.txt
	$(LOCK)                  -o requirements/scheduler.txt
	$(LOCK)                  -o requirements/janitor.txt
	$(LOCK) --extra dev      -o requirements/dev.txt

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
