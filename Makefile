# Everything a newcomer needs: `make demo` and `make test` install what they use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: install demo test check format lock clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'semifine needs Python 3.11 or newer')"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

# Trains `supervised` and `soc` on the embedded data set and writes demo/index.html.
demo: install
	$(BIN)/semifine demo --out demo

# A file's tests share what they train, so they stay in one process; in the order of names, the long ones are not last.
test: install
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python .ci/audit.py

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The versions of development: what a fresh install resolves to today.
lock: install
	$(BIN)/python .ci/lock.py

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
