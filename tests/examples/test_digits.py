"""The table and the figure of examples/digits.py."""

import io
import runpy
import sys
from pathlib import Path

import pytest
from rich.console import Console

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits.py"


@pytest.fixture(scope="module")
def example():
    return runpy.run_path(str(EXAMPLE))


@pytest.mark.slow
def test_table_marks_unreliable_estimates_and_keeps_the_order_of_the_scores(example, tmp_path):
    rows = [
        example["Row"](0, 0.97, 0.965, True, [0.99, 0.95, 0.9]),
        example["Row"](60, 0.23, 0.38, False, [0.507, 0.558, 0.644]),
    ]
    stream = io.StringIO()
    Console(file=stream, width=80).print(example["table_of"](rows))
    cells = [
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in stream.getvalue().splitlines()
        if "°" in line
    ]
    assert cells == [
        ["0°", "97.0%", "96.5%", "0.990", "0.950", "0.900"],
        ["60°", "23.0%", "38.0%*", "0.507", "0.558", "0.644"],
    ]
    example["draw"](tmp_path / "digits.png", rows)
    assert (tmp_path / "digits.png").read_bytes().startswith(b"\x89PNG")


def test_ctrl_c_ends_without_a_traceback(monkeypatch, tmp_path):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "argv", ["digits.py", "--output", str(tmp_path)])
    monkeypatch.setattr("qipf.bench.datasets.load", interrupted)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert ended.value.code == "\nStopped; no figure was written."
