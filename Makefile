# Every command installs what it needs: system packages by apt, where that needs no prompt (APT=no
# disables this), and Python packages into .venv, again whenever pyproject.toml changes. With the
# packages of the tests, it installs the git hooks if this is a git checkout.

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help demo test test-all test-slow check train bench hooks clean distclean demo-tools test-tools

VENV := .venv
TRAIN_VENV := .venv-train
BIN := $(VENV)/bin
# Let Python write bytecode files, because hundreds of tests start Python.
export PYTHONDONTWRITEBYTECODE :=
# The number of test processes, and more arguments for pytest: make test WORKERS=8 ARGS="-k onnx".
# Default to four workers: many tests wait on I/O.
WORKERS := 4
ARGS :=

DEMO_READY := $(VENV)/.installed-demo
DEV_READY := $(VENV)/.installed-dev
TRAIN_READY := $(TRAIN_VENV)/.installed
INSTALL_HOOKS = $(BIN)/pre-commit install
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

demo: $(DEMO_READY) ## Compile a network for a Cortex-M4 board and run it on test images in QEMU
	@$(BIN)/python examples/digits/demo.py

test: $(DEV_READY) ## Run the quick tests: every behavior once
	$(PYTEST)

test-all: $(DEV_READY) ## Run the quick and the thorough tests: more cases, cores and networks
	$(PYTEST) -m "not slow"

test-slow: $(DEV_READY) ## Run every test, which takes hours
	$(PYTEST) -m ""

check: $(DEV_READY) ## Check lint, format, spelling, types and import rules, then run test-all
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/basedpyright
	$(BIN)/lint-imports --no-cache
	$(PYTEST) -m "not slow"

train: $(TRAIN_READY) ## Train the example's network again (installs TensorFlow, in a .venv of its own)
	$(TRAIN_VENV)/bin/python examples/digits/train.py

bench: $(DEV_READY) ## Print instructions, arena and flash beside those of TFLite Micro
	@$(BIN)/python -m bench

hooks: $(DEV_READY) ## Install the git hooks again: lint, spelling, types, commit subjects
	$(INSTALL_HOOKS)

clean: ## Remove caches and build outputs
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -path './.venv*' -prune -o -name __pycache__ -type d -print | xargs -r rm -rf

distclean: clean ## Remove the virtual environments too
	rm -rf $(VENV) $(TRAIN_VENV)

demo-tools test-tools: %-tools:
	@sh scripts/install_tools.sh $*

# Look for missing tools every time, which is fast; create the environment only once.
$(BIN)/python $(TRAIN_VENV)/bin/python: %/bin/python:
	@sh scripts/install_tools.sh python
	@python=$$(sh scripts/find_python.sh) && echo "Making $* with $$python" && "$$python" -m venv $*

$(DEMO_READY): pyproject.toml | demo-tools $(BIN)/python
	@echo "Installing Smelt into $(VENV)"
	@$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(DEV_READY): pyproject.toml | test-tools $(BIN)/python
	@echo "Installing Smelt and the packages of its tests into $(VENV)"
	@$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@if [ -e .git ]; then $(INSTALL_HOOKS) || echo "The git hooks are not installed"; fi
	@touch $@ $(DEMO_READY)

$(TRAIN_READY): pyproject.toml | demo-tools $(TRAIN_VENV)/bin/python
	@echo "Installing the packages for training into $(TRAIN_VENV)"
	@$(TRAIN_VENV)/bin/python -m pip install --quiet --editable '.[train]'
	@touch $@
