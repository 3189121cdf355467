"""Figures are written completely, in the format that the file's name asks for."""

import sys

import pytest

from qipf import QIPFError, risk_coverage
from qipf.plots.drawing import drawing


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")]
)
def test_the_figure_is_written_in_the_format_of_its_name(tmp_path, kind, start):
    target = tmp_path / f"figure.{kind}"
    with drawing(target, width=1.0, height=1.0, dpi=20) as axes:
        axes[0][0].plot([0, 1], [0, 1])
    assert target.read_bytes().startswith(start)
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


@pytest.mark.parametrize(
    ("name", "phrase"), [("a.txt", "ends in .png or .pdf"), ("no/a.png", "no folder")]
)
def test_targets_that_cannot_be_written_raise(tmp_path, name, phrase):
    with pytest.raises(QIPFError, match=phrase), drawing(tmp_path / name, width=1.0, height=1.0):
        pass


def test_without_matplotlib_a_plot_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(QIPFError, match=r"pip install -e '\.\[report\]' in a clone"):
        risk_coverage([0.1, 0.2], [False, True]).plot()
