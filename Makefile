# The main targets are `make demo`, `make quick`, `make test`, `make long` and `make lint`. Each does its own set-up.

VENV ?= .venv
EXTRAS ?= dev
PYTHON ?= python3
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-demo
HERE := not slow and not gpu and not nsys
WORKERS ?= 3
SHARED = -n $(WORKERS) --dist loadscope --no-loadscope-reorder
# Every process of a run reads the files that it is given: all 220 take it 5 seconds.
TIMED = $(shell grep -rlE 'mark\.timed' tests --include='test_*.py')
GPU_VENV := build/gpu/venv
GPU_NEEDS := import cryptography, isal, msgspec, numpy, PIL, platformdirs, psutil, pytest, pytest_timeout, rich, torchvision, typer, bottleneck_lab.measure.worker

# The tests start thousands of programs, and each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup quick test long lint demo slow gpu gpu-bundle fresh floors docs bench clean

help: ## List the targets.
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP) ## Create the virtual environment and install everything into it.

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "This needs Python 3.11 or newer: apt-get install python3 python3-venv" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "This needs Python 3.11 or newer; name it with PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "This needs the venv module: apt-get install python3-venv" >&2; exit 1; }

# The package itself is installed in place, so only a changed pyproject.toml requires a new installation.
$(STAMP): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --disable-pip-version-check -e '.[$(EXTRAS)]'
	@touch $@ $(DEMO_STAMP)

# What a demonstration needs: the labs, without DALI, the tests, the checkers, the documentation and the cohort.
$(DEMO_STAMP): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --disable-pip-version-check -e '.[labs]'
	@touch $@

# Timed tests get the machine to themselves. The rest share two cores, because one test alone uses one core half of the time. Each program computes with one
# thread, because two programs with two threads each would wait for each other. Both parts always run, and either may fail. Pytest's status 5: no test selected.
test: $(STAMP) ## Run the tests that need no GPU and no long wait, in about eight minutes.
	$(BIN)/python -m pytest -m "$(HERE) and timed" $(TIMED); timed=$$?; \
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(SHARED) -m "$(HERE) and not timed and not long" && exit $$timed

long: $(STAMP) ## Run the longer tests: hostile code, faults, ranks, PostgreSQL, the demonstration; another five minutes.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(SHARED) -m "$(HERE) and not timed and long"

quick: $(STAMP) ## Run the tests nearest to your change, those that fit in about a minute.
	$(BIN)/python -m pytest --quick 10 -m "$(HERE) and timed" $(TIMED); timed=$$?; \
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --quick 40 $(SHARED) -m "$(HERE) and not timed" && test $$timed = 0 -o $$timed = 5

lint: $(STAMP) ## Check style, types and layers.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/vermin --quiet --no-tips --eval-annotations --violations --target=3.11- checker labs solutions scripts

demo: $(DEMO_STAMP) ## Play one lab from start to verdict, in about a minute.
	PATH="$(abspath $(BIN)):$$PATH" scripts/demo.sh

slow: $(STAMP) ## Prove every lab, every solution and every exploit, in hours.
	$(BIN)/python -m pytest -m "slow and not gpu and not nsys" --timeout 3600
	$(BIN)/lab dev check

# A machine with a GPU often has no package index. If $(PYTHON) has everything needed, on PYTHONPATH or installed, a separate environment points to those
# folders. Workers start isolated (python -I): they see what is installed or named in a .pth file, but not PYTHONPATH.
gpu: ## Run everything that needs a CUDA device, step by step; ARGS="--budget-s 1500" stops early and resumes next time.
	@$(PYTHON) -m venv --without-pip $(GPU_VENV)
	@PYTHONPATH="$(CURDIR)/checker$${PYTHONPATH:+:$$PYTHONPATH}" $(PYTHON) -c 'import os, sys; print(*filter(os.path.isabs, sys.path), sep="\n")' \
	> "$$($(GPU_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/gpu.pth"
	@if $(GPU_VENV)/bin/python -I -c '$(GPU_NEEDS)'; then $(GPU_VENV)/bin/python scripts/gpu.py $(ARGS); \
	else $(MAKE) --no-print-directory setup && $(BIN)/python scripts/gpu.py $(ARGS); fi

# For a machine without a package index: the project, the wheels that it lacks, bubblewrap and a start script.
gpu-bundle: $(STAMP) ## Pack all that `make gpu` needs into one archive; PYTHON=3.12 names the GPU machine's Python.
	$(BIN)/python scripts/gpu_bundle.py $(if $(filter 3.%,$(PYTHON)),--python $(PYTHON))

fresh: ## Run the README's commands in bare Debian roots, as root with mmdebstrap; RELEASES=bookworm, TESTS=1, CONTAINER=1 as you like.
	scripts/fresh.sh

floors: ## Try the oldest versions that pyproject.toml allows, in an environment of their own; ARGS=--newest the newest.
	@command -v $(PYTHON) >/dev/null || { echo "This needs Python 3.11 or newer: apt-get install python3 python3-venv" >&2; exit 1; }
	$(PYTHON) scripts/floors.py $(ARGS)

docs: $(STAMP) ## Build the documentation site in build/site; open it straight from disk.
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

bench: $(STAMP) ## Run the benchmarks behind the figures in docs/measured.
	$(BIN)/lab data
	@for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python "$$file" || exit 1; done

clean: ## Remove build and test leftovers; keep the virtual environment.
	rm -rf build dist demo .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .grimp_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
