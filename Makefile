# Every target makes the virtual environment it needs; a second run installs nothing.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.installed

.PHONY: help demo test test-fast test-gpu lint docs bench bench-gpu wheel clean

help:  ## what there is to make
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

demo: $(READY)  ## train ScoRNN on the adding problem, a minute; then the report of the run
	$(BIN)/cayley train quickstart --seeds 1 --output out/runs
	$(BIN)/cayley report out/runs --output out/report.html

test: $(READY)  ## tests and doctests
	$(BIN)/python -m pytest

test-fast: $(READY)  ## one case of every test, a minute or two
	$(BIN)/python -m pytest --fast

test-gpu: $(READY)  ## the tests that need an NVIDIA GPU
	$(BIN)/python -m pytest --gpu

lint: $(READY)  ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyrefly check

docs: $(READY)  ## the site, in out/docs; offline, and warnings are errors
	$(BIN)/python -m sphinx -E -q -W --keep-going -b html docs out/docs
	@echo out/docs/index.html

bench: $(READY)  ## speed and memory beside the peers, in one run each; JSON and pictures in out/
	$(BIN)/python benchmarks/networks.py -o out/networks-cpu.json
	$(BIN)/python benchmarks/scaling.py -o out/scaling-cpu.json
	$(BIN)/python benchmarks/formation.py -o out/formation-cpu.json
	$(BIN)/python benchmarks/training.py -o out/training-cpu.json
	$(BIN)/python benchmarks/streams.py -o out/streams-cpu.json
	$(BIN)/python benchmarks/inference.py -o out/inference-cpu.json
	$(BIN)/python benchmarks/eigenvalue.py --quick
	$(BIN)/python benchmarks/bnp.py
	$(BIN)/python benchmarks/sweeps.py -o out/sweeps-cpu.json
	$(BIN)/python benchmarks/scaling_out.py -o out/scaling-out-cpu.json
	$(BIN)/python benchmarks/tasks.py $(if $(DATA),--data $(DATA))

bench-gpu: $(READY)  ## the same on an NVIDIA GPU
	$(BIN)/python benchmarks/gpu.py -o out/recurrences-gpu.json
	$(BIN)/python benchmarks/scaling.py --device cuda -o out/scaling-gpu.json
	$(BIN)/python benchmarks/formation.py --device cuda -o out/formation-gpu.json
	$(BIN)/python benchmarks/training.py --device cuda -o out/training-gpu.json
	$(BIN)/python benchmarks/ensembles.py --device cuda -o out/ensembles-gpu.json
	$(BIN)/python benchmarks/throughput.py --device cuda -o out/throughput-gpu.json
	$(BIN)/python benchmarks/streams.py --device cuda -o out/streams-gpu.json
	$(BIN)/python benchmarks/inference.py --device cuda -o out/inference-gpu.json
	$(BIN)/python benchmarks/batch_norm.py -o out/batch-norm-gpu.json
	$(BIN)/python benchmarks/complex_networks.py --device cuda -o out/complex-gpu.json

wheel: $(READY)  ## source distribution and wheel in dist/
	$(BIN)/python setup.py -q sdist bdist_wheel
	rm -rf build

clean:  ## everything that was made
	rm -rf .venv build dist out runs *.egg-info .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch goes first and pinned, so that no other package brings a build of its own.
$(READY): pyproject.toml setup.py constraints.txt $(wildcard cayley/kernels/cpu/src/*)
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[lab,graph,sweep,cluster,dev,docs]'
	touch $@
