"""Log-odds of error and of novelty: against scikit-learn, laws, extremes."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from qipf.layered.error_model import (
    PENALTY,
    LogOdds,
    evidence_of_novelty,
    fit_log_odds,
    standardised_mean,
    unfitted_scores,
)


def case(count=400, seed=0):
    """Two columns that tell of the positive rows, on different scales."""
    rng = np.random.default_rng(seed)
    columns = rng.normal(size=(count, 2)) * [1.0, 20.0] + [3.0, -50.0]
    odds = 1.5 * (columns[:, 0] - 3) + 0.05 * (columns[:, 1] + 50) - 1
    positive = rng.random(count) < 1 / (1 + np.exp(-odds))
    return torch.from_numpy(columns), torch.from_numpy(positive)


@pytest.mark.parametrize("balanced", [False, True])
def test_it_is_logistic_regression_of_standardised_columns(balanced):
    columns, positive = case()
    found = fit_log_odds(columns, positive, balanced=balanced)
    x = columns.numpy()
    x = (x - x.mean(0)) / x.std(0)
    regression = LogisticRegression(
        C=1 / (PENALTY * len(x)), class_weight="balanced" if balanced else None, tol=1e-10
    )
    regression.fit(x, positive.numpy())
    np.testing.assert_allclose(found(columns), regression.decision_function(x), atol=1e-4)


def test_no_slope_is_negative_and_that_of_a_misleading_column_is_zero():
    columns, positive = case()
    found = fit_log_odds(columns * torch.tensor([1.0, -1.0]), positive)
    assert found.slopes[0] > 0
    assert found.slopes[1] == 0
    alone = fit_log_odds(columns[:, :1], positive)
    assert float(found.slopes[0]) == pytest.approx(float(alone.slopes[0]), rel=1e-4)


def test_the_mean_probability_is_the_share_of_positive_rows():
    """The constant is not penalised."""
    columns, positive = case()
    found = fit_log_odds(columns, positive)
    mean = float(torch.sigmoid(found(columns)).mean())
    assert mean == pytest.approx(float(positive.double().mean()), abs=1e-5)


def test_units_of_a_column_do_not_matter():
    columns, positive = case()
    scale = torch.tensor([1e-3, 1e6]).double()
    one, other = fit_log_odds(columns, positive), fit_log_odds(columns * scale, positive)
    torch.testing.assert_close(one(columns), other(columns * scale), rtol=1e-5, atol=1e-5)


def test_nothing_to_fit():
    columns, positive = case()
    assert fit_log_odds(columns, torch.ones_like(positive)) is None
    assert fit_log_odds(columns, torch.zeros_like(positive)) is None
    assert fit_log_odds(torch.full_like(columns, 7.0), positive) is None
    assert fit_log_odds(-columns, positive) is None


def test_a_constant_column_has_no_slope():
    columns, positive = case()
    wide = torch.cat([columns, torch.full((len(columns), 1), 1e9).double()], 1)
    found = fit_log_odds(wide, positive)
    assert found.slopes[2] == 0
    torch.testing.assert_close(found(wide), fit_log_odds(columns, positive)(columns))


def test_perfectly_separated_rows_stay_finite():
    columns = torch.arange(20.0)[:, None].double() * 1e3
    found = fit_log_odds(columns, columns[:, 0] > 9000)
    assert torch.isfinite(found(columns)).all()
    assert bool((found(columns).diff() > 0).all())


def test_evidence_by_hand():
    novelty = evidence_of_novelty(torch.tensor([[0.0, 0.0]]), torch.tensor([[-3.0]]))
    np.testing.assert_allclose(novelty, [[-np.log(2), 3.0]])


def test_terms_sum_to_the_score():
    columns, _ = case()
    score = LogOdds(0.3, torch.tensor([2.0, 0.5]).double())
    torch.testing.assert_close(score.terms(columns).sum(1), score(columns))
    assert score.parameters() == (0.3, 2.0, 0.5)


def test_without_a_fit():
    error, novelty = unfitted_scores(2)
    assert (error.parameters(), novelty.parameters()) == ((0, 1), (0, 0, 1, 1))
    assert unfitted_scores(0)[1].parameters() == (0, 1)


def test_the_mean_of_standardised_columns():
    columns, _ = case()
    wide = torch.cat([columns, torch.ones(len(columns), 1).double()], 1)
    plain = ((columns - columns.mean(0)) / columns.std(0, correction=0)).sum(1) / 3
    torch.testing.assert_close(standardised_mean(wide)(wide), plain)
