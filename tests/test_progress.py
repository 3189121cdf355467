import re
import sys

import pytest

from qipf import progress


@pytest.fixture
def watched(monkeypatch):
    """Somebody sits at a terminal."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(progress, "_silent", False)
    monkeypatch.delenv("QIPF_QUIET", raising=False)
    monkeypatch.setattr(progress.tqdm, "set_lock", lambda lock: None)


def test_bars_are_for_those_who_watch(watched, monkeypatch):
    with progress.progress_bar("rows", total=3) as bar:
        assert not bar.disable
    monkeypatch.setenv("QIPF_QUIET", "1")
    with progress.progress_bar("rows", total=3) as bar:
        assert bar.disable


@pytest.mark.parametrize("total", [4, None])
def test_elsewhere_there_are_lines(watched, monkeypatch, capsys, total):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    monkeypatch.setattr(progress, "LINE_DELAY", 0.0)
    assert list(progress.progress((c for c in "abcd"), "letters", total)) == list("abcd")
    lines = capsys.readouterr().err.splitlines()
    assert all(line.startswith("letters: ") for line in lines)
    of = "" if total is None else " of 4"
    assert any(line.startswith(f"letters: 2{of}, ") for line in lines)
    begun = [line for line in lines if not line.startswith("letters: 0")]
    assert all(("left" in line) == (total is not None) for line in begun)
    assert not any("\r" in line for line in lines)


@pytest.mark.parametrize("terminal", [True, False])
def test_the_time_left_is_estimated_once_two_percent_are_done(watched, monkeypatch, terminal):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    with progress.progress_bar("items", total=1000) as bar:
        bar.start_t -= 60  # a minute ago
        for done, known in ((1, False), (19, False), (20, True)):
            bar.n = done
            text = str(bar)
            assert f"{done}/1000" in text or f"{done} of 1000" in text
            found = re.search(r"<(.*?),|, ([^,]*) left", text)
            estimate = None if found is None else found[1] or found[2]
            assert (estimate not in (None, "?")) == known, text


def test_short_work_prints_no_line(watched, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    with progress.progress_bar("rows", total=3) as bar:
        bar.update(3)
    assert capsys.readouterr().err == ""


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


class Endless:
    """As a loader of a stream."""

    def __len__(self):
        raise TypeError("no length")

    def __iter__(self):
        return iter("ab")


@pytest.mark.parametrize("terminal", [True, False])
def test_what_has_no_length_is_iterated_too(watched, monkeypatch, terminal):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    assert list(progress.progress(Endless(), "letters")) == ["a", "b"]


def test_lines_of_nested_work_hold_no_control_characters(watched, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    monkeypatch.setattr(progress, "LINE_DELAY", 0.0)
    for _ in progress.progress([1, 2], "outer"):
        list(progress.progress([1, 2], "inner"))
    lines = capsys.readouterr().err.splitlines()
    assert {line.split(":")[0] for line in lines} == {"outer", "inner"}
    assert all(line.isprintable() for line in lines)
