# Needs python3 (3.11 or newer), pip and make; everything else is installed into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready

.PHONY: help setup check format test demo up bench clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Lethe needs Python 3.11 or newer") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

setup: $(READY) ## build .venv when it is missing or stale

check: $(READY) ## format, lint, types, import arrows, container files
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m tests.lint_containers

format: $(READY) ## rewrite the sources in the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: $(READY) ## every test; optional tools that are missing are named
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

demo: $(READY) ## one erasure end to end on embedded defaults
	$(BIN)/python -m bench.demo

up: $(READY) ## serve on embedded defaults until Ctrl-C
	$(BIN)/lethe up

bench: $(READY) ## measurements, figures and docs/results.md; BENCH=full for the long ones
	$(BIN)/python -m bench

clean: ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache build *.egg-info
