# What to type: `make demo`, `make test`, `make lint`. Each does its own set-up.

VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup test lint demo slow gpu bench clean

help: ## Show this list.
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: $(STAMP) ## Make the virtual environment and install everything into it.

# The package itself is installed in place, so only a changed pyproject.toml asks for a new installation.
$(STAMP): pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 or newer is needed: apt-get install python3 python3-venv" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; name it with PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "The venv module is needed: apt-get install python3-venv" >&2; exit 1; }
	$(BIN)/python -m pip install --disable-pip-version-check -e '.[dev]'
	@touch $@

test: $(STAMP) ## Run the tests that need neither a GPU nor much time.
	$(BIN)/python -m pytest -m "not slow and not gpu and not nsys"

lint: $(STAMP) ## Check style, types and layers.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

demo: $(STAMP) ## Go through the first lab from start to verdict, in at most five minutes.
	PATH="$(abspath $(BIN)):$$PATH" scripts/demo.sh

slow: $(STAMP) ## Run the tests that take longer: every lab, every solution, every exploit.
	$(BIN)/python -m pytest -m "slow and not gpu and not nsys" --timeout 3600
	$(BIN)/lab dev check

# No set-up where the package can be imported already: a machine with a GPU often has no package index.
gpu: ## Run everything that needs a CUDA device, a step at a time; ARGS="--budget-s 1500" goes on another time.
	@if PYTHONPATH=checker $(PYTHON) -c 'import bottleneck_lab.cli, torch, psutil, isal' 2>/dev/null; then $(PYTHON) scripts/gpu.py $(ARGS); \
	else $(MAKE) --no-print-directory setup && $(BIN)/python scripts/gpu.py $(ARGS); fi

bench: $(STAMP) ## Run the benchmarks behind the README's figures.
	$(BIN)/lab data
	@for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python "$$file" || exit 1; done

clean: ## Remove what building and testing leave behind; the virtual environment stays.
	rm -rf build dist demo .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .grimp_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
