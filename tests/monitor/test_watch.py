"""Monitoring lines: one verdict per window, each once, whatever interrupts."""

import random

import numpy as np
import pytest

import qipf
from qipf import QIPFInputError, ShiftMonitor
from qipf.monitor.lines import LineSource
from qipf.monitor.parsing import LineParser
from qipf.monitor.watch import MAX_MESSAGES, Watch
from tests.conftest import make_logits

LINES = 57


class CrashError(Exception):
    """The machine goes dark."""


@pytest.fixture(scope="module")
def field():
    fitted = qipf.QIPF(bandwidth="silverman").fit(make_logits(100).numpy())
    return fitted.calibrate(make_logits(80, seed=1).numpy(), np.arange(80) % 10)


@pytest.fixture
def stream(tmp_path):
    """57 lines, of which line 11 is bad and line 30 is empty."""
    rows = [",".join(map(repr, row)) for row in make_logits(LINES, seed=2).tolist()]
    rows[10], rows[29] = "1,2", ""
    path = tmp_path / "stream.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def watch(
    field,
    path,
    state=None,
    reports=None,
    warnings=None,
    stopping=lambda: False,
    follow=False,
    monitor=None,
    **options,
):
    """Run a watch; return the reports and the warnings."""
    reports, warnings = [] if reports is None else reports, [] if warnings is None else warnings
    if monitor is None:
        exists = state is not None and state.exists()
        monitor = ShiftMonitor.load(state, field) if exists else ShiftMonitor(field, window=10)
    with LineSource(path, follow, stopping) as source:
        Watch(monitor, source, state, reports.append, warnings.append, **options).run(
            LineParser(10, source.name)
        )
    return reports, warnings


def test_one_verdict_per_window_and_one_for_the_rest(field, stream):
    reports, warnings = watch(field, stream)
    assert [report.number for report in reports] == [1, 2, 3, 4, 5, 6]
    assert [report.verdict.seen for report in reports] == [10, 20, 30, 40, 50, 55]
    assert [report.lines for report in reports] == [10, 21, 32, 42, 52, 57]
    assert [report.bad_lines for report in reports] == [0, 1, 1, 1, 1, 1]
    assert [report.verdict.window.abstained for report in reports] == [0] * 6
    assert warnings == [f"{stream}, line 11: 2 fields instead of 10; skipped."]


def test_lines_that_are_not_finite_are_counted_and_change_nothing_else(field, stream):
    expected, _ = watch(field, stream)
    lines = stream.read_text().splitlines()
    lines.insert(5, ",".join(["0"] * 9 + ["nan"]))
    lines.insert(33, ",".join(["-inf"] * 10))
    stream.write_text("\n".join(lines) + "\n")
    reports, warnings = watch(field, stream)
    assert [report.verdict for report in reports] == [report.verdict for report in expected]
    assert (reports[-1].lines, reports[-1].bad_lines) == (59, 3)
    assert warnings[0] == f"{stream}, line 6: a logit is nan; skipped."
    with pytest.raises(QIPFInputError, match="line 6: a logit is nan"):
        watch(field, stream, on_bad_line="stop")


def test_without_a_finite_line_there_is_no_verdict(field, tmp_path):
    path, reports = tmp_path / "nan.csv", []
    path.write_text((",".join(["nan"] * 10) + "\n") * 20)
    with pytest.raises(QIPFInputError, match="holds logits. Line 1: a logit is nan"):
        watch(field, path, reports=reports)
    assert reports == []


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


def test_many_bad_lines_are_reported_together(field, tmp_path):
    path = tmp_path / "bad.csv"
    good = ",".join(["0"] * 10)
    path.write_text("\n".join([good, *["x"] * 25, good]))
    reports, warnings = watch(field, path)
    assert len(warnings) == MAX_MESSAGES + 1
    assert warnings[0] == f"{path}, line 2: 1 fields instead of 10; skipped."
    assert warnings[-1] == f"{path}: 15 more bad lines up to line 26; skipped."
    assert (reports[-1].bad_lines, reports[-1].lines, reports[-1].verdict.seen) == (25, 27, 2)


def test_another_input_is_rejected_unless_it_is_new(field, stream, tmp_path):
    state, other = tmp_path / "state.qipf", tmp_path / "other.csv"
    watch(field, stream, state)
    other.write_text(stream.read_text().replace("1", "2"))
    with pytest.raises(QIPFInputError, match="is not the file that the state was reading"):
        watch(field, other, state)
    reports, _ = watch(field, other, state, new_input=True)
    # the last verdict on the other input is not repeated
    assert [report.number for report in reports] == list(range(7, 7 + len(reports)))
    assert reports[0].verdict.seen == 60
    assert reports[-1].verdict.seen == 110
    assert reports[-1].lines == LINES
    with pytest.raises(QIPFInputError, match="belongs to a file, but the input is standard input"):
        watch(field, None, state)


def test_the_header_of_a_resumed_file_is_read_again(field, tmp_path):
    path, state = tmp_path / "headed.csv", tmp_path / "state.qipf"
    rows = make_logits(6, seed=3).tolist()
    lines = [",".join(["id", *(f"logit_{k}" for k in range(10))])]
    lines += [",".join(["a", *map(repr, row)]) for row in rows]
    path.write_text("\n".join(lines[:4]) + "\n")
    watch(field, path, state)
    path.write_text("\n".join(lines) + "\n")
    reports, warnings = watch(field, path, state)
    assert (reports[-1].verdict.seen, reports[-1].lines, warnings) == (6, 7, [])


def test_bad_lines_before_the_first_usable_one_are_skipped_and_counted(field, stream, tmp_path):
    path, state = tmp_path / "late.csv", tmp_path / "state.qipf"
    path.write_bytes(b"\xff,x\n1,2\n" + stream.read_bytes())
    reports, warnings = watch(field, path, state)
    assert [report.verdict for report in reports] == [r.verdict for r in watch(field, stream)[0]]
    assert (reports[-1].lines, reports[-1].bad_lines) == (LINES + 2, 3)
    assert warnings[0] == f"{path}, line 1: not UTF-8; skipped."
    assert warnings[1].startswith(f"{path}, line 2: 2 logits per line")
    with open(path, "a") as file:  # resumed, the layout is found behind them again
        file.write(",".join(["0"] * 10) + "\n")
    assert watch(field, path, state)[0][-1].verdict.seen == 56
    with pytest.raises(QIPFInputError, match="line 1: not UTF-8"):
        watch(field, path, on_bad_line="stop")


def test_an_input_without_any_usable_line_is_an_error(field, tmp_path):
    path, state = tmp_path / "none.csv", tmp_path / "state.qipf"
    path.write_text("\na,b\n")
    reports = []
    with pytest.raises(QIPFInputError, match="holds logits. Line 2: no column"):
        watch(field, path, state, reports)
    assert not reports
    with open(path, "a") as file:
        file.write(",".join(["0"] * 10) + "\n")
    reports, _ = watch(field, path, state)
    assert (reports[-1].verdict.seen, reports[-1].bad_lines, reports[-1].lines) == (1, 1, 3)


def test_a_half_written_last_line_is_left_for_the_next_run(field, tmp_path):
    path, state = tmp_path / "growing.csv", tmp_path / "state.qipf"
    rows = [",".join(map(repr, row)) for row in make_logits(3, seed=2).tolist()]
    half = rows[2][: len(rows[2]) // 2]
    path.write_text("\n".join([*rows[:2], half]))
    reports, warnings = watch(field, path, state)
    assert (reports[-1].verdict.seen, reports[-1].lines, reports[-1].bad_lines) == (2, 2, 0)
    assert warnings == [f"{path}, line 3: no line feed yet; left for the next run."]
    assert watch(field, path, state) == (reports[-1:], warnings)
    path.write_text("\n".join(rows) + "\n")
    more, warnings = watch(field, path, state)
    assert (more[-1].verdict.seen, more[-1].lines, warnings) == (3, 3, [])
    # without a state it is included
    path.write_text("\n".join(rows))
    assert watch(field, path)[0][-1].verdict.seen == 3


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


@pytest.mark.parametrize("text", ["", "\n\n", ",".join(f"logit_{k}" for k in range(10)) + "\n"])
def test_an_input_without_predictions_has_no_verdict(field, tmp_path, text):
    path, state = tmp_path / "empty.csv", tmp_path / "state.qipf"
    path.write_text(text)
    assert watch(field, path, state) == ([], [])
    assert not state.exists()
    with open(path, "a") as file:
        file.write(",".join(["0.5"] * 10) + "\n")
    reports, _ = watch(field, path, state)
    assert (reports[-1].number, reports[-1].verdict.seen) == (1, 1)


def test_bad_lines_alone_are_not_stored(field, tmp_path, monkeypatch):
    monkeypatch.setattr("qipf.monitor.lines.CHUNK", 50)
    path = tmp_path / "bad.csv"
    path.write_text(",".join(["0"] * 10) + "\n" + "x\n" * 200)
    monitor, held = ShiftMonitor(field, window=10), []
    with LineSource(path) as source:
        watching = Watch(monitor, source, None, lambda _: None, lambda _: None)
        monkeypatch.setattr(
            watching, "_finish_window", lambda finish=watching._finish_window: held.append(
                len(watching._pending)
            ) or finish()
        )  # fmt: skip
        watching.run(LineParser(10, source.name))
    assert held == [1]
    assert (watching.new_lines, monitor.seen) == (201, 1)


HEADER = ",".join(f"logit_{k}" for k in range(10)) + "\n"


@pytest.mark.parametrize("text", ["", HEADER, HEADER + "\n\n"])
def test_a_new_input_without_predictions_has_no_verdict_either(field, stream, tmp_path, text):
    path, state = tmp_path / "empty.csv", tmp_path / "state.qipf"
    watch(field, stream, state)
    before = state.read_bytes()
    path.write_text(text)
    assert watch(field, path, state, new_input=True) == ([], [])
    assert state.read_bytes() == before
    with open(stream, "a") as file:  # nor do empty lines make one
        file.write("\n\n")
    assert [report.number for report in watch(field, stream, state)[0]] == [6]
    assert state.read_bytes() == before


def test_bad_lines_alone_are_all_reported_before_the_error(field, tmp_path):
    path, warnings = tmp_path / "bad.csv", []
    path.write_text("x\n" * 25)
    with pytest.raises(QIPFInputError, match="holds logits"):
        watch(field, path, warnings=warnings)
    assert len(warnings) == MAX_MESSAGES + 1
    assert warnings[-1] == f"{path}: 15 more bad lines up to line 25; skipped."


def test_a_stop_after_bad_lines_alone_is_no_error(field, tmp_path):
    """Usable lines may have been still to come."""
    path, state = tmp_path / "bad.csv", tmp_path / "state.qipf"
    path.write_text("x\n" * 25)
    asked = []
    reports, warnings = watch(
        field, path, state, stopping=lambda: len(asked.append(1) or asked) > 1, follow=True
    )
    assert (reports, len(warnings)) == ([], MAX_MESSAGES + 1)
    assert not state.exists()


def test_bad_lines_are_all_reported_when_a_layout_ends_the_watch(field, tmp_path, monkeypatch):
    monkeypatch.setattr("qipf.monitor.lines.CHUNK", 50)
    path, warnings = tmp_path / "bad.csv", []
    path.write_text("1,2\n" * 25 + "id,a,b\n7,1.5,2.5\n")
    with pytest.raises(QIPFInputError, match="has no column 'logit"):
        watch(field, path, warnings=warnings)
    assert warnings[-1] == f"{path}: 15 more bad lines up to line 25; skipped."


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


def test_a_state_saved_at_a_rotation_resumes_in_the_new_file(field, stream, tmp_path, monkeypatch):
    monkeypatch.setattr("qipf.monitor.lines.PAUSE", 0.001)
    state, new = tmp_path / "state.qipf", stream.read_text().replace("1", "2")

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
    assert ShiftMonitor.load(state, field).seen == 55
    assert watch(field, stream, state)[0][-1].verdict.seen == 55 + 55


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
