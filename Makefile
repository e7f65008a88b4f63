# Everything runs from .venv, which is made at first use. PYTHON chooses the interpreter (3.10 or newer).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint long fuzz bench docs clean

demo: $(STAMP)
	$(BIN)/glustx demo

test: $(STAMP)
	$(BIN)/python -m pytest -m "not long" $(PYTEST)

# Minutes to hours: all kill rounds, every file system and program, and another seed each time. docs/long.md tells of it.
long: export GLUSTX_TEST_SEED ?= random
long: $(STAMP)
	$(BIN)/python -m pytest -p tests.long_table --timeout=3600 $(PYTEST)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Bytes of hostile peers, guided by coverage; SECONDS=3600 for an hour. Skips where atheris has no wheel.
SECONDS ?= 60
fuzz: $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check --only-binary :all: atheris || true
	$(BIN)/python -m fuzz --seconds $(SECONDS)

# Costs per fop, then offload against writes, then glustx against stock (root and stock peers; minutes on a quiet machine).
bench: $(STAMP)
	$(BIN)/python -m pytest bench/fop_cost.py --benchmark-only $(PYTEST)
	$(BIN)/python bench/zerofill.py --scale 0.1
	$(BIN)/python bench/versus_stock.py

# The pages that follow from the code: docs/gfapi.md, docs/options.md, docs/fops.md, the golden matrix.
docs: $(STAMP)
	$(BIN)/python -m glustx.docgen write

$(STAMP): setup.cfg pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "glustx needs Python 3.10 or newer")'
	$(PYTHON) -m venv $(VENV) || { echo "python3 -m venv failed: on Debian and Ubuntu, apt-get install python3-venv" >&2; exit 1; }
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[test,bench]'
	touch $@

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
