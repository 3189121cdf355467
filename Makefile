PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready
export PIP_DISABLE_PIP_VERSION_CHECK := 1
unexport PYTHONDONTWRITEBYTECODE  # compiled tests are kept

.PHONY: demo test quick check docs mutants package locked clean

## demo: a small network on digits: accuracy and errors as they are rotated, all methods, and a page
demo: $(READY)
	$(VENV)/bin/python examples/digits.py --output demo
	$(VENV)/bin/qipf bench run --suite digits --out demo/run
	$(VENV)/bin/qipf bench table demo/run
	$(VENV)/bin/qipf report demo/run -o demo/report.html

## test: style, types and all tests
test: $(READY) check
	$(VENV)/bin/python -m pytest -n auto

## quick: the tests that take a minute in all: no Ray, browser, Triton interpreter or simulations
quick: $(READY)
	$(VENV)/bin/python -m pytest -n auto -m "not slow" --ignore tests/ray --ignore tests/browser

## mutants: single changes of the scientific core that the tests must notice (about 25 CPU minutes)
mutants: $(READY)
	$(VENV)/bin/python tools/mutants

## docs: the site, with its tutorials run, into site/index.html; warnings are errors
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --quiet --strict

## package: wheel and sdist into dist/; the wheel installed into an empty environment and tried
package: $(READY)
	rm -rf dist build/fresh
	$(VENV)/bin/python -m build > /dev/null
	$(PYTHON) -m venv build/fresh
	build/fresh/bin/python -m pip install --quiet --constraint constraints.txt dist/*.whl
	build/fresh/bin/python -I tools/try_wheel.py
	build/fresh/bin/python -m pip install --quiet --force-reinstall --no-deps dist/*.tar.gz
	build/fresh/bin/python -I tools/try_wheel.py
	build/fresh/bin/qipf --help > /dev/null
	$(VENV)/bin/mypy --config-file= --python-executable build/fresh/bin/python tools/try_wheel.py

## locked: the environment with every hash checked (Linux x86-64, Python 3.11, torch's CPU build, which
##   pip must find: set PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL)
locked:
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --require-hashes --no-deps -r requirements.lock
	$(VENV)/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $(READY)

check: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (a few minutes the first time)"
	$(VENV)/bin/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $@

clean:
	rm -rf $(VENV) demo build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
