"""Posteriors, mixture weights by EM, and log-odds of the mixture."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qipf.layered import mixture
from qipf.layered.class_field import ClassField, FieldValues
from qipf.layered.metric import Metric
from qipf.layered.mixture import (
    TINY,
    likeliest_weights,
    log_odds_of_error,
    posteriors_of,
    weighted_mean,
)


def likelihoods_of(count=60, posteriors=3, seed=0):
    return torch.rand(count, posteriors, generator=torch.Generator().manual_seed(seed)).double()


def likelihood(likelihoods, weights):
    return float((likelihoods @ weights).log().mean())


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_of_two_posteriors_the_weights_are_those_of_a_grid(seed):
    likelihoods = likelihoods_of(posteriors=2, seed=seed)
    grid = torch.linspace(0, 1, 2001).double()
    values = (likelihoods @ torch.stack([1 - grid, grid])).log().mean(0)
    weights = likeliest_weights(likelihoods)
    assert likelihood(likelihoods, weights) >= float(values.max()) - 1e-4
    assert float(weights.sum()) == pytest.approx(1)


def test_no_step_lowers_the_likelihood(monkeypatch):
    likelihoods = likelihoods_of(posteriors=5) ** 3
    values = []
    for steps in range(1, 40):
        monkeypatch.setattr(mixture, "MOST_STEPS", steps)
        values.append(likelihood(likelihoods, likeliest_weights(likelihoods)))
    assert (np.diff(values) >= -1e-12).all()
    assert values[-1] > values[0]


def test_the_order_of_posteriors_does_not_matter():
    likelihoods = likelihoods_of()
    torch.testing.assert_close(
        likeliest_weights(likelihoods[:, [2, 0, 1]]), likeliest_weights(likelihoods)[[2, 0, 1]]
    )


def test_a_posterior_that_excludes_the_truth_gets_little_weight():
    likelihoods = torch.tensor([[0.5, 0.0], [0.5, 0.9], [0.5, 0.0]])
    weights = likeliest_weights(likelihoods)
    assert torch.isfinite(weights).all()
    grid = torch.linspace(0, 1, 1001)[1:].double()
    best = max(
        grid, key=lambda a: float((a * 0.5 + (1 - a) * likelihoods[:, 1].double()).log().sum())
    )
    assert float(weights[0]) == pytest.approx(float(best), abs=2e-3)
    nobody = likeliest_weights(torch.zeros(4, 2))
    assert nobody.tolist() == [0.5, 0.5]


def test_the_weighted_mean():
    posteriors = torch.rand(7, 3, 4, generator=torch.Generator().manual_seed(0))
    weights = torch.tensor([0.5, 0.2, 0.3]).double()
    expected = sum(w * posteriors[:, i].double() for i, w in enumerate(weights))
    torch.testing.assert_close(weighted_mean(posteriors, weights), expected)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(1e-6, 1), min_size=2, max_size=6), st.integers(0, 5))
def test_log_odds_of_error_is_the_log_odds_against_the_class(counts, place):
    place %= len(counts)
    p = torch.tensor([counts]).double()
    p = p / p.sum()
    own = float(p[0, place])
    expected = math.log(float(p.sum()) - own) - math.log(own) if own < 0.999 else None
    found = float(log_odds_of_error(p, torch.tensor([place])))
    if expected is not None:
        assert found == pytest.approx(expected, abs=1e-9)


def test_log_odds_of_error_at_certainty_is_finite_and_ordered():
    p = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5], [1 - 1e-18, 1e-18]]).double()
    found = log_odds_of_error(p, torch.zeros(4, dtype=torch.long))
    limit = -math.log(TINY)
    assert found.tolist() == pytest.approx([-limit, limit, 0.0, math.log(1e-18)])


def test_log_odds_of_error_rises_as_the_class_loses_probability():
    shares = torch.linspace(0, 1, 101).double()
    found = log_odds_of_error(
        torch.stack([1 - shares, shares], 1), torch.zeros(101, dtype=torch.long)
    )
    assert (found.diff() > 0).all()


# ---------------------------------------------------------------------- posteriors


def case(count=200, seed=0):
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (count,), generator=random)
    rows = torch.eye(2)[labels] + 0.2 * torch.randn(count, 2, generator=random)
    return torch.randn(count, 2, generator=random), rows, labels


LOGITS, ROWS, TRUTH = case()


def field_of(classes):
    metric = Metric(torch.zeros(2), torch.eye(2), gain_free=False)
    return ClassField(metric, metric(ROWS), TRUTH, classes, 0.3, torch.arange(200))


def test_softmax_and_fields_are_stacked():
    field = field_of(2)
    posteriors = posteriors_of(LOGITS, [field], [field(ROWS)])
    torch.testing.assert_close(posteriors[:, 0], LOGITS.double().softmax(1))
    torch.testing.assert_close(posteriors[:, 1], field(ROWS).posterior.double())
    assert posteriors_of(LOGITS, [], []).shape == (200, 1, 2)


def test_classes_without_centres_have_the_softmax_probability():
    values = FieldValues(torch.tensor([[0.9, 0.1, 1e-30, 1e-30]]), torch.zeros(1))
    softmax = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).double()
    found = posteriors_of(softmax.log(), [field_of(4)], [values])[:, 1]
    torch.testing.assert_close(found, torch.tensor([[0.63, 0.07, 0.2, 0.1]]).double())
    assert float(found.sum()) == pytest.approx(1)
