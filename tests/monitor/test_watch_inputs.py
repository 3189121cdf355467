"""Inputs of a watch: bad lines, headers, half lines, other files."""

import pytest

from qipf import QIPFInputError, ShiftMonitor
from qipf.monitor.lines import LineSource
from qipf.monitor.parsing import LineParser
from qipf.monitor.watch import MAX_MESSAGES, Watch
from tests.conftest import make_logits
from tests.monitor.watching import LINES, watch


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
