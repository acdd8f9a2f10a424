# make bench   a fresh machine to a first measurement     make test       the suite
# make lint    ruff and mypy                              make test-slow  Inductor, soak, million-row files
# make gpu     what only a GPU shows, with the machine's own python and torch; fails where there is none
# make budget  this repository's own counts against sweeps/budget.yaml
# make results  every committed result run again: counts must be equal; figures are drawn anew
# make model   SmolLM2 into the user's cache; the tests that need it skip without
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
PIP     = $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: bench model test test-slow budget results gpu lint clean
.DEFAULT_GOAL := bench

bench: $(VENV)/engine.stamp
	$(BIN)/nanoserve bench --rows 3 --max-batch 8
	@$(MAKE) --no-print-directory model
	$(BIN)/nanoserve bench --model smollm2 --num-requests 8 --request-rate 4 --prompt-len uniform:16,64 \
	    --output-len uniform:8,32 --max-batch 4 --max-model-len 256

model: $(VENV)/engine.stamp
	$(BIN)/nanoserve fetch smollm2

test: $(VENV)/dev.stamp
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "not slow and not cuda"

test-slow: $(VENV)/dev.stamp
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "slow and not cuda"

budget: $(VENV)/engine.stamp
	OMP_NUM_THREADS=1 $(BIN)/nanoserve check sweeps/budget.yaml

results: $(VENV)/engine.stamp
	OMP_NUM_THREADS=1 $(BIN)/python results/reproduce.py $(RESULTS)

gpu:
	PYTHONPATH=engine:. $(PYTHON) tests/gpu/report.py

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/engine.stamp: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[engine]'
	touch $@

$(VENV)/dev.stamp: $(VENV)/engine.stamp
	$(PIP) -e '.[engine,dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .hypothesis .mypy_cache .ruff_cache
