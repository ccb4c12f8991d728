# make train | docs | test | test-all | test-oldest | test-python | lint | types | format | clean
# Everything lives in .venv, which the first target that needs it sets up.
PYTHON ?= $(shell python3.11 -c "" 2>/dev/null && echo python3.11 || echo python3)
BIN := .venv/bin
export TF_CPP_MIN_LOG_LEVEL ?= 2

.PHONY: train docs test test-first test-rest test-all test-oldest test-python format lint types clean

train: .venv/installed
	$(BIN)/mtf-hetero train --model=paper_mnist --dataset=mnist5k --layout=filters --list_speed=40,40,20 --devices=cpu:0,cpu:1,cpu:2

docs: .venv/installed-docs
	$(BIN)/python docs/pictures/draw.py
	$(BIN)/mkdocs build --strict

PYTEST := $(BIN)/pytest -n 2 --dist loadgroup

# The first tier, which takes minutes: lint, types, and a test of every promise.
test: lint
	$(MAKE) --no-print-directory --jobs=2 types test-first

test-first: .venv/installed
	$(PYTEST)

test-rest: .venv/installed
	$(PYTEST) -m "full or slow"

# Both tiers.
test-all: test
	$(MAKE) --no-print-directory test-rest

# The tests that depend most on the versions of Python and TensorFlow.
OF_VERSIONS := $(addprefix tests/test_,compat.py operations.py lowering.py variables.py estimator_uneven.py models_oracle.py)

# The oldest supported TensorFlow.
test-oldest: .venv-oldest/installed
	.venv-oldest/bin/pytest -n 2 -W default $(OF_VERSIONS)

# Another Python, with the newest TensorFlow that pip finds for it: make test-python PYTHON=python3.13
test-python: .venv-$(notdir $(PYTHON))/installed
	.venv-$(notdir $(PYTHON))/bin/pytest -n 2 $(OF_VERSIONS)

format: .venv/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: .venv/installed
	$(BIN)/pyright

.venv/installed: setup.py pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -e ".[test]"
	touch $@

.venv/installed-docs: .venv/installed
	$(BIN)/pip install --quiet -e ".[docs]"
	touch $@

.venv-oldest/installed: setup.py pyproject.toml
	python3.11 -m venv .venv-oldest
	.venv-oldest/bin/pip install --quiet "tensorflow==2.15.*" -e ".[test]"
	touch $@

.venv-$(notdir $(PYTHON))/installed: setup.py pyproject.toml
	$(PYTHON) -m venv .venv-$(notdir $(PYTHON))
	.venv-$(notdir $(PYTHON))/bin/pip install --quiet -e ".[test]"
	touch $@

clean:
	rm -rf .venv .venv-* build dist site *.egg-info .pytest_cache .ruff_cache .hypothesis tests/.hypothesis tests/.pytest_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
