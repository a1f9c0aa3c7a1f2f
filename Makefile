# Every target sets up what it needs: a virtual environment in .venv with the versions of constraints.txt.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
BENCH_FLAGS ?=
TEST_FLAGS ?=
EXTRAS := [eval,peft,quantize,serve,structured,tasks,train]
QUIETLY := --quiet --log $(VENV)/install.log

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_REQUIRE_VIRTUALENV := 1

.PHONY: help setup demo quick test coverage test-families format lint types check docs docs-serve train bench test-vllm setup-vllm clean
.DEFAULT_GOAL := help

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/make \1|\2/p' $(MAKEFILE_LIST) | \
		while IFS='|' read -r target what; do printf '%-12s %s\n' "$$target" "$$what"; done
	@echo "The environment is made with '$(PYTHON)'; another: make PYTHON=/path/to/python3.12 demo"

setup: $(READY) ## make the virtual environment and install into it (the other targets do so automatically)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "setblock needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	@echo "== 1/3 virtual environment in $(VENV)"
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@echo "== 2/3 pip, which must know dependency groups (25.1), and build backends"
	@$(BIN)/python -m pip install $(QUIETLY) -c constraints.txt pip
	@$(BIN)/python -m pip install $(QUIETLY) -c constraints.txt hatchling hatch-vcs editables setuptools
	@echo "== 3/3 setblock and its dependencies: PyTorch is large, so this takes minutes ($(VENV)/install.log has the details)"
	@$(BIN)/python -m pip install $(QUIETLY) -c constraints.txt --no-build-isolation -e '.$(EXTRAS)' --group dev
	@touch $@
	@echo "== ready"

PROMPT ?= Write unit tests for a Python function add(a, b).
export PROMPT

demo: $(READY) ## plain decoding and blocks side by side: a message as JSON, an own prompt (PROMPT="..."), a word problem
	@if $(BIN)/setblock fetch models/smollm2-records && $(BIN)/setblock fetch smollm2; then \
		echo "== SmolLM2-135M-Instruct, trained in blocks to write messages as JSON"; \
		$(BIN)/setblock compare --model models/smollm2-records; \
		echo "== SmolLM2-135M-Instruct, never trained for blocks: its drafts are copied from the text"; \
		$(BIN)/setblock compare --model smollm2 "$$PROMPT"; \
		else echo "== SmolLM2 is not available here, so it is left out"; fi
	@echo "== the included model of 4.6M parameters, trained for blocks"
	@$(BIN)/setblock compare

# Each worker, and each process that a test starts, would compile all modules anew.
test coverage: export PYTHONDONTWRITEBYTECODE :=

test: $(READY) ## run the tests, on as many cores as there are
	@OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist loadfile $(TEST_FLAGS)

coverage: $(READY) ## run the tests and write which lines they reach into coverage.md
	@OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist loadfile $(TEST_FLAGS) --cov=setblock --cov-report=term:skip-covered \
		--cov-report=markdown:coverage.md

test-families: $(READY) ## try every family of the installed Transformers, and write the table of models (half an hour)
	@OMP_NUM_THREADS=1 $(BIN)/pytest -m families tests/families
	@$(BIN)/python tests/helpers/every_family.py

format: $(READY) ## check the formatting (to change it: ruff format)
	@$(BIN)/ruff format --check

lint: $(READY) ## lint
	@$(BIN)/ruff check

types: $(READY) ## check the types, strictly
	@$(BIN)/mypy

QUICK := tests/test_masks.py tests/test_nano.py tests/decoding/samplers tests/decoding/state tests/decoding/step \
	tests/decoding/test_generate.py

quick: $(READY) format lint ## the checks of a minute: format, lint, masks, samplers, the state, and one pass of each method
	@OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist loadfile $(TEST_FLAGS) $(QUICK)

check: format lint types test ## everything that must pass before a commit

docs: $(READY) ## write docs/reference/ and build the site into site/; a broken link fails
	@$(BIN)/python docs/_site/reference.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

docs-serve: $(READY) ## show the site at http://127.0.0.1:8000 while pages are edited
	@$(BIN)/python docs/_site/reference.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --no-strict

train: $(READY) ## train the reference model and its next-token twin again (hours; goes on where it stopped)
	$(BIN)/setblock train recipes/word-problems-ntp.yaml
	$(BIN)/setblock train recipes/word-problems-sbd.yaml
	$(BIN)/setblock train recipes/word-problems-sbd-more.yaml
	$(BIN)/setblock train recipes/word-problems-twin.yaml

bench: $(READY) ## run all benchmarks on this machine (an hour; wants it otherwise idle)
	$(BIN)/python benchmarks/all.py $(BENCH_FLAGS)

# vLLM has an environment of its own, with its own PyTorch and Transformers (3 GB; CPython 3.11 on Linux, x86-64).
VENV_VLLM := .venv-vllm
READY_VLLM := $(VENV_VLLM)/.ready
PLUGIN_VLLM := plugins/setblock-vllm
VLLM_TESTS ?= -m "" $(PLUGIN_VLLM)/tests/in_vllm
SETBLOCK_VLLM_PROBLEMS ?= 100
export SETBLOCK_VLLM_PROBLEMS

setup-vllm: $(READY_VLLM) ## make the environment of the vLLM tests

$(READY_VLLM): pyproject.toml $(PLUGIN_VLLM)/pyproject.toml $(PLUGIN_VLLM)/requirements-cpu.txt $(PLUGIN_VLLM)/tests/in_vllm/environment.py
	@echo "== vLLM on the CPU in $(VENV_VLLM)"
	@PIP_REQUIRE_VIRTUALENV=0 $(PYTHON) $(PLUGIN_VLLM)/tests/in_vllm/environment.py $(VENV_VLLM)
	@touch $@

test-vllm: $(READY_VLLM) ## block decoding inside vLLM, on the CPU (long)
	@$(VENV_VLLM)/bin/python -m pytest -W default $(VLLM_TESTS)

clean: ## remove the environments, caches and built packages (trained models in runs/ stay)
	rm -rf $(VENV) $(VENV_VLLM) build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
