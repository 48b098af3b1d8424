# What to type: `make demo`, `make quick`, `make test`, `make lint`. Each does its own set-up.

VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
HERE := not slow and not gpu and not nsys
SHARED := -n 3 --dist loadscope --no-loadscope-reorder
GPU_VENV := build/gpu/venv
GPU_NEEDS := import cryptography, isal, msgspec, numpy, PIL, platformdirs, psutil, pytest, pytest_timeout, rich, torchvision, typer, bottleneck_lab.measure.worker

# The tests start thousands of programs: each would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup quick test lint demo slow gpu docs bench clean

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

# What is timed has the machine to itself, the rest shares two cores: on its own a test uses one of them half of the time. Each program computes with one
# thread, since two programs of two threads would wait for each other. Both parts are run, and either may fail. Pytest's 5: none was chosen.
test: $(STAMP) ## Run the tests that need neither a GPU nor much time.
	$(BIN)/python -m pytest -m "$(HERE) and timed"; timed=$$?; \
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(SHARED) -m "$(HERE) and not timed" && exit $$timed

quick: $(STAMP) ## Run the fast tests, and as many of the others as the change touches and three minutes allow.
	$(BIN)/python -m pytest --quick 60 -m "$(HERE) and timed"; timed=$$?; \
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --quick 180 $(SHARED) -m "$(HERE) and not timed" && test $$timed = 0 -o $$timed = 5

lint: $(STAMP) ## Check style, types and layers.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/vermin --quiet --no-tips --eval-annotations --violations --target=3.11- checker labs solutions scripts

demo: $(STAMP) ## Go through the first lab from start to verdict, in at most five minutes.
	PATH="$(abspath $(BIN)):$$PATH" scripts/demo.sh

slow: $(STAMP) ## Run the tests that take longer: every lab, every solution, every exploit.
	$(BIN)/python -m pytest -m "slow and not gpu and not nsys" --timeout 3600
	$(BIN)/lab dev check

# A machine with a GPU often has no package index: where $(PYTHON) has what is needed, on PYTHONPATH or installed, an environment of its own names those
# folders. Workers start isolated (python -I): they see what is installed or named in a .pth file, and no PYTHONPATH.
gpu: ## Run everything that needs a CUDA device, a step at a time; ARGS="--budget-s 1500" goes on another time.
	@$(PYTHON) -m venv --without-pip $(GPU_VENV)
	@PYTHONPATH="$(CURDIR)/checker$${PYTHONPATH:+:$$PYTHONPATH}" $(PYTHON) -c 'import os, sys; print(*filter(os.path.isabs, sys.path), sep="\n")' \
	> "$$($(GPU_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/gpu.pth"
	@if $(GPU_VENV)/bin/python -I -c '$(GPU_NEEDS)'; then $(GPU_VENV)/bin/python scripts/gpu.py $(ARGS); \
	else $(MAKE) --no-print-directory setup && $(BIN)/python scripts/gpu.py $(ARGS); fi

docs: $(STAMP) ## Build the documentation site into build/site; it opens from the disk.
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

bench: $(STAMP) ## Run the benchmarks behind the README's figures.
	$(BIN)/lab data
	@for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python "$$file" || exit 1; done

clean: ## Remove what building and testing leave behind; the virtual environment stays.
	rm -rf build dist demo .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .grimp_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
