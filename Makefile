# Two commands on a fresh machine with Python >= 3.11: `make demo` and `make test`.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
BIN := .venv/bin
STAMP := .venv/.installed
# What runs the program, without what tests it.
RUNS := .venv/.runs
# Processes of the test run; a third on two cores takes longer, as each reads all tests; 0 runs them in one.
WORKERS ?= 2
# Processes of mypy; it gives up where they do not start within seconds, so beside the tests there are none.
MYPY_WORKERS ?= 2
# Each process takes a row of neighbours, which share their sweeps and imports; one that is done takes from the others.
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
# Dozens of processes of the tests would compile what one of them has compiled.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-core test-all check lint docs numbers bench calibrate gpu-check clean help

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

$(RUNS): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "cbs needs Python 3.11 or newer; found $$($(PYTHON) --version). Set PYTHON=/path/to/python3.11"; exit 1; }
	@echo "installing into .venv (a minute or more: torch is large)"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	@touch $@

$(STAMP): $(RUNS)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(RUNS)  ## install, sweep the embedded text with MERIT and AdamW, show the critical batch sizes
	$(BIN)/cbs sweep --optim merit --optim adamw --recipe quick
	$(BIN)/cbs analyze results/

lint: $(STAMP)  ## style, layering, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy --num-workers $(MYPY_WORKERS)

# $(call beside_lint,TESTS): lint runs while the tests do, and is shown after them.
define beside_lint
@said=$$(mktemp); $(MAKE) --no-print-directory lint MYPY_WORKERS=0 >"$$said" 2>&1 & lint=$$!; \
	$(1); tests=$$?; \
	wait $$lint; lint=$$?; cat "$$said"; rm "$$said"; exit $$((tests | lint))
endef

test: $(STAMP)  ## the tests, and lint beside them
	$(call beside_lint,$(PYTEST))

test-core: $(STAMP)  ## the tests of cbs, sweeps and analysis, without those of extensions
	$(PYTEST) tests

test-all: $(STAMP)  ## every test, the slow ones too, and lint beside them
	$(call beside_lint,$(PYTEST) -m 'slow or not slow')

check: $(STAMP)  ## in a minute: style, and the tests of what has changed since the last commit
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -x -q -n 0 $$(git diff --name-only HEAD -- '*test_*.py') tests/test_packaging.py tests/test_cli.py

docs: $(STAMP)  ## the site of the documentation, in build/site/html; stops at a link that leads nowhere
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	$(BIN)/python docs/site/build.py

numbers: $(STAMP)  ## run the cheap commands whose numbers stand in the docs; fails where a page is out of date
	$(BIN)/python docs/site/numbers.py

bench: $(STAMP)  ## ratios measured side by side
	@for file in benchmarks/bench_*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

gpu-check: $(STAMP)  ## on a machine with a GPU: what the tests, which run on processors, cannot see; five minutes
	$(BIN)/python -m benchmarks.gpu_check

calibrate: $(STAMP)  ## the whole chain against the noisy quadratic; hours, continues where it stopped, rewrites docs/calibration.md
	$(BIN)/python -m benchmarks.calibration --output .calibration --page docs/calibration.md

clean:  ## remove the virtual environment and the caches, not the results
	rm -rf .venv .pytest_cache .ruff_cache .mypy_cache .hypothesis *.egg-info
