# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test heavy lint bench tables papers lock audit clean

demo: $(STAMP)  ## six methods on real data, a table and an HTML report
	$(BIN)/idiolect demo

test: lint  ## lint, types and the whole suite
	$(BIN)/python -m pytest -n 2 -m "not heavy" --durations=12

# IDIOLECT_FUZZ_CASES (100000) is the number of bad inputs; see tests/fuzz/campaign.py to run them in pieces.
heavy: $(STAMP)  ## the long checks, those on Flower with real processes included
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev,deploy]"
	$(BIN)/python -m pytest -m heavy
	$(BIN)/python -m pytest tests/deploy -m "not heavy"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/idiolect bench

# All methods, three seeds, the same local training for all. What is finished already is kept.
METHODS := local fedavg fedper spfl spfl_w feddwa pflego fedas lga plga fedavg_async fedasync fedavgm \
  fedprox fedavg_ft fedprox_ft fedupdate per_fedavg pfedme ditto lg_fedavg fedbabu fedrep fedrod fedrecon \
  fedproto cd2_pfed apfl scaffold fedamp sfl cfl fedala fedbn per_fedavg_async fedfomo fedpac l2c
TABLE := $(BIN)/idiolect compare $(METHODS) --seeds 0,1,2 --rounds 20 --set method.lr=0.05 \
  --set method.batch_size=32 --set method.epochs=1 --set method.steps=0 --checkpoint-every 100

tables: $(STAMP)  ## the tables of docs/results.md, on a GPU, into runs/; IDIOLECT_DATA names the data
	$(TABLE) --data cifar10 --split dirichlet --clients 20 --set split.alpha=0.1 --model fedas_cnn --out runs/cifar10
	$(TABLE) --data femnist --split natural --model fedas_cnn --out runs/femnist

lock: $(STAMP)  ## requirements.lock: what is tested, with the hash of every package
	$(BIN)/python .ci/write_lock.py

# It asks PyPI's service for known weaknesses; without a network it fails and says so.
audit: $(STAMP)  ## known weaknesses of the locked packages
	$(BIN)/python -m pip install --quiet -c constraints.txt pip-audit
	$(BIN)/python .ci/audit.py

papers: $(STAMP)  ## the pages of docs/papers, from recipes and committed results
	$(BIN)/python -m idiolect.papers.pages benchmarks/results/papers docs/papers

clean:
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $(STAMP)
