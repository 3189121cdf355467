import sys

import pytest

from qipf import progress


@pytest.fixture
def watched(monkeypatch):
    """Somebody sits at a terminal."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(progress, "_silent", False)
    monkeypatch.setattr(progress.tqdm, "set_lock", lambda lock: None)


def test_bars_are_for_those_who_watch(watched, monkeypatch):
    with progress.progress_bar("rows", total=3) as bar:
        assert not bar.disable
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    with progress.progress_bar("rows", total=3) as bar:
        assert bar.disable


def test_a_silenced_process_shows_none(watched):
    progress.silence()
    with progress.progress_bar("rows", total=3) as bar:
        assert bar.disable
    assert list(progress.progress([1, 2], "rows")) == [1, 2]


def test_bytes_are_shown_by_the_thousand(watched):
    with progress.progress_bar("reading", total=3_000_000, unit="B") as bar:
        bar.update(1_500_000)
        assert "1.50M/3.00M" in str(bar)
    with progress.progress_bar("reading", total=3_000_000, unit="row") as bar:
        assert "0/3000000" in str(bar)
