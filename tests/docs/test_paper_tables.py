"""The script that writes results/paper: counts and means against plain sums over the records."""

import gzip
import json
import re
from pathlib import Path
from statistics import fmean

import pytest

from tests.docs.scripts import script

HOME = Path(__file__).parents[2]
RIVALS = ("mc_dropout", "mc_dropout_ll", "svi", "svi_ll", "ensemble")


@pytest.fixture(scope="module")
def tables():
    return script("paper_tables")


def record(network, level, method, seed, area):
    areas = dict.fromkeys(("roc_auc", "pr_auc", "pr_auc_trapezoid", "point_biserial"), area)
    return {
        "network": network, "dataset": "mnist", "corruption": "rotation", "level": level,
        "method": method, "seed": seed, "accuracy": 0.5, "test_images": 10, "forward_passes": 1,
        **areas,
    }  # fmt: skip


@pytest.fixture(scope="module")
def records(tables):
    """qipf is best by the network's class, second by the rivals' own class, except in seed 1."""
    found = []
    for network in ("mnist_lenet", "cifar10_lenet"):
        for level in (10.0, 20.0):
            for seed in (0, 1):
                for rival in RIVALS:
                    found.append(record(network, level, rival, seed, 0.5 + 0.01 * seed))
                    found.append(record(network, level, f"{rival}_own_class", seed, 0.7))
                for k, field in enumerate(tables.FIELDS):
                    found.append(record(network, level, field, seed, 0.6 + 0.12 * seed + k / 1000))
    return found


def test_wins_are_counted_in_the_cells_that_the_paper_has(tables, records):
    assert tables.won(records, "roc_auc", "qipf", "") == (2, 2)
    assert tables.won(records, "roc_auc", "qipf", "_own_class") == (0, 2)
    # the paper has no correlations of CIFAR-10 LeNet
    assert tables.won(records, "point_biserial", "qipf", "") == (1, 1)
    late = [r for r in records if r["seed"] == 1]
    assert tables.won(late, "roc_auc", "qipf", "_own_class") == (2, 2)
    lines = tables.wins(records).splitlines()
    assert lines[2].startswith("| the paper |  | 1 of 2 | 1 of 2 | 1 of 1 |")
    assert len(lines) == 3 + 2 * len(tables.FIELDS)
    assert "| qipf | own class | 0 / 0 / 0 | 2 / 2 / 1 |" in tables.wins_by_seed(records)


def test_means_are_over_levels_seeds_and_cells(tables, records):
    own = [r["roc_auc"] for r in records if r["method"] == "qipf_default"]
    line = next(x for x in tables.means(records).splitlines() if x.startswith("| qipf_default"))
    assert line.split(" | ")[1] == f"{fmean(own):.3f} (–)"
    cells = tables.cells(records, "roc_auc").splitlines()
    assert "0.505 / 0.700 (0.63)" in cells[2]  # MC-Dropout on MNIST: both conventions, paper
    assert "0.660 / 0.661 / 0.662 (0.74) | 0.663 |" in cells[2]
    assert (
        tables.every_method(records).splitlines()[2].startswith("| mc_dropout_own_class | 1 | 0.7")
    )


def test_a_page_is_filled_between_its_marks(tables):
    page = "a\n<!-- wins -->\nold\n<!-- end -->\nb\n<!-- other -->\nkept\n<!-- end -->\n"
    once = tables.filled(page, {"wins": "| x |\n"})
    assert once == (
        "a\n<!-- wins -->\n\n| x |\n\n<!-- end -->\nb\n<!-- other -->\nkept\n<!-- end -->\n"
    )
    assert tables.filled(once, {"wins": "| x |\n"}) == once


@pytest.mark.slow
def test_the_published_page_holds_the_published_results():
    """Means and clean accuracies of results/paper/README.md from the records, by plain sums."""
    folder = HOME / "results" / "paper"
    page = (folder / "README.md").read_text("utf-8")
    with gzip.open(folder / "results.jsonl.gz", "rt") as lines:
        found = [json.loads(text) for text in lines]
    assert f"{len(found):,} results" in page
    cells = {}
    for r in found:
        if r["corruption"] != "none":
            key = (r["network"], r["corruption"])
            cells.setdefault(r["method"], {}).setdefault(key, []).append(r["roc_auc"])
    printed = dict(re.findall(r"^\| (\w+) \| \d+ \| (0\.\d{3}) \|", page, re.MULTILINE))
    assert set(printed) == set(cells)
    for method, areas in cells.items():
        assert len(areas) == 16
        assert float(printed[method]) == pytest.approx(
            fmean(map(fmean, areas.values())), abs=5.1e-4
        )
    for r in found:
        if (r["corruption"], r["method"], r["seed"]) == ("none", "qipf", 0):
            count, accuracy = r["test_images"], r["accuracy"]
            assert f"| {r['network']} | {count:,} | {accuracy:.1%} |" in page
