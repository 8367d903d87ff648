# Every target prepares what it needs: a fresh machine wants python3 (3.10 or later) with venv, and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
OLDEST := .venv-oldest
PEERS := .venv-peers
WORKERS ?= 2
PYTEST_ARGS ?=

# Ranks share the machine's cores; more threads than cores only make them wait for each other.
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast test-oldest check format docs scoreboard scoreboard-peers bench build clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup: $(READY) ## make the environment .venv

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "accumaudit needs Python 3.10 or later; set PYTHON=python3.12, for example" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
		{ echo "$(PYTHON) cannot make environments: install its venv module (Debian: python3-venv)" >&2; exit 2; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[torch,test]'
	@touch $@

demo: $(READY) ## train a small model for real, then audit it
	@rm -rf runs/demo
	@$(BIN)/accumaudit demo --log-dir runs/demo

test: $(READY) ## all tests
	$(BIN)/python -m pytest -n $(WORKERS) $(PYTEST_ARGS)

test-fast: $(READY) ## the tests that take no more than seconds
	$(BIN)/python -m pytest -n $(WORKERS) -m 'not slow' $(PYTEST_ARGS)

test-oldest: $(OLDEST)/ready ## the adapters with the oldest frameworks that they support
	$(OLDEST)/bin/python -m pytest $(PYTEST_ARGS) $(addprefix tests/runtimes/test_,accelerate.py hf.py lightning.py)

$(OLDEST)/ready: pyproject.toml constraints-oldest.txt
	$(PYTHON) -m venv --clear $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints-oldest.txt \
		--editable '.[torch,runtimes]' pytest pytest-timeout
	@touch $@

check: $(READY) ## lint, format, types, SQL, generated pages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/sqlfluff lint --disable-progress-bar $(wildcard rules/*/)
	$(BIN)/mypy
	$(BIN)/python docs/generate.py --check

format: $(READY) ## mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY) ## write the generated parts of README.md and docs/ again
	$(BIN)/python docs/generate.py
	$(BIN)/python -m tests.runtimes.coverage

scoreboard: $(READY) ## train the faults that people had, and write what is found of them into docs/scoreboard.md
	$(BIN)/python -m tests.faults.scoreboard

scoreboard-peers: $(PEERS)/ready ## the same faults under other tools, in an environment of their own: hours
	$(PEERS)/bin/python -m tests.faults.peers $(PEERS)/answers

$(PEERS)/ready: pyproject.toml constraints.txt constraints-peers.txt
	$(PYTHON) -m venv --clear $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--editable '.[torch]' --requirement constraints-peers.txt
	@touch $@

bench: $(READY) ## benchmarks: ratios, measured on this machine
	@for file in $(sort $(wildcard tests/benchmarks/bench_*.py)); do \
		name=$${file%.py}; $(BIN)/python -m "$$(echo $$name | tr / .)" || exit 1; \
	done

build: $(READY) ## source distribution and wheel, into dist/
	$(BIN)/python -m build --outdir dist .

clean: ## remove the environment, builds and caches
	rm -rf $(VENV) $(OLDEST) $(PEERS) dist build .mypy_cache .pytest_cache .ruff_cache .hypothesis
