import pytest

from qipf.bench.methods import METHODS
from qipf.reporting.leaderboard import board_grid, leaderboard
from qipf.reporting.tables import BEST, WELL_KNOWN, summarise
from tests.reporting.test_tables import result


def texts(summary):
    grid = board_grid(summary.tables[0])
    return [grid.header, *([cell.text for cell in row] for row in grid.rows)]


def bold(summary):
    rows = board_grid(summary.tables[0]).rows
    return [[cell.text for cell in row if cell.bold] for row in rows]


def test_methods_are_lines_from_the_best_mean_to_the_worst():
    summary = summarise(
        [
            *(result("n", "zoom", 2, m, v) for m, v in (("qipf", 0.6), ("knn", 0.9), ("svi", 0.7))),
            *(result("n", "shear", 2, m, v) for m, v in (("qipf", 0.8), ("knn", 0.6))),
            *(result("n", "none", 0, m, v) for m, v in (("qipf", 0.99), ("knn", 0.98))),
        ],
        ["roc_auc"],
        "all",
    )
    assert texts(summary) == [
        ["", "method", "mean", "shear", "zoom", "clean"],
        ["1", "knn", "0.750", "0.600", "0.900", "0.980"],
        ["2", "qipf", "0.700", "0.800", "0.600", "0.990"],
        ["–", "svi", "–", "–", "0.700", "–"],  # not measured under every corruption: no mean
    ]
    assert bold(summary) == [["knn", "0.750", "0.900"], ["0.800", "0.990"], []]


def test_the_lowest_is_best_where_lower_is_better():
    results = [result("n", "zoom", 2, m, 0.5, aurc=v) for m, v in (("qipf", 0.3), ("knn", 0.1))]
    summary = summarise(results, ["aurc"], "all")
    assert texts(summary)[1:] == [["1", "knn", "0.100", "0.100"], ["2", "qipf", "0.300", "0.300"]]


def test_several_networks_are_columns_of_means():
    values = {("a", "zoom"): 0.6, ("a", "shear"): 0.8, ("b", "zoom"): 0.5}
    results = [result(n, c, 2, "qipf", v) for (n, c), v in values.items()]
    results += [result("a", "zoom", 2, "svi", 0.9), result("a", "shear", 2, "svi", 0.9)]
    summary = summarise(results, ["roc_auc"], "all")
    assert texts(summary) == [
        ["", "method", "mean", "a", "b"],
        ["1", "qipf", "0.633", "0.700", "0.500"],
        ["–", "svi", "–", "0.900", "–"],
    ]
    assert bold(summary) == [["qipf", "0.633", "0.500"], ["0.900"]]


def test_methods_that_rank_alike_are_said_once():
    values = {"knn": 0.7, "qipf_normalized": 0.60001, "qipf_potential": 0.6, "svi": 0.6001}
    results = [result("n", "zoom", 2, method, value) for method, value in values.items()]
    summary = summarise(results, ["roc_auc"], "all")
    assert summary.tables[0].equal_methods() == {
        "qipf_normalized": ["qipf_normalized", "qipf_potential"]
    }
    assert summary.tables[0].distinct_ranking() == ["knn", "svi", "qipf_normalized"]
    assert [row[1] for row in texts(summary)[1:]] == ["knn", "svi", "qipf_normalized"]
    text = leaderboard(summary, 100)
    assert text.count("qipf_potential") == 1
    assert "Equal to qipf_normalized in every column: qipf_potential.\n" in text


def test_the_default_fits_one_screen_and_tells_of_the_others():
    place = {name: i for i, name in enumerate(METHODS)}
    corruptions = ("rotation", "brightness", "shear", "zoom", "none")
    results = [
        result("digits_mlp", c, 2, m, 0.9 - place[m] / 100) for m in METHODS for c in corruptions
    ]
    summary = summarise(results, ["roc_auc"], "best")
    shown = summary.tables[0].methods
    assert shown[:BEST] == METHODS[:BEST]
    assert set(shown) == {*METHODS[:BEST], *WELL_KNOWN}
    assert [int(row[0]) for row in texts(summary)[1:]] == [place[name] + 1 for name in shown]
    text = leaderboard(summary, 100)
    assert len(text.splitlines()) <= 30
    assert max(map(len, text.splitlines())) <= 100
    assert f"{len(METHODS) - len(shown)} more methods were measured: --methods all\n" in text
    assert "digits_mlp on digits: 2,000 test inputs, 50.0% of the clean ones right\n" in text


def test_the_best_of_a_column_is_the_best_of_all_methods():
    names = ["gen", "energy", "knn", "she", "nci", "vim"]  # the last is not among the best
    results = [result("n", "zoom", 2, m, 0.9 - i / 10) for i, m in enumerate(names)]
    results += [result("n", "shear", 2, m, 0.5 + (m == "vim") / 10) for m in names]
    summary = summarise(results, ["roc_auc"], "best")
    assert summary.tables[0].methods == tuple(names[:BEST])
    assert bold(summary)[0] == ["gen", "0.700", "0.900"]
    assert all(not row for row in bold(summary)[1:])


def test_a_note_says_what_our_methods_are():
    results = [result("n", "zoom", 2, m, 0.5) for m in ("qipf", "qipf_plus", "knn")]
    results += [result("n", "zoom", 2, "qipf_plus_novelty", 0.6)]
    text = leaderboard(summarise(results, ["roc_auc"], "all"), 100)
    note = (
        "qipf: the paper's method; qipf_plus: LayeredQIPF; qipf_plus_novelty: LayeredQIPF's novelty"
    )
    assert f"{note}." in text.splitlines()
    assert "LayeredQIPF" not in leaderboard(summarise(results[2:3], ["roc_auc"], "all"), 100)


@pytest.mark.parametrize("accuracy", [0.0, 1.0])
def test_nothing_to_detect(accuracy):
    summary = summarise([result("n", "zoom", 2, "qipf", 0.5, accuracy)], ["roc_auc"], "best")
    assert texts(summary) == [["", "method", "mean", "zoom"]]
    assert "1 of 1 levels left out" in leaderboard(summary, 100)
