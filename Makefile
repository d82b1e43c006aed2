# `make demo` and `make test` install what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: install demo test check docs format lock clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'semifine needs Python 3.11 or newer')"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

# Trains `supervised` and `soc` on the embedded data set and writes demo/index.html.
demo: install
	$(BIN)/semifine demo --out demo

# Tests of one file share trained runs, so a file stays in one process. Files run in order of their names, which
# starts the slow ones early.
test: install
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell .ci benchmarks docs src tests Makefile *.cff *.md *.toml
	$(BIN)/python .ci/audit.py

# Writes the generated reference pages, builds the site in build/site and checks its links.
docs: install
	$(BIN)/python .ci/build_docs.py

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Writes constraints.txt: the versions that a new installation resolves to today.
lock: install
	$(BIN)/python .ci/lock.py

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
