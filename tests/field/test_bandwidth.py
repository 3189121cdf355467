import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import gaussian_kde
from sklearn.metrics import roc_auc_score

from qipf import QIPF, QIPFInputError
from qipf.field.bandwidth import (
    FACTORS,
    Split,
    _screening_rows,
    choose_factor,
    nearness_to_error,
    silverman,
    to_detect,
)
from qipf.field.kernel import Coreset
from tests.conftest import make_logits

OPTIONS = {
    "orders": (1, 2, 3, 4),
    "softening": 0.0,
    "normalization": "standard",
    "engine": "attention",
}
INF = np.inf


def chosen(centers, held_out, nearness, **options):
    """The choice by one split."""
    return choose_factor([Split(Coreset.of_rows(centers), held_out)], nearness, **OPTIONS | options)


def assert_same(choice, other):
    assert choice[:3] == other[:3]
    np.testing.assert_array_equal(choice.uncertainty, other.uncertainty)
    np.testing.assert_array_equal(choice.wanted, other.wanted)


def test_silverman_is_its_formula():
    rows = make_logits(400, dimension=3).double()
    deviation = rows.numpy().std(0).mean()
    assert silverman(rows) == pytest.approx(deviation * (4 / (5 * 400)) ** (1 / 7), rel=1e-12)


def test_silverman_agrees_with_scipy_on_isotropic_data():
    rows = torch.randn(500, 1, generator=torch.Generator().manual_seed(0)).double()
    ours = silverman(rows)
    theirs = gaussian_kde(rows.numpy().T, "silverman").factor * rows.numpy().std(ddof=1)
    assert ours == pytest.approx(theirs, rel=2e-3)


def test_silverman_of_weighted_centres_equals_that_of_repeated_ones():
    rows = make_logits(20).double()
    times = torch.arange(1, 21)
    repeated = rows.repeat_interleave(times, dim=0)
    weighted = silverman(rows, times.double().log(), count=len(repeated))
    assert weighted == pytest.approx(silverman(repeated), rel=1e-12)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_silverman_of_centres_allows_for_the_spread_of_their_rows(scale):
    rows, spread = scale * make_logits(400, dimension=3).double(), scale * 2.5
    deviation = np.hypot(rows.numpy().std(0), spread).mean()
    expected = deviation * (4 / (5 * 400)) ** (1 / 7)
    assert silverman(rows, spread=spread) == pytest.approx(expected, rel=1e-12)
    assert silverman(rows) < 0.95 * expected


def test_silverman_raises_if_all_rows_are_equal():
    with pytest.raises(QIPFInputError, match="Silverman's bandwidth is zero"):
        silverman(torch.ones(5, 2))


def test_likelihood_finds_the_width_that_a_direct_search_finds():
    rows = make_logits(600, dimension=2).double()
    centers, held_out = rows[:400], rows[400:]
    width = silverman(centers)
    choice = chosen(centers, held_out, None)
    squares = torch.cdist(held_out, centers).square()
    direct = {}
    for factor in FACTORS:
        sigma = factor * width
        density = torch.exp(-squares / (2 * sigma**2)).mean(1) / (2 * np.pi * sigma**2)
        direct[factor] = float(density.log().mean())
    assert choice.criterion == "likelihood"
    assert choice.factor == max(direct, key=direct.get)
    shift = 2 * np.log(2 * np.pi) / 2  # the constant our likelihood leaves out
    for factor in FACTORS:
        assert choice.scores[factor] - shift == pytest.approx(direct[factor], rel=1e-6)


def test_ties_of_detection_are_broken_by_likelihood():
    rows = make_logits(600, dimension=2).double()
    centers, held_out = rows[:400], rows[400:]
    wrong = np.repeat([False, True], [200, 10])  # so far away that every width detects them
    held_out = torch.cat([held_out, torch.full((10, 2), 1e4, dtype=torch.float64)])
    nearness = nearness_to_error(wrong)
    choice = chosen(centers, held_out, nearness)
    by_likelihood = chosen(centers, held_out, None)
    assert set(choice.scores.values()) == {1.0}
    assert choice.factor == by_likelihood.factor


@pytest.mark.parametrize("errors", [0, 1, 9, 191, 200])
def test_with_too_few_of_either_kind_the_likelihood_is_used(errors):
    nearness = nearness_to_error(np.arange(200) < errors)
    rows = make_logits(600)
    choice = chosen(rows[:400], rows[400:], nearness)
    assert_same(choice, chosen(rows[:400], rows[400:], None))


def test_a_factor_costs_one_field_evaluation(monkeypatch):
    from qipf.field.engines.attention import AttentionEngine

    calls = []
    plain = AttentionEngine.__call__
    monkeypatch.setattr(
        AttentionEngine, "__call__", lambda self, q: calls.append(len(q)) or plain(self, q)
    )
    rows = make_logits(300)
    chosen(rows[:200], rows[200:], None)
    assert calls == [100] * len(FACTORS)


# ---------------------------------------------------------------------- errors and near errors


def margins_of(logits):
    """Difference between the two largest logits."""
    ordered = np.sort(np.asarray(logits, np.float64), 1)
    return ordered[:, -1] - ordered[:, -2]


def naive_places(nearness):
    """The rule, group by group of predictions that are equally near to an error."""
    taken = {place for place, near in enumerate(nearness) if near == INF}
    enough = min(30, len(nearness) // 10)
    for value in sorted({near for near in nearness if abs(near) < INF}, reverse=True):
        group = {place for place, near in enumerate(nearness) if near == value}
        if len(taken) + len(group) > enough:
            break
        taken |= group
    return taken if 10 <= len(taken) <= len(nearness) - 10 else None


NEARNESSES = st.lists(
    st.one_of(st.sampled_from([INF, -INF, 0.0, -1.0]), st.floats(-100.0, 0.0)),
    min_size=1,
    max_size=20,
)


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(
    some=NEARNESSES, errors=st.integers(0, 40), others=st.integers(0, 400), seed=st.integers(0, 99)
)
def test_what_is_to_be_detected_follows_the_rule(some, errors, others, seed):
    random = np.random.default_rng(seed)
    nearness = np.concatenate([some, np.full(errors, INF), -200 * random.random(others) - 1])
    random.shuffle(nearness)
    wanted, criterion = to_detect(nearness)
    expected = naive_places(nearness.tolist())
    if expected is None:
        assert (wanted, criterion) == (None, "likelihood")
        return
    assert set(np.flatnonzero(wanted)) == expected
    only_errors = all(nearness[place] == INF for place in expected)
    assert criterion == ("error detection" if only_errors else "errors and near errors")
    # neither the order of the rows nor the unit of the logits matters
    order = random.permutation(nearness.size)
    np.testing.assert_array_equal(to_detect(nearness[order])[0], wanted[order])
    np.testing.assert_array_equal(to_detect(nearness * 4)[0], wanted)


@pytest.mark.parametrize(
    ("rows", "errors", "expected", "criterion"),
    [
        (10_000, 0, 30, "errors and near errors"),
        (10_000, 6, 30, "errors and near errors"),
        (10_000, 29, 30, "errors and near errors"),
        (10_000, 30, 30, "error detection"),
        (10_000, 700, 700, "error detection"),
        (240, 0, 24, "errors and near errors"),
        (240, 24, 24, "error detection"),
        (100, 3, 10, "errors and near errors"),
        (99, 0, None, "likelihood"),  # a tenth would be nine
        (99, 9, None, "likelihood"),
        (99, 10, 10, "error detection"),
        (100, 91, None, "likelihood"),
        (5, 0, None, "likelihood"),
    ],
)
def test_near_errors_are_added_up_to_a_fixed_number(rows, errors, expected, criterion):
    nearness = -np.random.default_rng(0).permutation(rows) / 7
    nearness[:errors] = INF
    wanted, found = to_detect(nearness)
    assert found == criterion
    assert (None if wanted is None else wanted.sum()) == expected
    if wanted is not None:
        assert nearness[wanted].min() > nearness[~wanted].max()


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64]
)
def test_nearness_is_minus_the_margin_in_every_dtype(dtype):
    logits = (8 * make_logits(300)).to(dtype)
    wrong = np.arange(300) % 5 == 0
    found = nearness_to_error(wrong, logits)
    assert found.dtype == np.float64
    expected = np.where(wrong, INF, -margins_of(logits.double()))
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(nearness_to_error(wrong), np.where(wrong, INF, -INF))


def test_nearness_in_the_extremes():
    tied = torch.tensor([[2.0, 2.0], [2.0, 2.0]])
    np.testing.assert_array_equal(nearness_to_error(np.array([True, False]), tied), [INF, 0.0])
    alone = torch.tensor([[2.0], [-3.0], [3.0]])  # the other class has the logit 0
    wrong = np.array([False, False, True])
    np.testing.assert_array_equal(nearness_to_error(wrong, alone), [-2.0, -3.0, INF])
    huge = torch.tensor([[1e300, -1e300], [1.7e308, -1.7e308]], dtype=torch.float64)
    np.testing.assert_array_equal(nearness_to_error(np.array([False, False]), huge), [-2e300, -INF])
    endless = torch.tensor([[INF, INF], [INF, 0.0], [torch.nan, 1.0]])
    np.testing.assert_array_equal(nearness_to_error(np.zeros(3, bool), endless), [-INF] * 3)
    asks = torch.tensor([[5.0, 1.0]], requires_grad=True)
    np.testing.assert_array_equal(nearness_to_error(np.array([False]), asks), [-4.0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("every", "criterion"), [(75, "errors and near errors"), (6, "error detection")]
)
def test_detection_finds_the_width_that_a_direct_search_finds(every, criterion):
    rows = make_logits(900).double()
    centers, held_out = rows[:600], rows[600:]
    wrong = np.arange(300) % every == 0
    nearness = nearness_to_error(wrong, held_out)
    width = silverman(centers)
    choice = chosen(centers, held_out, nearness)
    order = sorted(range(300), key=lambda row: (not wrong[row], margins_of(held_out)[row]))
    wanted = np.isin(np.arange(300), order[: max(30, wrong.sum())])
    fields = {f: QIPF(bandwidth=f * width, engine="reference").fit(centers) for f in FACTORS}
    direct = {
        factor: roc_auc_score(wanted, field.uncertainty(held_out).numpy())
        for factor, field in fields.items()
    }
    assert choice.criterion == criterion
    assert choice.factor == max(direct, key=direct.get)
    assert choice.scores == pytest.approx(direct, abs=1e-9)
    # only the order of the nearness matters
    for monotone in (np.sinh(nearness / 50), 3 * nearness):
        assert_same(chosen(centers, held_out, monotone), choice)


@pytest.mark.parametrize("labelled", [False, True])
def test_of_many_rows_a_sample_selects_the_factors_that_all_rows_compare(labelled, monkeypatch):
    rows = make_logits(900).double()
    centers, held_out = rows[:600], rows[600:]
    nearness = nearness_to_error(np.arange(300) % 75 == 0, held_out) if labelled else None
    whole = chosen(centers, held_out, nearness)
    monkeypatch.setattr("qipf.field.bandwidth.SCREENED", 80)
    screened = chosen(centers, held_out, nearness)
    assert len(screened.scores) == 2
    assert screened.scores == {factor: whole.scores[factor] for factor in screened.scores}
    assert_same(screened._replace(scores=whole.scores), whole)
    # one factor, and few rows, are not screened
    assert len(chosen(centers, held_out, nearness, factors=(2.0,)).scores) == 1
    few = None if nearness is None else nearness[:160]
    assert len(chosen(centers, held_out[:160], few).scores) == len(FACTORS)


def test_the_sample_has_rows_of_both_kinds(monkeypatch):
    monkeypatch.setattr("qipf.field.bandwidth.SCREENED", 3)
    wanted = np.array([0, 0, 0, 0, 1, 0, 1, 0], bool)
    assert _screening_rows(wanted).tolist() == [4, 6, 0, 1, 2]
    assert _screening_rows(None).tolist() == [0, 1, 2, 3, 4, 5]


def test_with_enough_errors_near_errors_are_not_used():
    rows = make_logits(900)
    wrong = margins_of(rows[600:]) + np.random.default_rng(0).normal(scale=5.0, size=300) < 0
    assert wrong.sum() >= 30
    choices = [
        chosen(rows[:600], rows[600:], nearness_to_error(wrong, logits))
        for logits in (None, rows[600:])
    ]
    assert_same(*choices)
    assert choices[0].criterion == "error detection"


def near_duplicates(count, seed):
    """Logits of an overfitted network: few distinct points, some between two classes."""
    places = np.random.default_rng(99)
    start = places.integers(5, size=300)
    end = (start + places.integers(1, 5, size=300)) % 5
    way = np.minimum(places.exponential(0.1, 300), 0.48)[:, None]
    corners = 10 * np.eye(5)
    rng = np.random.default_rng(seed)
    chosen = rng.integers(300, size=count)
    return ((1 - way) * corners[start] + way * corners[end])[chosen] + rng.normal(
        scale=0.02, size=(count, 5)
    )


@pytest.mark.slow
def test_near_errors_choose_a_width_that_detects_later_errors():
    train, later = near_duplicates(2000, seed=0), near_duplicates(2000, seed=10)
    by_nearness = QIPF().fit(train, train.argmax(1))  # not one error
    by_likelihood = QIPF().fit(train, wrong=np.zeros(2000, bool))
    assert by_nearness.bandwidth_criterion_ == "errors and near errors"
    assert by_likelihood.bandwidth_criterion_ == "likelihood"
    erred = np.random.default_rng(3).random(2000) < np.exp(-margins_of(later)) / 2

    def found(field):
        return roc_auc_score(erred, field.uncertainty(later))

    width = by_nearness.bandwidth_ / by_nearness.bandwidth_factor_
    found_by = {factor: found(QIPF(bandwidth=factor * width).fit(train)) for factor in FACTORS}
    assert by_nearness.bandwidth_factor_ == max(found_by, key=found_by.get)
    assert by_likelihood.bandwidth_factor_ == min(FACTORS)
    assert found(by_nearness) > 0.95
    assert found(by_likelihood) < 0.5
