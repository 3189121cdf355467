"""Everything that the package imports is declared in pyproject.toml."""

import ast
import re
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import qipf

ROOT = Path(__file__).parents[1]


class RuntimeOnly(ast.NodeTransformer):
    """Removes what only a type checker reads."""

    def visit_If(self, node):
        typing_only = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        return None if typing_only else self.generic_visit(node)


def imported_packages():
    """Top-level names of other packages, with a file that imports each."""
    found = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(RuntimeOnly().visit(tree)):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module]
            for name in names:
                found[name.split(".")[0]] = path.name
    return {k: v for k, v in found.items() if k not in {"qipf", *sys.stdlib_module_names}}


def declared():
    """Names of the distributions in the dependencies and all extras."""
    project = pytest.importorskip("tomllib").loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    return {
        re.match(r"[\w.-]+", entry)[0].lower().replace("_", "-") for one in lists for entry in one
    }


def test_every_import_is_declared():
    known, distributions = declared(), packages_distributions()
    assert "scipy" in imported_packages()
    for name, path in imported_packages().items():
        found = {each.lower().replace("_", "-") for each in distributions.get(name, [name])}
        assert found & known, f"{path} imports {name}, which pyproject.toml does not declare"


def test_errors_name_extras_that_exist():
    project = pytest.importorskip("tomllib").loads((ROOT / "pyproject.toml").read_text())["project"]
    named = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "missing_extra":
                named.add(node.args[1].value)
    assert named == {"bench", "monitor", "onnx", "parquet", "ray", "report"}
    assert named <= project["optional-dependencies"].keys()


def test_versions_agree():
    cited = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.M)[1]
    assert cited == qipf.__version__


def test_packages_of_extras_are_imported_where_they_are_needed():
    """`import qipf` needs none of them: no module imports one at its top."""
    optional = {"matplotlib", "onnx", "onnxruntime", "pooch", "prometheus_client", "pyarrow", "ray"}
    for path in sorted((ROOT / "src").rglob("*.py")):
        tree = RuntimeOnly().visit(ast.parse(path.read_text(encoding="utf-8")))
        for node in tree.body:
            names = [alias.name for alias in getattr(node, "names", ())]
            if isinstance(node, ast.ImportFrom):
                names = [node.module]
            assert not {name.split(".")[0] for name in names} & optional, path


def test_the_lock_has_the_versions_of_the_constraints_and_hashes():
    """Apart from what builds the package, and from peers, which no extra of the tests needs."""
    text = (ROOT / "requirements.lock").read_text()
    locked = dict(re.findall(r"^([\w.-]+)==(\S+)", text, re.M))
    pinned = {
        name.lower().replace("_", "-"): version
        for name, version in re.findall(
            r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.M
        )
    }
    torch = locked.pop("torch")
    assert torch == pinned.pop("torch") + "+cpu"
    building = {"editables", "hatchling", "setuptools", "tomlkit", "trove-classifiers"}
    assert locked.keys() - pinned.keys() <= building
    assert {name: pinned[name] for name in locked.keys() - building} == {
        name: version for name, version in locked.items() if name not in building
    }
    assert declared() - {"qipf", "torch"} - {"keopscore", "pykeops", "pytorch-ood"} <= set(locked)
    entries = re.split(r"\n(?=[\w])", text)[1:]
    assert len(entries) == len(locked) + 1
    assert all("--hash=sha256:" in entry for entry in entries)
