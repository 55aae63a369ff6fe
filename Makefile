# Every target makes the virtual environment it needs; a second run installs nothing.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.installed

.PHONY: demo test lint bench clean

demo: $(READY)  ## train ScoRNN and nn.LSTM on the adding problem, draw both curves
	$(BIN)/python examples/adding.py

test: $(READY)  ## tests and doctests
	$(BIN)/python -m pytest

lint: $(READY)  ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyrefly check

bench: $(READY)  ## time every network against the naive loop and nn.LSTM; the eigenvalue tracking
	$(BIN)/python benchmarks/networks.py -o out/networks.json
	$(BIN)/python benchmarks/eigenvalue.py

clean:
	rm -rf .venv build dist out *.egg-info .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch goes first and pinned, so that no other package brings a build of its own.
$(READY): pyproject.toml setup.py constraints.txt $(wildcard cayley/recurrences/cpu/src/*)
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[lab,graph,dev]'
	touch $@
