# make train | test | lint | types | clean. Everything lives in .venv, which the first target that needs it sets up.
PYTHON ?= $(shell python3.11 -c "" 2>/dev/null && echo python3.11 || echo python3)
BIN := .venv/bin
export TF_CPP_MIN_LOG_LEVEL ?= 2

.PHONY: train test format lint types clean

train: .venv/installed
	$(BIN)/python -m models.train --model=paper_mnist --dataset=mnist5k --layout=filters --list_speed=40,40,20 --devices=cpu:0,cpu:1,cpu:2

test: lint types
	$(BIN)/pytest -n 2

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

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .hypothesis tests/.hypothesis tests/.pytest_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
