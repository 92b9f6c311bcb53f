# To try Pagetide: `make demo` and `make serve`. They write to .venv, .pagetide and ~/.cache/pagetide.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: help demo serve install test lint fmt generate clean

help:
	@echo "make demo      a real model answers, from one file to streamed tokens; then it exits"
	@echo "make serve     the same, and it stays up until Ctrl-C"
	@echo "make install   .venv with everything for development"
	@echo "make test      all tests that need no GPU and no cluster"
	@echo "make lint      ruff, mypy, import-linter"
	@echo "make fmt       format the code"
	@echo "make generate  regenerate the CRD, docs tables and dashboards"
	@echo "make clean     remove .venv and caches; the models in .pagetide stay"

demo: $(VENV)/.demo
	@$(BIN)/python -m pagetide_operator.local.demo

serve: $(VENV)/.demo
	@$(BIN)/python -m pagetide_operator.local.demo --serve

install: $(VENV)/.dev

# The stamps make later runs skip the installation until pyproject.toml changes. The code itself is installed editable.
$(VENV)/.demo: pyproject.toml | $(BIN)/python
	$(PIP) install -e '.[demo]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(PIP) install -e '.[dev]'
	@touch $@ $(VENV)/.demo

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Pagetide needs Python 3.11 or newer; choose one with: make PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

test: $(VENV)/.dev
	$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

generate: $(VENV)/.dev
	$(BIN)/pagetide crd > manifests/crd.yaml
	$(BIN)/pagetide crd > charts/pagetide/files/crd.yaml
	$(BIN)/pagetide crd --no-rules > charts/pagetide/files/crd-without-rules.yaml
	$(BIN)/python -m pagetide_spec.reference docs/observability.md docs/configuration.md docs/resource.md
	PYTHONPATH=grafana $(BIN)/python -m pagetide_dashboards

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist
