"""docs/scale.md shows what results/scale.csv holds."""

from pathlib import Path

import pytest

from tests.docs.scripts import script

HOME = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tables():
    return script("scale_page")


def line(device="cpu", way="memory", cores=1, rate=1e5, dimension=10):
    return {
        "device": device, "machine": "a chip", "way": way, "cores": str(cores),
        "dimension": str(dimension), "centers": "6000", "predictions": "100", "seconds": "1",
        "predictions_per_second": str(rate),
    }  # fmt: skip


def test_the_page_holds_the_measured_figures(tables):
    page = (HOME / "docs" / "scale.md").read_text(encoding="utf-8")
    assert tables.updated(page, tables.read()) == page, "run: python benchmarks/scale_page.py"


def test_costs_follow_from_rates_and_prices(tables):
    rows = [line(), line(cores=2, rate=2e5), line("cuda", rate=1e7)]
    # 10 s of a core, 5 s of two: 10 core seconds either way; 0.1 s of a GPU
    assert tables.measured(rows).splitlines()[2:] == [
        "| a chip, 1 core | arrays in memory | 10 | 6,000 | 100,000 | 10 | 0.00014 |",
        "| a chip, 2 cores | arrays in memory | 10 | 6,000 | 200,000 | 5 | 0.00014 |",
        "| a chip | arrays in memory | 10 | 6,000 | 10,000,000 | 0.1 | 0.00011 |",
    ]
    # 10^9 at 1.6 M/s are 625 s, 0.174 h of 0.80; at 10 M/s 100 s, 0.0278 h of 4.00
    assert tables.a_day(rows).splitlines()[2:] == [
        "| 16 cores, arrays in memory | 10 | 0.174 | 1 | 0.14 |",
        "| a chip, arrays in memory | 10 | 0.0278 | 1 | 0.11 |",
    ]
    slow = tables.a_day([line(rate=100)]).splitlines()[2]
    assert slow == "| 16 cores, arrays in memory | 10 | 174 | 8 | 138.89 |"


def test_a_second_worker_is_compared_with_the_first(tables):
    rows = [line(way="ray", cores=1, rate=1000), line(way="ray", cores=2, rate=1850)]
    assert tables.speedup(rows) == (
        "One worker scored 1,000 predictions a second, two 1,850: 1.85 times as many.\n"
    )
    assert tables.speedup([line()]) == "Not measured on this machine.\n"
