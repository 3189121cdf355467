"""Every cell of the table in docs/classifiers.md is a test."""

import ast
import re
from pathlib import Path

from tests.test_classifiers import KINDS

HOME = Path(__file__).parents[2]


def table(page, header):
    """Cells of the table whose header starts so, by row and column."""
    lines = page[page.index(f"| {header} |") :].split("\n\n")[0].splitlines()
    names, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return {row[0]: dict(zip(names[1:], row[1:], strict=True)) for row in rows}


def functions(path):
    tree = ast.parse((HOME / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_cell_is_a_test():
    page = (HOME / "docs" / "classifiers.md").read_text(encoding="utf-8")
    tests = {name: row["test"].strip("`") for name, row in table(page, "column").items()}
    assert set(tests.values()) <= functions("tests/test_classifiers.py")
    works = table(page, "model")
    assert set(KINDS) <= set(works)
    for model, row in works.items():
        assert set(tests) == set(row)
        for cell in row.values():
            named = re.findall(r"`(tests/[^`]+)::(\w+)`", cell)
            for path, function in named:
                assert function in functions(path), (model, function)
            makers = re.findall(r"\b(?:wrap|layered)\b(?!\.)", cell.split(";")[0])
            assert named or makers or not cell, (model, cell)
            if model in KINDS and not named:
                assert set(makers) <= set(KINDS[model].makers)
