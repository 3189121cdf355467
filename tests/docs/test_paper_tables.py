"""The script that writes results/paper: counts and means against plain sums over the records."""

import gzip
import importlib.util
import json
import re
from pathlib import Path
from statistics import fmean

import pytest

HOME = Path(__file__).parents[2]
RIVALS = ("mc_dropout", "mc_dropout_ll", "svi", "svi_ll", "ensemble")


@pytest.fixture(scope="module")
def script():
    place = HOME / "benchmarks" / "paper_tables.py"
    spec = importlib.util.spec_from_file_location("paper_tables", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def record(network, level, method, seed, area):
    areas = dict.fromkeys(("roc_auc", "pr_auc", "pr_auc_trapezoid", "point_biserial"), area)
    return {
        "network": network, "dataset": "mnist", "corruption": "rotation", "level": level,
        "method": method, "seed": seed, "accuracy": 0.5, "test_images": 10, "forward_passes": 1,
        **areas,
    }  # fmt: skip


@pytest.fixture(scope="module")
def records(script):
    """qipf is best by the network's class, second by the rivals' own class, except in seed 1."""
    found = []
    for network in ("mnist_lenet", "cifar10_lenet"):
        for level in (10.0, 20.0):
            for seed in (0, 1):
                for rival in RIVALS:
                    found.append(record(network, level, rival, seed, 0.5 + 0.01 * seed))
                    found.append(record(network, level, f"{rival}_own_class", seed, 0.7))
                for k, field in enumerate(script.FIELDS):
                    found.append(record(network, level, field, seed, 0.6 + 0.12 * seed + k / 1000))
    return found


def test_wins_are_counted_in_the_cells_that_the_paper_has(script, records):
    assert script.won(records, "roc_auc", "qipf", "") == (2, 2)
    assert script.won(records, "roc_auc", "qipf", "_own_class") == (0, 2)
    # the paper has no correlations of CIFAR-10 LeNet
    assert script.won(records, "point_biserial", "qipf", "") == (1, 1)
    late = [r for r in records if r["seed"] == 1]
    assert script.won(late, "roc_auc", "qipf", "_own_class") == (2, 2)
    lines = script.wins(records).splitlines()
    assert lines[2].startswith("| the paper |  | 1 of 2 | 1 of 2 | 1 of 1 |")
    assert len(lines) == 3 + 2 * len(script.FIELDS)
    assert "| qipf | own class | 0 / 0 / 0 | 2 / 2 / 1 |" in script.wins_by_seed(records)


def test_means_are_over_levels_seeds_and_cells(script, records):
    own = [r["roc_auc"] for r in records if r["method"] == "qipf_default"]
    line = next(x for x in script.means(records).splitlines() if x.startswith("| qipf_default"))
    assert line.split(" | ")[1] == f"{fmean(own):.3f} (–)"
    cells = script.cells(records, "roc_auc").splitlines()
    assert "0.505 / 0.700 (0.63)" in cells[2]  # MC-Dropout on MNIST: both conventions, paper
    assert "0.660 / 0.661 / 0.662 (0.74) | 0.663 |" in cells[2]
    assert (
        script.every_method(records).splitlines()[2].startswith("| mc_dropout_own_class | 1 | 0.7")
    )


def test_a_page_is_filled_between_its_marks(script):
    page = "a\n<!-- wins -->\nold\n<!-- end -->\nb\n<!-- other -->\nkept\n<!-- end -->\n"
    once = script.filled(page, {"wins": "| x |\n"})
    assert once == (
        "a\n<!-- wins -->\n\n| x |\n\n<!-- end -->\nb\n<!-- other -->\nkept\n<!-- end -->\n"
    )
    assert script.filled(once, {"wins": "| x |\n"}) == once


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
