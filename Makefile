# Needs python3 >= 3.11 and make; everything else is installed into .venv by pip.
PYTHON ?= python3
# `make PIP_FLAGS= demo` shows pip's own progress.
PIP_FLAGS ?= -qq
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check $(PIP_FLAGS)

.DEFAULT_GOAL := help
.PHONY: help install demo test test-long fuzz sanitize test-gpu test-torchdata torchdata-src check format wheel clean

help:
	@echo "make demo       make a dataset, convert, tune, and write demo/report.html"
	@echo "make test       run the tests"
	@echo "make check      formatting, lint, types, import direction, then the tests"
	@echo "make test-long  run the tests that take minutes"
	@echo "make fuzz       fuzz the parsers, WELLFED_FUZZ_SECONDS (600) each, and report lines reached"
	@echo "make sanitize   fuzz the C extension under sanitizers, WELLFED_SANITIZE_SECONDS (1800)"
	@echo "make test-gpu   run the tests that need a CUDA GPU, in the python that is there"
	@echo "make test-torchdata TORCHDATA_SRC=CHECKOUT  run torchdata's own tests of its loader against ours"
	@echo "make format     format the code and mend what ruff can mend"
	@echo "make wheel      build the wheel and the sdist into dist/"
	@echo "make clean      remove what was built, .venv included"

# The stamps make a second run install nothing; a changed pyproject.toml installs again.
$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "wellfed needs Python 3.11 or newer; name one: make PYTHON=python3.11")'
	@echo "Creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: pyproject.toml $(VENV)/.created
	@echo "Installing wellfed and what it needs into $(VENV) (PyTorch is large: minutes the first time)"
	@$(PIP_INSTALL) --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "Installing what the tests need into $(VENV)"
	@$(PIP_INSTALL) --editable '.[dev]'
	@touch $@

install: $(VENV)/.installed

demo: $(VENV)/.installed
	@$(BIN)/wellfed demo --directory demo

test: $(VENV)/.installed-dev
	@$(BIN)/python -m pytest -q -n 2 --dist loadfile --hypothesis-profile steady -m "not long and not gpu"

test-long: $(VENV)/.installed-dev
	@$(BIN)/python -m pytest -m "long and not gpu" -o timeout=1800

# FUZZ="tar zip --missed" names parsers and options of `python -m fuzz --help`.
fuzz: $(VENV)/.installed-dev
	@PYTHONPATH=tests $(BIN)/python -m fuzz $(FUZZ)

# SANITIZE="--images FOLDER --seed N" names photos to change and repeats a run.
sanitize: $(VENV)/.installed-dev
	@PYTHONPATH=tests $(BIN)/python -m sanitize $(SANITIZE)

# Only files with such tests are collected: the others may need libraries that a GPU machine does not have.
test-gpu:
	@PYTHONPATH="$(CURDIR)/.typing$${PYTHONPATH:+:$$PYTHONPATH}" $(PYTHON) -m pytest -m gpu \
	  $$(grep -rl --include='test_*.py' 'mark\.gpu' tests)

# TORCHDATA_SRC="CHECKOUT test_sampler.py" runs one file of them.
test-torchdata: torchdata-src $(VENV)/.installed-dev
	@PYTHONPATH=tests $(BIN)/python -m stateful $(TORCHDATA_SRC)

torchdata-src:
	@test -n "$(TORCHDATA_SRC)" || { echo "Give a checkout of https://github.com/pytorch/data, at the tag of the" \
	  "torchdata that is installed: make test-torchdata TORCHDATA_SRC=path/to/data" >&2; exit 2; }

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/hadolint Dockerfile
	$(BIN)/python -m pytest -q tests/test_imports.py
	@$(MAKE) --no-print-directory test

format: $(VENV)/.installed-dev
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

wheel: $(VENV)/.installed-dev
	@rm -rf build
	@$(BIN)/python -m build --outdir dist .

clean:
	rm -rf $(VENV) build dist demo *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
