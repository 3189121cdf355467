"""Every snippet of the README and of the site's pages runs, in the order of its page."""

import copy
import sys
import warnings
from functools import partialmethod
from inspect import signature

import numpy as np
import pytest

import qipf
from qipf.cli import main
from qipf.errors import QIPFWarning
from qipf.network.model import NetworkModel
from tests.docs.snippets import names, pages, reason_not_run, snippets, write_files

#: Pages and what they need beside torch.
NEEDS = {"docs/quickstart/tables.md": "xgboost", "docs/quickstart/onnx.md": "onnxruntime"}

#: Names that a snippet takes for granted and an earlier one of its page has changed, by its start.
RESTORED = {
    "tokens = tokenizer(": "text",
    "model = qipf.FeatureQIPF().fit(\n": "features",
    "leaves = OneHotEncoder(": "forest",
    'model.save("model.qipf")': "",
}

#: Pages whose exports are made: each takes seconds. On others, their arguments are checked.
EXPORTING = ("docs/quickstart/onnx.md",)


@pytest.fixture(scope="module")
def given():
    return names()


@pytest.mark.slow
@pytest.mark.parametrize("page", pages())
def test_the_snippets_of_a_page_run(page, given, tmp_path, monkeypatch, capsys):
    pytest.importorskip(NEEDS.get(page, "torch"))
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, given)
    for kind in () if page in EXPORTING else (qipf.QIPF, NetworkModel, qipf.FeatureQIPF):
        for verb in {"export_onnx", "export"} & set(dir(kind)):
            monkeypatch.setattr(kind, verb, partialmethod(bound, signature(getattr(kind, verb))))
    space = {"qipf": qipf, "np": np, **copy.deepcopy(given)}
    for snippet in snippets(page):
        if snippet.language == "python":
            if "qipf.ray" in snippet.code:
                continue  # tests/ray/test_snippets.py
            for start, group in RESTORED.items():
                if snippet.code.startswith(start):
                    space["net"] = given["net"]
                    space.update(given[group] if group else {})
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", QIPFWarning)
                exec(compile(snippet.code, str(snippet), "exec"), space)
        else:
            for words in snippet.commands:
                if reason_not_run(words) is None:
                    run(words, snippet, monkeypatch, capsys)


def bound(model, expected, *arguments, **options):
    """Checks the arguments of a method instead of calling it."""
    expected.bind(model, *arguments, **options)


def run(words, snippet, monkeypatch, capsys):
    assert words[0] == "qipf", f"{snippet}: {words}"
    monkeypatch.setattr(sys, "argv", words)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", QIPFWarning)
        with pytest.raises(SystemExit) as ended:
            main()
    assert not ended.value.code, f"{snippet}: {' '.join(words)}: {capsys.readouterr().err}"
