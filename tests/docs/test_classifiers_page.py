"""Every cell of the table in docs/classifiers.md is a test."""

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from tests.test_classifiers import KINDS

HOME = Path(__file__).parents[2]
OWN = "tests/test_classifiers.py"


def table(page, header):
    """Cells of the table whose header starts so, by row and column."""
    lines = page[page.index(f"| {header} |") :].split("\n\n")[0].splitlines()
    names, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return {row[0]: dict(zip(names[1:], row[1:], strict=True)) for row in rows}


class Collected:
    """The names of collected tests, with and without their parameters."""

    def __init__(self):
        self.names = set()

    def pytest_collection_modifyitems(self, items):
        for item in items:
            self.names |= {item.nodeid, item.nodeid.split("[")[0]}


def collected(paths):
    """Names of all tests in these files, by pytest's own collection."""
    found = Collected()
    options = [
        "--collect-only",
        "-qq",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-o",
        "addopts=",
    ]
    with redirect_stdout(io.StringIO()):
        code = pytest.main(
            [*options, "--rootdir", str(HOME), *(str(HOME / p) for p in paths)], [found]
        )
    assert code == 0
    return found.names


@pytest.mark.slow
def test_every_cell_is_a_test():
    page = (HOME / "docs" / "classifiers.md").read_text(encoding="utf-8")
    columns = {name: row["test"].strip("`") for name, row in table(page, "column").items()}
    works = table(page, "model")
    assert set(KINDS) <= set(works)
    named = {}  # the tests of each cell, by model and column
    for model, row in works.items():
        assert set(columns) == set(row)
        for column, cell in row.items():
            tests = re.findall(r"`(tests/[^`]+::[^`]+)`", cell)
            for maker in re.findall(r"\b(?:wrap|layered)\b(?!\.)", cell.split(";")[0]):
                if not cell.startswith("`"):
                    tests.append(f"{OWN}::{columns[column]}[{maker}, {model}]")
            assert tests or not cell, (model, cell)
            named[model, column] = tests
    known = collected(sorted({name.split("::")[0] for tests in named.values() for name in tests}))
    for cell, tests in named.items():
        assert set(tests) <= known, cell
