# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test heavy lint bench clean

demo: $(STAMP)  ## six methods on real data, a table and an HTML report
	$(BIN)/idiolect demo

test: lint  ## lint, types and the whole suite
	$(BIN)/python -m pytest -n 2 -m "not heavy"

heavy: $(STAMP)  ## the long checks, those on Flower with real processes included
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev,deploy]"
	$(BIN)/python -m pytest -m heavy
	$(BIN)/python -m pytest tests/flower -m "not heavy"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/idiolect bench

clean:
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $(STAMP)
