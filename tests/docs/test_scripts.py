"""Every script of benchmarks/ and research/ can be imported: no name that it uses is gone."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = [*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "research").glob("*.py")]


@pytest.mark.slow
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_script_can_be_imported(path, monkeypatch):
    monkeypatch.syspath_prepend(path.parent)
    for name in {script.stem for script in SCRIPTS} & set(sys.modules):
        monkeypatch.delitem(sys.modules, name)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, path.stem, module)
    spec.loader.exec_module(module)
    assert module.__doc__
