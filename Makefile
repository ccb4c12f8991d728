# `make help` lists the targets, from the comments that begin with ##.
# Everything lives in .venv, which the first target that needs it sets up.
PYTHON ?= $(shell python3.11 -c "" 2>/dev/null && echo python3.11 || echo python3)
BIN := .venv/bin
export TF_CPP_MIN_LOG_LEVEL ?= 2

.PHONY: train help docs docs-version landing test test-first test-landing test-rest test-types test-all test-oldest test-python test-devices format lint types types-first lock clean

train: .venv/installed  ## set up .venv and train a paper's CNN (4 minutes)
	$(BIN)/mtf-hetero train --model=paper_mnist --dataset=mnist5k --layout=filters --list_speed=40,40,20 --devices=cpu:0,cpu:1,cpu:2

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

docs: .venv/installed-docs  ## draw the pictures and build the documentation in site/
	$(BIN)/python docs/pictures/draw.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-version: .venv/installed-docs  ## add the site to the branch gh-pages: VERSION=1.0
	@test -n "$(VERSION)" || { echo "VERSION is empty; give the version, such as VERSION=1.0"; exit 2; }
	export PATH="$(CURDIR)/$(BIN):$$PATH" NO_MKDOCS_2_WARNING=1 \
	  && mike deploy --update-aliases $(VERSION) latest && mike set-default latest

PYTEST := $(BIN)/pytest -n 2 --dist loadgroup

landing: .ci/landing  ## begin a landing: write its number and its first commit
	echo "$$(($$(cut -d ' ' -f 1 $<) + 1)) $$(git rev-parse HEAD)" > $<

test: lint  ## check style and types, run the first tier of tests (5 minutes)
	$(MAKE) --no-print-directory --jobs=2 types-first test-first

test-first: .venv/installed  ## run the first tier alone: a test of every promise
	$(PYTEST)

# Three processes, also on two cores: tests that lose workers mostly wait.
REST := $(PYTEST) -n 3 -m "full or slow"

test-landing: .venv/installed  ## run what the change reaches, and a third of the second tier
	$(REST) --landing

test-rest: .venv/installed  ## run the second tier alone: all other cases
	$(REST)

# The types of all files are checked by one process, beside the first tier.
test-types: lint  ## check style and all types, run the first tier
	$(MAKE) --no-print-directory --jobs=2 types test-first

test-all: test-types  ## run both tiers
	$(MAKE) --no-print-directory test-rest

# The tests that depend most on the versions of Python and TensorFlow.
OF_VERSIONS := $(patsubst %,tests/%.py,project/test_compat lowering/test_operations lowering/test_lowering mesh/test_variables \
  estimator/test_estimator_uneven models/test_models_oracle)

# Those that depend most on the other requirements.
OF_REQUIREMENTS := tests/data $(patsubst %,tests/%.py,cluster/test_members cli/test_launch cli/test_plan_program \
  cli/test_config_file planner/test_explain)

test-oldest: .venv-oldest/installed  ## test the lowest versions of TensorFlow and all requirements
	.venv-oldest/bin/pytest -n 2 -W default $(OF_VERSIONS) $(OF_REQUIREMENTS)

# The newest TensorFlow that pip finds for that Python.
test-python: .venv-$(notdir $(PYTHON))/installed  ## test another Python: make test-python PYTHON=python3.13
	.venv-$(notdir $(PYTHON))/bin/pytest -n 2 $(OF_VERSIONS)

# TF32 would round what the oracles compare.
test-devices: .venv/installed  ## run the oracles on DEVICES=gpu:0,cpu:0,cpu:1
	@test -n "$(DEVICES)" || { echo "DEVICES is empty; give three, such as DEVICES=gpu:0,cpu:0,cpu:1"; exit 2; }
	ORACLE_DEVICES=$(DEVICES) NVIDIA_TF32_OVERRIDE=0 TF_FORCE_GPU_ALLOW_GROWTH=true $(PYTEST) \
	  $(patsubst %,tests/%,lowering mesh layers models layouts importer keras)

format: .venv/installed  ## format the code, and repair what ruff can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: .venv/installed  ## check format and style
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: .venv/installed  ## check types
	$(BIN)/pyright

# The types of the rest take longer than these; in the first tier the tests run, which says more.
types-first: .venv/installed  ## check types of the library and the examples
	$(BIN)/pyright mtf_hetero layouts models examples

# The versions of .ci/requirements.lock, each with its hashes. The checkout itself is built with the setuptools of the lock.
.venv/installed: setup.py pyproject.toml .ci/requirements.lock
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --require-hashes -r .ci/requirements.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

UV := .venv-lock/bin/uv pip compile setup.py --quiet --extra test --python-version 3.11 --generate-hashes --no-annotate \
  --no-emit-index-url --custom-compile-command "make lock"

lock: .venv-lock/installed  ## write the lock files; UPGRADE=--upgrade: newest versions
	$(UV) $(UPGRADE) --universal -o .ci/requirements.lock
	$(UV) $(UPGRADE) --resolution lowest-direct -c .ci/oldest.in -o .ci/oldest.lock

.venv-lock/installed:
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/pip install --quiet "uv>=0.5"
	touch $@

.venv/installed-docs: .venv/installed
	$(BIN)/pip install --quiet -e ".[docs]"
	touch $@

.venv-oldest/installed: setup.py pyproject.toml .ci/oldest.lock
	python3.11 -m venv .venv-oldest
	.venv-oldest/bin/pip install --quiet --require-hashes -r .ci/oldest.lock
	.venv-oldest/bin/pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

.venv-$(notdir $(PYTHON))/installed: setup.py pyproject.toml
	$(PYTHON) -m venv .venv-$(notdir $(PYTHON))
	.venv-$(notdir $(PYTHON))/bin/pip install --quiet -e ".[test]"
	touch $@

clean:  ## delete environments, builds and caches
	rm -rf .venv .venv-* build dist site *.egg-info .pytest_cache .ruff_cache .hypothesis tests/.hypothesis tests/.pytest_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
