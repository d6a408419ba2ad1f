# `make` lists what there is. Everything runs out of .venv, which `make setup` makes and keeps.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
RUN_STAMP := $(VENV)/.installed-run
MIN_PYTHON := 3.11
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test lint slow live browser bench bench-routing lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

setup: $(STAMP) ## make .venv with everything for work on Pharos; nothing when it is up to date

demo: $(RUN_STAMP) ## two real engines with a small model, the gateway in front, one streamed answer
	@exec $(BIN)/python manage.py pharos_demo

test: $(STAMP) lint ## format, lint, types, layers and all fast tests
	$(BIN)/python -m pytest -q

lint: $(STAMP)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

slow: $(STAMP) ## tests that take more than a few seconds
	$(BIN)/python -m pytest -q -m slow

live: $(STAMP) ## tests against real llama.cpp servers, which they install and start themselves
	$(BIN)/python -m pytest -q -m live --durations=5

browser: $(STAMP) ## tests of the pages in a real browser: needs Chromium (Debian: apt install chromium)
	$(BIN)/python -m pytest -q -m browser

bench: $(STAMP) ## what the gateway adds, measured against direct calls; never an assertion
	$(BIN)/python -m benchmarks

bench-routing: $(STAMP) ## conversations through Pharos and through round-robin nginx, over real engines
	$(BIN)/python -m benchmarks.replay

lock: $(STAMP) ## pin the dependencies of pyproject.toml anew, by hash
	$(BIN)/uv pip compile pyproject.toml --universal --python-version $(MIN_PYTHON) --generate-hashes \
		--no-emit-index-url --no-emit-find-links --no-header -q -o requirements/run.txt
	$(BIN)/uv pip compile pyproject.toml --universal --python-version $(MIN_PYTHON) --generate-hashes \
		--no-emit-index-url --no-emit-find-links --no-header -q --extra test -c requirements/run.txt \
		-o requirements/test.txt

clean: ## remove what these targets made: .venv, .engines, caches
	rm -rf $(VENV) .engines .benchmarks .run .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# requirements/test.txt holds all of run.txt, so a .venv for work also runs the demo.
$(STAMP): requirements/test.txt requirements/run.txt
	@$(call make_venv)
	@echo "Installing what Pharos and its tests need into $(VENV) ..."
	@$(INSTALL) -r requirements/test.txt
	@touch $(RUN_STAMP) $@

$(RUN_STAMP): requirements/run.txt
	@$(call make_venv)
	@echo "Installing what Pharos needs into $(VENV), once ..."
	@$(INSTALL) -r requirements/run.txt
	@touch $@

# On a terminal pip shows its progress; in a pipe its hundred lines would hide the rest.
INSTALL := quiet=; test -t 1 || quiet=--quiet; $(PIP) install $$quiet --require-hashes

define make_venv
set -e; \
command -v $(PYTHON) >/dev/null || { \
	echo "Pharos needs Python $(MIN_PYTHON) or newer, and there is no '$(PYTHON)' here." >&2; exit 1; }; \
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < tuple(map(int, "$(MIN_PYTHON)".split("."))))' || { \
	echo "Pharos needs Python $(MIN_PYTHON) or newer; '$(PYTHON)' is $$($(PYTHON) -V 2>&1)." >&2; \
	echo "If a newer one is installed, name it: make setup PYTHON=python3.12" >&2; exit 1; }; \
$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	echo "'$(PYTHON)' cannot make a virtual environment: it lacks the venv module." >&2; \
	echo "On Debian and Ubuntu: sudo apt install python3-venv" >&2; exit 1; }; \
test -x $(BIN)/python && $(BIN)/python -c '' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
endef
