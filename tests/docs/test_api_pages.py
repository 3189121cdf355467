"""Every public name has an entry in the reference of the site."""

import importlib
import re
from pathlib import Path

import pytest

import qipf

PAGES = Path(__file__).parents[2] / "docs" / "api"


def entries():
    """Names after ``:::`` in the pages, without the package."""
    texts = [path.read_text(encoding="utf-8") for path in PAGES.glob("*.md")]
    return [name for text in texts for name in re.findall(r"^::: qipf\.([\w.]+)$", text, re.M)]


def test_every_public_name_has_one_entry():
    found = entries()
    assert len(found) == len(set(found))
    missing = set(qipf.__all__) - set(found)
    assert not missing, f"add ::: qipf.NAME to a page in docs/api: {sorted(missing)}"


@pytest.mark.slow  # imports everything
def test_every_entry_is_a_public_name():
    for name in entries():
        module, _, attribute = name.rpartition(".")
        home = importlib.import_module(f"qipf.{module}") if module else qipf
        assert attribute in getattr(home, "__all__", [attribute]), name
        assert hasattr(home, attribute), name


def test_the_overview_names_all_of_them():
    overview = (PAGES / "index.md").read_text(encoding="utf-8")
    errors = {name for name in qipf.__all__ if name.startswith("QIPF") and name != "QIPF"}
    for name in set(qipf.__all__) - errors - {"__version__"}:
        assert re.search(rf"`[^`]*\b{name}\b[^`]*`", overview), name
