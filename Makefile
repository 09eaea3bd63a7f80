# Every command installs what it needs: system packages with apt where it may (never a prompt;
# APT=no forbids it), Python packages into .venv, once, and again when pyproject.toml changes.

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help demo test test-all test-slow check train bench hooks clean distclean demo-tools test-tools

VENV := .venv
TRAIN_VENV := .venv-train
BIN := $(VENV)/bin
# Hundreds of tests start Python: it keeps what it compiles, whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=
# Test processes, and more of pytest's arguments: make test WORKERS=8 ARGS="-k onnx". By default two
# more than two cores: some tests wait for devices and slow lines more than they compute.
WORKERS := 4
ARGS :=

DEMO_READY := $(VENV)/.installed-demo
DEV_READY := $(VENV)/.installed-dev
TRAIN_READY := $(TRAIN_VENV)/.installed
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

help: ## Say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

demo: $(DEMO_READY) ## Compile a network for a Cortex-M4 board and run it on test images in QEMU
	@$(BIN)/python examples/digits/demo.py

test: $(DEV_READY) ## Run the quick tests: every behaviour once, on the host where that proves it
	$(PYTEST)

test-all: $(DEV_READY) ## Run all tests that minutes suffice for: more cases, cores and networks
	$(PYTEST) -m "not slow"

test-slow: $(DEV_READY) ## Run every test, those that take hours too
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

hooks: $(DEV_READY) ## Install the git hooks: lint, spelling, types, commit subjects
	$(BIN)/pre-commit install

clean: ## Remove caches and what builds leave behind
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -path './.venv*' -prune -o -name __pycache__ -type d -print | xargs -r rm -rf

distclean: clean ## Remove the virtual environments too
	rm -rf $(VENV) $(TRAIN_VENV)

demo-tools test-tools: %-tools:
	@sh scripts/install_tools.sh $*

# The tools are looked for every time (it takes no time), the environment is made once.
$(BIN)/python $(TRAIN_VENV)/bin/python: %/bin/python:
	@sh scripts/install_tools.sh python
	@python=$$(sh scripts/find_python.sh) && echo "Making $* with $$python" && "$$python" -m venv $*

$(DEMO_READY): pyproject.toml | demo-tools $(BIN)/python
	@echo "Installing Smelt into $(VENV)"
	@$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(DEV_READY): pyproject.toml | test-tools $(BIN)/python
	@echo "Installing Smelt and what its tests need into $(VENV)"
	@$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@ $(DEMO_READY)

$(TRAIN_READY): pyproject.toml | demo-tools $(TRAIN_VENV)/bin/python
	@echo "Installing what training needs into $(TRAIN_VENV)"
	@$(TRAIN_VENV)/bin/python -m pip install --quiet --editable '.[train]'
	@touch $@
