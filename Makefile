# You need python3 (3.11 or newer), pip and make. Everything else is installed into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready

.PHONY: help setup check docs format test demo up bench clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

$(READY): pyproject.toml sdk/pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Lethe needs Python 3.11 or newer") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ./sdk -e '.[dev]'
	touch $@

setup: $(READY) ## create .venv, or recreate it when dependencies changed

check: $(READY) ## check formatting, lint, types, import layers, container files, documentation site
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m tests.lint_containers
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

docs: $(READY) ## build the documentation site in build/site; fails on a broken link
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo 'To read it, run: $(PYTHON) -m http.server --directory build/site --bind 127.0.0.1 8001'

format: $(READY) ## reformat the sources
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Tests start hundreds of interpreters, which need not compile the sources each time.
test: $(READY) ## run every test; lists optional tools that are missing
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

demo: $(READY) ## see what Lethe does, in two minutes
	$(BIN)/python -m bench.demo

up: $(READY) ## run the service on this machine until Ctrl-C
	$(BIN)/lethe up

bench: $(READY) ## measure, draw figures and write docs/results.md; BENCH=full for the long ones
	$(BIN)/python -m bench

clean: ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache build *.egg-info sdk/*.egg-info sdk/build
