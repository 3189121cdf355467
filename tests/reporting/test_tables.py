import pytest

from qipf.bench.results import reported
from qipf.bench.suites import PAPER_CORRUPTIONS, PAPER_METHODS
from qipf.errors import QIPFInputError
from qipf.reporting.tables import Cell, select_methods, summarise


def result(network, corruption, level, method, roc_auc, accuracy=0.5, seed=0, **more):
    return {
        "network": network,
        "dataset": network.split("_")[0],
        "corruption": corruption,
        "level": level,
        "method": method,
        "seed": seed,
        "accuracy": accuracy,
        "roc_auc": roc_auc,
        "pr_auc": 0.5,
        "point_biserial": 0.1,
        "aurc": 0.3,
        "fpr95": 0.9,
        "test_images": 2000,
        "dataset_note": "",
        **more,
    }


def row(results, methods="all", metric="roc_auc"):
    (table,) = summarise(results, [metric], methods).tables
    (only,) = table.rows
    return only


def test_mean_and_deviation_over_levels_by_hand():
    values = {0.5: 0.6, 2.0: 0.8, 2.5: 1.0}
    cell = row([result("n", "zoom", k, "qipf", v) for k, v in values.items()]).ours["qipf"]
    assert cell.mean == pytest.approx(0.8)
    # the squares of -0.2, 0, 0.2 have the mean 0.08 / 3
    assert cell.std == pytest.approx((0.08 / 3) ** 0.5)
    assert (cell.levels, cell.best) == (3, True)


def test_seeds_are_averaged_before_levels():
    cell = row(
        [
            result("n", "zoom", 0.5, "qipf", 0.5, seed=0),
            result("n", "zoom", 0.5, "qipf", 0.7, seed=1),
            result("n", "zoom", 2.0, "qipf", 0.8, seed=0),
        ]
    ).ours["qipf"]
    assert cell.mean == pytest.approx(0.7)
    assert cell.std == pytest.approx(0.1)


def test_cells_with_fewer_seeds_or_levels_than_others_are_marked():
    results = [
        *(result("n", "zoom", k, "qipf", 0.6 + 0.1 * s, seed=s) for k in (1, 2) for s in (0, 1, 2)),
        *(result("n", "zoom", k, "knn", 0.9) for k in (1, 2)),
        *(result("n", "zoom", 1, "svi", 0.9, seed=s) for s in (0, 1, 2)),
    ]
    only = row(results)
    assert {m: only.mark(m) for m in only.ours} == {
        "qipf": "", "knn": "†", "svi": "*",
    }  # fmt: skip
    assert only.ours["qipf"].mean == pytest.approx(0.7)
    assert only.ours["qipf"].seed_std == pytest.approx(0.1)  # of 0.6, 0.7 and 0.8
    assert only.ours["knn"].seed_std is None
    notes = summarise(results, methods="all").notes
    assert notes[0].startswith(
        "Mean ± standard deviation over a corruption's levels (each the mean over the seeds "
        "0, 1, 2); "
    )
    assert notes[1:] == (
        "* not all levels measured yet.",
        "† fewer seeds than other methods of the same row: not the same average.",
    )


def test_a_level_without_errors_for_one_seed_rests_on_the_others():
    results = [
        result("n", "zoom", 1, "qipf", 0.6, seed=0),
        result("n", "zoom", 1, "qipf", None, seed=1, accuracy=1.0),
    ]
    only = row(results)
    assert (only.ours["qipf"].mean, only.left_out) == (0.6, 0)
    assert only.mark("qipf") == ""


def test_levels_with_nothing_to_detect_are_left_out_of_every_metric_and_counted():
    results = [
        result("n", "zoom", 0.5, "qipf", 0.6, pr_auc=0.4),
        result("n", "zoom", 2.0, "qipf", None, accuracy=1.0, pr_auc=0.0),
        result("n", "zoom", 2.5, "qipf", None, accuracy=0.0, pr_auc=1.0),
    ]
    for metric, value in (("roc_auc", 0.6), ("pr_auc", 0.4)):
        only = row(results, metric=metric)
        assert only.ours["qipf"] == Cell(value, 0.0, 1, True, measured=1)
        assert (only.levels, only.left_out) == (3, 2)
    assert (
        "n under zoom: 2 of 3 levels left out, having no errors or only errors to detect."
        in summarise(results).notes
    )
    assert row(results[1:]).ours == {}


def test_the_best_is_marked_in_the_metric_s_own_direction_and_ties_all():
    results = [
        result("n", "zoom", 1, "qipf", 0.7, fpr95=0.2),
        result("n", "zoom", 1, "entropy", 0.7, fpr95=0.1),
        result("n", "zoom", 1, "knn", 0.6, fpr95=0.3),
    ]
    assert {m: c.best for m, c in row(results).ours.items()} == {
        "qipf": True,
        "entropy": True,
        "knn": False,
    }
    best = [m for m, c in row(results, metric="fpr95").ours.items() if c.best]
    assert best == ["entropy"]


def test_wins_count_rows_but_not_the_clean_images():
    results = [
        result("a", "zoom", 1, "qipf", 0.7),
        result("a", "zoom", 1, "entropy", 0.7),
        result("a", "shear", 1, "qipf", 0.8),
        result("a", "shear", 1, "entropy", 0.7),
        result("a", "none", 0, "qipf", 0.1),
        result("a", "none", 0, "entropy", 0.9),
        result("b", "zoom", 1, "qipf", 0.7),  # alone: no contest
    ]
    (table,) = summarise(results, ["roc_auc"], "all").tables
    assert table.contests.wins == {"qipf": 2, "entropy": 1}
    assert len(table.contests.rows) == 2
    assert [(r.corruption, r.network) for r in table.rows] == [
        ("shear", "a"),
        ("zoom", "a"),
        ("zoom", "b"),
        ("none", "a"),
    ]


def test_the_paper_s_values_stand_beside_ours():
    only = row([result("mnist_lenet", "rotation", 15, m, 0.5) for m in ("qipf", "entropy")])
    assert only.paper == {"qipf": Cell(0.74, 0.07, None, True)}
    assert set(only.ours) == {"qipf", "entropy"}


def test_the_paper_s_own_count_is_14_of_16_twice():
    results = [
        result(network, corruption, 1, method, 0.5)
        for network in ("mnist_lenet", "kmnist10k_lenet", "cifar10_lenet", "cifar10_vgg3")
        for corruption in PAPER_CORRUPTIONS
        for method in PAPER_METHODS
    ]
    summary = summarise(results)
    roc, pr, biserial = summary.tables
    assert (roc.paper_contests.wins["qipf"], len(roc.paper_contests.rows)) == (14, 16)
    assert (pr.paper_contests.wins["qipf"], len(pr.paper_contests.rows)) == (14, 16)
    assert len(biserial.paper_contests.rows) == 12
    assert roc.methods == PAPER_METHODS
    assert [line.paper_accuracy for line in summary.networks] == [0.986, 0.919, 0.515, 0.885]
    assert (
        "The paper's numbers beside kmnist10k_lenet are those of kmnist_lenet, which had the full "
        "training set: not the same data." in summary.notes
    )
    kmnist = next(r for r in roc.rows if r.network == "kmnist10k_lenet")
    expected = reported("roc_auc", "rotation", "kmnist_lenet", "svi")
    assert (kmnist.paper["svi"].mean, kmnist.paper["svi"].std) == expected


def test_accuracy_is_that_of_the_clean_images():
    results = [
        result("n", "none", 0, "qipf", 0.9, accuracy=0.98),
        result("n", "none", 0, "knn", 0.9, accuracy=0.98),
        result("n", "none", 0, "qipf", 0.9, accuracy=0.96, seed=1),
        result("n", "zoom", 2, "qipf", 0.9, accuracy=0.5),
    ]
    (line,) = summarise(results).networks
    assert line.accuracy == pytest.approx(0.97)
    (line,) = summarise(results[3:]).networks
    assert line.accuracy is None


def test_notes_tell_datasets_unfinished_cells_and_hidden_methods():
    results = [
        result("n", "zoom", 1, "qipf", 0.7, dataset="kmnist10k", dataset_note="a split"),
        result("n", "zoom", 2, "qipf", 0.7, dataset="kmnist10k", dataset_note="a split"),
        result("n", "zoom", 1, "svi", 0.7, dataset="kmnist10k", dataset_note="a split"),
        result("n", "zoom", 1, "knn", 0.7, dataset="kmnist10k", dataset_note="a split"),
    ]
    assert summarise(results).notes == (
        "Mean ± standard deviation over a corruption's levels, seed 0; the best of each row in "
        "bold.",
        "kmnist10k is a split.",
        "* not all levels measured yet.",
        "1 more methods were measured: --methods all",
    )


@pytest.mark.parametrize(
    ("given", "phrase"),
    [
        ({"results": []}, "There are no results yet"),
        ({"metrics": ["auroc"]}, "Unknown metric 'auroc'. Did you mean 'aurc'"),
        ({"methods": ["qipf"]}, "Unknown method of this run 'qipf'"),
    ],
)
def test_unknown_names_and_empty_results_raise(given, phrase):
    with pytest.raises(QIPFInputError, match=phrase):
        summarise(**{"results": [result("n", "zoom", 1, "knn", 0.5)], **given})


def test_methods_are_selected_in_the_papers_order():
    measured = ["own", "knn", "qipf", "entropy"]
    assert select_methods(measured, "all") == ["qipf", "entropy", "knn", "own"]
    assert select_methods(measured, "paper") == ["qipf"]
    assert select_methods(measured[1:2], "paper") == ["knn"]
    assert select_methods(measured, ["knn", "own", "knn"]) == ["knn", "own"]
