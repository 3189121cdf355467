"""Monitoring lines: one verdict per window, each once, whatever interrupts."""

import random

import numpy as np
import pytest

from qipf import QIPFInputError, ShiftMonitor
from tests.conftest import make_logits
from tests.monitor.watching import LINES, watch


class CrashError(Exception):
    """The machine goes dark."""


def test_one_verdict_per_window_and_one_for_the_rest(field, stream):
    reports, warnings = watch(field, stream)
    assert [report.number for report in reports] == [1, 2, 3, 4, 5, 6]
    assert [report.verdict.seen for report in reports] == [10, 20, 30, 40, 50, 55]
    assert [report.lines for report in reports] == [10, 21, 32, 42, 52, 57]
    assert [report.bad_lines for report in reports] == [0, 1, 1, 1, 1, 1]
    assert [report.verdict.window.abstained for report in reports] == [0] * 6
    assert warnings == [f"{stream}, line 11: 2 fields instead of 10; skipped."]


def test_the_verdicts_are_those_of_the_library(field, stream):
    rows = make_logits(LINES, seed=2).numpy()
    rows = np.delete(rows, [10, 29], axis=0)
    monitor = ShiftMonitor(field, window=10)
    expected = [monitor.update(part) for part in np.split(rows, range(10, 55, 10))]
    assert [report.verdict for report in watch(field, stream)[0]] == expected


@pytest.mark.parametrize("size", [50, 1000, 3000])
def test_the_size_of_reads_makes_no_difference(field, stream, monkeypatch, size):
    expected, _ = watch(field, stream)
    monkeypatch.setattr("qipf.monitor.lines.CHUNK", size)
    assert watch(field, stream)[0] == expected


def test_crashes_lose_nothing_and_count_nothing_twice(field, stream, monkeypatch, tmp_path):
    """Crashes at random points, before and after saving and reporting."""
    expected, _ = watch(field, stream)
    save = ShiftMonitor.save
    for seed in range(5):
        chance, state, received = random.Random(seed), tmp_path / f"{seed}.qipf", []

        def crashing(monitor, path, chance=chance):
            if chance.random() < 0.2:
                raise CrashError
            save(monitor, path)
            if chance.random() < 0.2:
                raise CrashError

        class Reports(list):
            def append(self, report, chance=chance, received=received):
                received.append(report)
                if chance.random() < 0.2:
                    raise CrashError

        monkeypatch.setattr(ShiftMonitor, "save", crashing)
        for _ in range(200):
            try:
                watch(field, stream, state, Reports())
                break
            except CrashError:
                continue
        by_number = {report.number: report for report in received}
        assert list(by_number.values()) == expected
        # a repeated verdict is the same
        assert all(report == by_number[report.number] for report in received)


def test_resumed_it_repeats_the_last_verdict(field, stream, tmp_path):
    state = tmp_path / "state.qipf"
    first, _ = watch(field, stream, state)
    again, warnings = watch(field, stream, state)
    assert (again, warnings) == (first[-1:], [])
    with open(stream, "a") as file:
        file.write("x,y\n")
    more, warnings = watch(field, stream, state)
    assert [report.number for report in more] == [6, 7]
    assert (more[1].verdict.seen, more[1].lines, more[1].bad_lines) == (55, 58, 2)
    assert warnings == [f"{stream}, line 58: 2 fields instead of 10; skipped."]


def test_a_stop_saves_what_was_read(field, stream, tmp_path, monkeypatch):
    monkeypatch.setattr("qipf.monitor.lines.CHUNK", 3000)
    state, asked = tmp_path / "state.qipf", []
    expected = watch(field, stream)[0][-1]
    reports, _ = watch(field, stream, state, stopping=lambda: len(asked.append(1) or asked) > 1)
    assert 0 < reports[-1].verdict.seen < 55
    assert reports[-1].verdict.seen % 10 != 0
    rest, _ = watch(field, stream, state)
    assert rest[0] == reports[-1]
    assert rest[-1].verdict.seen == expected.verdict.seen
    assert rest[-1].verdict.log_evidence == pytest.approx(expected.verdict.log_evidence, rel=1e-9)


def test_a_bad_line_can_stop_the_watch(field, stream, tmp_path):
    state, reports = tmp_path / "state.qipf", []
    for _ in range(2):  # until bad lines are skipped
        with pytest.raises(QIPFInputError, match=f"{stream}, line 11: 2 fields instead of 10"):
            watch(field, stream, state, reports, on_bad_line="stop")
    assert [(report.number, report.verdict.seen) for report in reports] == [(1, 10), (1, 10)]
    assert watch(field, stream, state)[0] == watch(field, stream)[0]


def test_notes_of_others_stay(field, stream, tmp_path):
    state = tmp_path / "state.qipf"
    monitor = ShiftMonitor(field, window=10)
    monitor.notes = {"owner": "me"}
    watch(field, stream, state, monitor=monitor)
    kept = ShiftMonitor.load(state, field).notes
    assert (kept["owner"], kept["line"]) == ("me", LINES)


def test_contradictory_or_unknown_options_are_rejected(field, stream):
    with pytest.raises(QIPFInputError, match="Did you mean 'skip'"):
        watch(field, stream, on_bad_line="skp")
    with pytest.raises(QIPFInputError, match="contradict each other"):
        watch(field, None, skip_seen=True, new_input=True)
    with pytest.raises(QIPFInputError, match="is for standard input"):
        watch(field, stream, skip_seen=True)


@pytest.mark.parametrize("how", ["moved", "truncated", "regrown"])
def test_a_rotated_log_is_followed(field, stream, tmp_path, monkeypatch, how):
    """Moved, or copied and truncated, also if it is longer than before when it is looked at."""
    monkeypatch.setattr("qipf.monitor.lines.PAUSE", 0.001)
    state, old = tmp_path / "state.qipf", stream.read_text()
    header = ",".join(f"logit_{k}" for k in range(10)) + "\n"
    new = header + old.replace("1", "2") * (2 if how == "regrown" else 1)
    reports, stop = [], []

    class Reports(list):
        def append(self, report):
            super().append(report)
            if report.number == 5:  # five rows of a sixth window are pending
                if how == "moved":
                    stream.rename(stream.with_suffix(".1"))
                stream.write_text("" if how == "truncated" else new)
            if report.number == 6 and how == "truncated":
                stream.write_text(new)
            if report.number == 7:
                stop.append(True)

    reports, warnings = Reports(), []
    watch(field, stream, state, reports, warnings, stopping=lambda: bool(stop), follow=True)
    assert [report.verdict.seen for report in reports[:7]] == [10, 20, 30, 40, 50, 55, 60]
    assert [report.lines for report in reports[5:7]] == [0, 6]
    told = [text for text in warnings if "from its start" in text]
    assert len(told) == 1
    assert ("a new file" if how == "moved" else "truncated") in told[0]
    # the state is in the new file: resumed, the rest of it is read
    rows = 55 * (2 if how == "regrown" else 1)
    assert watch(field, stream, state)[0][-1].verdict.seen == 55 + rows


@pytest.mark.parametrize("rows", [50, 55])
def test_a_state_saved_at_a_rotation_resumes_in_the_new_file(
    field, stream, tmp_path, monkeypatch, rows
):
    """Whether rows are pending at the rotation, or the last window is complete."""
    monkeypatch.setattr("qipf.monitor.lines.PAUSE", 0.001)
    lines = stream.read_text().splitlines(keepends=True)
    stream.write_text("".join(lines[: rows + 2]))  # a bad line and an empty one
    state, new = tmp_path / "state.qipf", "".join(lines).replace("1", "2")

    def warned(text):
        if "from its start" in text:
            stops.append(True)

    stops = []

    class Reports(list):
        def append(self, report):
            super().append(report)
            if report.number == 5:
                stream.rename(stream.with_suffix(".1"))
                stream.write_text(new)

    class Warnings(list):
        def append(self, text):
            warned(text)

    watch(field, stream, state, Reports(), Warnings(), stopping=lambda: bool(stops), follow=True)
    assert ShiftMonitor.load(state, field).seen == rows
    assert watch(field, stream, state)[0][-1].verdict.seen == rows + 55


def test_no_state_is_saved_before_the_first_prediction(field, stream, tmp_path, monkeypatch):
    """A rotation after bad lines alone leaves nothing behind that could not be loaded."""
    monkeypatch.setattr("qipf.monitor.lines.PAUSE", 0.001)
    state, good = tmp_path / "state.qipf", stream.read_text()
    stream.write_text("1,2\n")
    stops = []

    class Warnings(list):
        def append(self, text):
            if "from its start" in text:
                stops.append(True)
            elif not stops:
                stream.rename(stream.with_suffix(".1"))
                stream.write_text("3,4\n")

    watch(field, stream, state, None, Warnings(), stopping=lambda: bool(stops), follow=True)
    assert stops
    stream.write_text(good)
    assert watch(field, stream, state)[0][-1].verdict.seen == 55


def test_the_states_own_file_is_not_a_new_input(field, stream, tmp_path):
    state = tmp_path / "state.qipf"
    watch(field, stream, state)
    with pytest.raises(QIPFInputError, match="57 of its lines are counted. Omit --new-input"):
        watch(field, stream, state, new_input=True)
    moved = stream.rename(tmp_path / "moved.csv")
    with pytest.raises(QIPFInputError, match="is the file that the state was reading"):
        watch(field, moved, state, new_input=True)
    stream.write_text(moved.read_text().replace("1", "2"))
    with pytest.raises(QIPFInputError, match="is not the file that the state was reading"):
        watch(field, stream, state)
    with open(moved, "a") as file:  # what its writer still wrote to the old one
        file.write(",".join(["0"] * 10) + "\n")
    assert watch(field, moved, state)[0][-1].verdict.seen == 56
    assert watch(field, stream, state, new_input=True)[0][-1].verdict.seen == 56 + 55
