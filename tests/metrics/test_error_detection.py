import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import ArrayLike, NDArray
from scipy.stats import pointbiserialr
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from qipf.errors import QIPFInputError
from qipf.metrics import error_detection as evaluation
from qipf.metrics.error_detection import (
    HIGHER_IS_BETTER,
    augrc,
    aurc,
    bootstrap,
    chance,
    evaluate,
    fpr95,
    naurc,
    point_biserial,
    pr_auc,
    pr_auc_trapezoid,
    roc_auc,
)

Scores = NDArray[np.float64]
Wrong = NDArray[np.bool_]


def sample(n: int, seed: int, tied: bool) -> tuple[Scores, Wrong]:
    rng = np.random.default_rng(seed)
    uncertainty = rng.normal(size=n)
    wrong = rng.random(n) < 1 / (1 + np.exp(-uncertainty))
    return (np.round(uncertainty * 2) / 2 if tied else uncertainty), wrong


SAMPLES = [sample(n, seed, tied) for n in (12, 500) for seed in (0, 1) for tied in (0, 1)]


@st.composite
def outcomes(draw: st.DrawFn, least: int = 2) -> tuple[Scores, Wrong]:
    """Uncertainties on a coarse grid, so that ties abound, with errors and successes both."""
    n = draw(st.integers(least, 30))
    uncertainty = draw(hnp.arrays(np.int64, n, elements=st.integers(-8, 8))) / 4
    wrong = draw(hnp.arrays(np.bool_, n))
    assume(0 < wrong.sum() < n)
    return uncertainty, wrong


@pytest.mark.parametrize(("uncertainty", "wrong"), SAMPLES)
def test_metrics_equal_scikit_learn_s_and_scipy_s(uncertainty: Scores, wrong: Wrong) -> None:
    assert roc_auc(uncertainty, wrong) == pytest.approx(
        roc_auc_score(wrong, uncertainty), rel=1e-12
    )
    assert pr_auc(uncertainty, wrong) == pytest.approx(
        average_precision_score(wrong, uncertainty), rel=1e-12
    )
    assert point_biserial(uncertainty, wrong) == pytest.approx(
        pointbiserialr(wrong, uncertainty).statistic, rel=1e-12
    )
    false_rate, true_rate, _ = roc_curve(wrong, uncertainty, drop_intermediate=False)
    assert fpr95(uncertainty, wrong) == false_rate[np.argmax(true_rate >= 0.95)]


@pytest.mark.slow
@given(outcomes())
@settings(deadline=None, max_examples=40)
def test_metrics_equal_their_definitions(data: tuple[Scores, Wrong]) -> None:
    uncertainty, wrong = data
    errors, successes = uncertainty[wrong], uncertainty[~wrong]
    won = np.mean([(e > s) + (e == s) / 2 for e in errors for s in successes])
    assert roc_auc(uncertainty, wrong) == pytest.approx(won, abs=1e-12)
    thresholds = sorted(set(uncertainty), reverse=True)
    precision = [wrong[uncertainty >= t].mean() for t in thresholds]
    gained = [(errors == t).mean() for t in thresholds]
    assert pr_auc(uncertainty, wrong) == pytest.approx(np.dot(precision, gained), abs=1e-12)
    middle = (np.array([1.0, *precision[:-1]]) + precision) / 2
    assert pr_auc_trapezoid(uncertainty, wrong) == pytest.approx(np.dot(middle, gained), abs=1e-12)
    enough = max(t for t in thresholds if 20 * (errors >= t).sum() >= 19 * len(errors))
    assert fpr95(uncertainty, wrong) == pytest.approx((successes >= enough).mean(), abs=1e-12)


def direct_aurc(wrong_in_order: ArrayLike) -> float:
    flags = np.asarray(wrong_in_order, dtype=float)
    return float(np.mean([flags[:k].mean() for k in range(1, len(flags) + 1)]))


@pytest.mark.parametrize(("uncertainty", "wrong"), SAMPLES[::2])
def test_aurc_without_ties_is_the_direct_sum(uncertainty: Scores, wrong: Wrong) -> None:
    assert len(set(uncertainty)) == len(uncertainty)
    expected = direct_aurc(wrong[np.argsort(uncertainty)])
    assert aurc(uncertainty, wrong) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("wrong", list(itertools.product([False, True], repeat=5)))
@pytest.mark.parametrize("uncertainty", [[0, 0, 0, 0, 0], [0, 1, 1, 1, 2], [3, 3, 1, 1, 1]])
def test_aurc_with_ties_is_the_mean_over_all_orders(
    uncertainty: list[int], wrong: tuple[bool, ...]
) -> None:
    orders = [
        order
        for order in itertools.permutations(range(5))
        if all(uncertainty[i] <= uncertainty[j] for i, j in itertools.pairwise(order))
    ]
    expected = np.mean([direct_aurc([wrong[i] for i in order]) for order in orders])
    assert aurc(uncertainty, wrong) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_augrc_and_naurc_are_their_direct_sums(seed: int) -> None:
    uncertainty, wrong = sample(40, seed, tied=False)
    in_order = wrong[np.argsort(uncertainty)]
    errors = [sum(in_order[:k]) for k in range(1, 41)]
    assert augrc(uncertainty, wrong) == pytest.approx(sum(e / 40 for e in errors) / 40, rel=1e-12)
    oracle, rate = direct_aurc(np.sort(wrong)), wrong.mean()
    expected = (direct_aurc(in_order) - oracle) / (rate - oracle)
    assert naurc(uncertainty, wrong) == pytest.approx(expected, rel=1e-12)


def test_augrc_with_ties_is_the_mean_over_all_orders() -> None:
    uncertainty, wrong = [0, 1, 1, 1, 2], [True, False, True, True, False]
    orders = [(0, *middle, 4) for middle in itertools.permutations((1, 2, 3))]
    sums = [sum(sum(wrong[i] for i in order[:k]) / 5 for k in range(1, 6)) / 5 for order in orders]
    assert augrc(uncertainty, wrong) == pytest.approx(np.mean(sums), rel=1e-12)


@given(outcomes(), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=25)
def test_the_order_of_rows_does_not_matter(data: tuple[Scores, Wrong], random: object) -> None:
    uncertainty, wrong = data
    order = list(range(len(wrong)))
    random.shuffle(order)  # type: ignore[attr-defined]
    shuffled = evaluate(uncertainty[order], wrong[order])
    assert shuffled == pytest.approx(evaluate(uncertainty, wrong), abs=1e-12)


@given(outcomes(), st.sampled_from([np.exp, np.arctan, lambda u: u**3, lambda u: 5 * u - 300]))
@settings(deadline=None, max_examples=25)
def test_rank_metrics_survive_rising_transforms(
    data: tuple[Scores, Wrong], rising: Callable[[Scores], Scores]
) -> None:
    uncertainty, wrong = data
    for metric in (roc_auc, pr_auc, pr_auc_trapezoid, aurc, fpr95):
        assert metric(rising(uncertainty), wrong) == metric(uncertainty, wrong)


@given(outcomes())
@settings(deadline=None, max_examples=25)
def test_reversal_mirrors_auc_and_correlation(data: tuple[Scores, Wrong]) -> None:
    uncertainty, wrong = data
    assert roc_auc(-uncertainty, wrong) == pytest.approx(1 - roc_auc(uncertainty, wrong))
    mirrored = point_biserial(-uncertainty, wrong)
    assert mirrored == pytest.approx(-point_biserial(uncertainty, wrong), abs=1e-12)


@given(outcomes(), st.floats(-1e6, 1e6), st.sampled_from([1e-12, 1.0, 3.7, 1e9]))
@settings(deadline=None, max_examples=25)
def test_correlation_knows_no_origin_and_no_scale(
    data: tuple[Scores, Wrong], origin: float, scale: float
) -> None:
    uncertainty, wrong = data
    moved = point_biserial(uncertainty * scale + origin * scale, wrong)
    assert moved == pytest.approx(point_biserial(uncertainty, wrong), abs=1e-7)


def test_a_perfect_detector_and_its_opposite() -> None:
    wrong = np.array([False] * 6 + [True] * 4)
    best = evaluate(np.arange(10), wrong)
    oracle = direct_aurc(wrong)
    assert best == {
        "accuracy": 0.6,
        "roc_auc": 1.0,
        "pr_auc": 1.0,
        "pr_auc_trapezoid": 1.0,
        "point_biserial": pytest.approx(pointbiserialr(wrong, np.arange(10)).statistic),
        "aurc": pytest.approx(oracle),
        "augrc": pytest.approx((1 + 2 + 3 + 4) / 100),
        "naurc": pytest.approx(0.0, abs=1e-15),
        "fpr95": 0.0,
    }
    worst = evaluate(-np.arange(10), wrong)
    assert (worst["roc_auc"], worst["fpr95"]) == (0.0, 1.0)
    assert worst["aurc"] == pytest.approx(direct_aurc(wrong[::-1]))
    for name, higher in HIGHER_IS_BETTER.items():
        assert (best[name] > worst[name]) == higher


def test_evaluate_is_the_accuracy_and_every_metric() -> None:
    uncertainty, wrong = sample(300, 5, tied=True)
    scores = evaluate(uncertainty, wrong)
    assert list(scores) == ["accuracy", *HIGHER_IS_BETTER]
    assert scores.pop("accuracy") == pytest.approx(1 - wrong.mean())
    for name, value in scores.items():
        assert value == getattr(evaluation, name)(uncertainty, wrong)
        assert type(value) is float


@pytest.mark.parametrize("n", [1, 2, 7])
def test_no_errors_and_only_errors_have_answers(n: int) -> None:
    uncertainty = np.arange(n)
    nan = pytest.approx(math.nan, nan_ok=True)
    undefined = {"roc_auc": nan, "point_biserial": nan, "naurc": nan, "fpr95": nan}
    areas = ("pr_auc", "pr_auc_trapezoid", "aurc", "augrc")
    none = evaluate(uncertainty, np.zeros(n, bool))
    assert none == {"accuracy": 1.0, **dict.fromkeys(areas, 0.0), **undefined}
    only = evaluate(uncertainty, np.ones(n, bool))
    half = {"augrc": pytest.approx((n + 1) / (2 * n))}
    assert only == {"accuracy": 0.0, **dict.fromkeys(areas, 1.0), **half, **undefined}


@pytest.mark.parametrize("value", [0.0, 0.1, -1e300])
def test_equal_uncertainty_knows_nothing(value: float) -> None:
    wrong = np.array([True, False, False, False, True, False, False])
    scores = evaluate(np.full(7, value), wrong)
    rate = pytest.approx(2 / 7)
    assert scores == {
        "accuracy": pytest.approx(5 / 7),
        "roc_auc": 0.5,
        "pr_auc": rate,
        "pr_auc_trapezoid": pytest.approx((1 + 2 / 7) / 2),
        "point_biserial": 0.0,
        "aurc": rate,
        "augrc": pytest.approx(2 / 7 * 4 / 7),
        "naurc": pytest.approx(1.0),
        "fpr95": 1.0,
    }


@pytest.mark.parametrize(
    "uncertainty",
    [
        [-1.7e308, -1e308, 1e308, 1.7e308],
        [5e-324, 1e-323, 2e-323, 2.5e-323],
        [1e8 + 1e-8 * k for k in (0, 2, 4, 6)],
        [0.0, 5e-324, 0.5, 1.0],
    ],
    ids=["huge", "tiny", "crowded", "both"],
)
def test_extreme_uncertainties_are_no_trouble(uncertainty: list[float]) -> None:
    wrong = [False, True, False, True]
    scores = evaluate(uncertainty, wrong)
    assert scores.pop("point_biserial") == pytest.approx(exact_correlation(uncertainty, wrong))
    plain = evaluate([0, 1, 2, 3], wrong)
    assert scores == {name: plain[name] for name in scores}


def exact_correlation(uncertainty: list[float], wrong: list[bool]) -> float:
    """In fractions, rounded once at the end."""
    u = [Fraction(value) - sum(map(Fraction, uncertainty)) / len(wrong) for value in uncertainty]
    w = [Fraction(flag) - Fraction(sum(wrong), len(wrong)) for flag in wrong]
    product = sum(x * y for x, y in zip(u, w, strict=True))
    square = product**2 / sum(x * x for x in u) / sum(y * y for y in w)
    return math.copysign(math.sqrt(square), product)


def test_95_percent_is_met_exactly() -> None:
    # of 20 errors, 19 are 95 %: the one that hides below all successes need not be found
    uncertainty = np.r_[np.arange(20, 40)[1:], -1, np.arange(10)]
    wrong = np.r_[np.ones(20, bool), np.zeros(10, bool)]
    assert fpr95(uncertainty, wrong) == 0.0
    # of 19 errors, 18 are less than 95 %
    assert fpr95(uncertainty[1:], wrong[1:]) == 1.0


def test_zero_and_its_negative_are_tied() -> None:
    assert roc_auc([0.0, -0.0], [True, False]) == 0.5


def test_flags_may_be_zeros_and_ones() -> None:
    assert roc_auc([1, 2, 3], [0, 1, 1]) == roc_auc([1, 2, 3], [False, True, True]) == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("metric", HIGHER_IS_BETTER)
def test_bootstrap_equals_resampling_rows(metric: str) -> None:
    uncertainty, wrong = sample(60, 3, tied=True)
    order = np.lexsort([uncertainty, wrong])  # the order in which bootstrap counts the rows
    uncertainty, wrong = uncertainty[order], wrong[order]
    interval = bootstrap(uncertainty, wrong, metric, draws=50, confidence=0.9)
    compute = getattr(evaluation, metric)
    rng = np.random.default_rng(0)
    rows = [rng.integers(60, size=60) for _ in range(50)]
    naive = np.quantile([compute(uncertainty[r], wrong[r]) for r in rows], [0.05, 0.95])
    assert interval.estimate == compute(uncertainty, wrong)
    assert [interval.low, interval.high] == pytest.approx(naive, rel=1e-12)


def test_bootstrap_repeats_itself_and_widens_with_confidence() -> None:
    uncertainty, wrong = sample(200, 4, tied=False)
    first = bootstrap(uncertainty, wrong, "roc_auc", draws=50)
    assert bootstrap(uncertainty, wrong, "roc_auc", draws=50) == first
    assert bootstrap(uncertainty, wrong, "roc_auc", draws=50, random_state=1) != first
    wide = bootstrap(uncertainty, wrong, "roc_auc", draws=50, confidence=0.99)
    assert wide.low < first.low < first.estimate < first.high < wide.high


def test_bootstrap_leaves_out_draws_without_an_answer() -> None:
    # one error among three: about 30 % of the draws miss it, 4 % hold nothing else
    interval = bootstrap([1.0, 2.0, 3.0], [False, False, True], "roc_auc", draws=60)
    assert interval == (1.0, 1.0, 1.0)
    undefined = bootstrap([1.0, 2.0], [False, False], "roc_auc")
    assert all(math.isnan(value) for value in undefined)
    none_left = bootstrap([1.0, 2.0], [False, True], "roc_auc", draws=1, random_state=MISSING)
    assert none_left.estimate == 1.0
    assert math.isnan(none_left.low)
    assert math.isnan(none_left.high)


#: A seed whose first draw of two rows takes the same row twice.
MISSING = next(s for s in range(99) if len(set(np.random.default_rng(s).integers(2, size=2))) == 1)


@pytest.mark.parametrize(
    ("uncertainty", "wrong", "message"),
    [
        ([], [], "uncertainty is empty"),
        ([[1.0, 2.0]], [[True, False]], "one number per prediction"),
        ([1.0, 2.0], [True], "wrong must have the shape of uncertainty"),
        ([1.0, 2.0], [0, 3], "wrong must hold booleans"),
        ([1.0, math.nan, -math.inf], [True, False, True], "2 values that are not finite"),
    ],
    ids=["empty", "two axes", "lengths", "not flags", "not finite"],
)
@pytest.mark.parametrize(
    "function", [evaluate, *(getattr(evaluation, name) for name in HIGHER_IS_BETTER)]
)
def test_invalid_arrays_are_errors(
    function: Callable[..., object], uncertainty: ArrayLike, wrong: ArrayLike, message: str
) -> None:
    with pytest.raises(QIPFInputError, match=message):
        function(uncertainty, wrong)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": "fpr_95"}, "Did you mean 'fpr95'"),
        ({"draws": 0}, "draws must be at least 1"),
        ({"confidence": 95}, "confidence must lie between 0 and 1"),
    ],
)
def test_invalid_bootstrap_arguments_are_errors(options: dict[str, object], message: str) -> None:
    with pytest.raises(QIPFInputError, match=message):
        bootstrap([1.0, 2.0], [False, True], **{"metric": "roc_auc", **options})  # type: ignore[arg-type]


def test_chance_of_every_metric() -> None:
    """Known values; elsewhere the error rate, or half of it."""
    rates = [0.1, 0.3]
    known = {"roc_auc": 0.5, "point_biserial": 0.0, "fpr95": 0.95, "naurc": 1.0}
    for metric in HIGHER_IS_BETTER:
        expected = [known.get(metric, rate / 2 if metric == "augrc" else rate) for rate in rates]
        assert chance(metric, rates) == expected


def test_the_correlation_of_the_largest_numbers() -> None:
    wrong = [False, True, False, True]
    small = np.array([-1.7, -0.5, 1.2, 1.7])
    assert point_biserial(1e308 * small, wrong) == pytest.approx(point_biserial(small, wrong))
