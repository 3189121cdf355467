"""README's table and results/headline.md are what benchmarks/headline.py computes of results/."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.docs.scripts import script

ROOT = Path(__file__).parents[2]
RIVALS = ("entropy", "ensemble_entropy", "ensemble_log_odds")


@pytest.fixture(scope="module")
def headline():
    return script("headline")


@pytest.fixture(scope="module")
def cells(headline):
    return headline.cells_of([ROOT / "results/paper", ROOT / "results/modern"])


@pytest.mark.slow
def test_the_table_of_the_readme(headline, cells):
    page = (ROOT / "README.md").read_text("utf-8")
    rows = re.findall(r"^\| (?:LeNet|VGG|ResNet|ViT|transformer|mean).*$", page, re.M)
    *shown, means = [re.findall(r"\.\d{3}", row) for row in rows]
    assert len(shown) == len(cells) == 7
    for numbers, methods in zip(shown, cells.values(), strict=True):
        for place, metric in enumerate(("roc_auc", "pr_auc")):
            values = {name: naive(own, metric) for name, own in methods.items()}
            best = max(values[m] for m in headline.one_pass(values))
            expected = [values["qipf_plus"], best, *(values[name] for name in RIVALS)]
            assert numbers[place::2] == [f"{v:.3f}"[1:] for v in expected]
    exact = np.mean([[float(n) for n in row] for row in shown], axis=0)
    assert np.abs(exact - [float(n) for n in means]).max() < 0.001


@pytest.mark.slow
def test_the_page_of_all_means_is_what_the_command_prints(headline, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["headline.py", "--results", str(ROOT / "results")])
    headline.main()
    assert capsys.readouterr().out == (ROOT / "results/headline.md").read_text("utf-8")


def test_methods_of_several_passes_are_compared_on_their_own_levels(headline):
    def records(**values):  # by level and seed
        return {
            ("blur", float(name[1:]), 0): {"roc_auc": value, "pr_auc": value / 2}
            for name, value in values.items()
        }

    cells = {"net": {"qipf_plus": records(a1=0.9, a2=0.5, a3=0.1)}}
    cells["net"] |= {
        "tta_entropy": records(a1=0.6, a2=0.4),
        "tta_log_odds": records(a1=0.7, a2=0.6),
    }
    lines = list(headline.several_passes(cells))
    assert lines[2] == "| net |  |  |  |  | .5000, .6500, .7000 |"
    assert (
        lines[3].strip()
        == "| qipf_plus is ahead of both in | 0 of 0 | 0 of 0 | 0 of 0 | 0 of 0 | 1 of 1 |"
    )
    assert lines[6] == "| net |  |  |  |  | .2500, .3250, .3500 |"


@pytest.mark.slow
def test_the_page_of_distilled_fields_is_what_the_command_writes():
    shown = (ROOT / "results/distilled.md").read_text("utf-8")
    assert shown.endswith("\n".join(script("distilled").table(ROOT / "results")))


def naive(own, metric):
    """Mean over the levels and seeds of each corruption, then over the corruptions."""
    means = []
    for corruption in {key[0] for key in own} - {"none"}:
        values = [r[metric] for key, r in own.items() if key[0] == corruption]
        means.append(np.mean([v for v in values if v is not None and v == v]))
    return np.mean(means) if means else np.nan
