"""Log-odds of error: against scikit-learn, laws, extremes."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from qipf.layered.error_model import (
    PENALTY,
    ErrorModel,
    Evidence,
    LogOdds,
    balanced,
    energy,
    fit_error_model,
    fit_log_odds,
)


def case(count=400, seed=0):
    """Two columns that tell of the positive rows, on different scales."""
    rng = np.random.default_rng(seed)
    columns = rng.normal(size=(count, 2)) * [1.0, 20.0] + [3.0, -50.0]
    odds = 1.5 * (columns[:, 0] - 3) + 0.05 * (columns[:, 1] + 50) - 1
    positive = rng.random(count) < 1 / (1 + np.exp(-odds))
    return torch.from_numpy(columns), torch.from_numpy(positive)


@pytest.mark.parametrize("weighted", [False, True])
def test_it_is_logistic_regression_of_standardised_columns(weighted):
    columns, positive = case()
    weights = balanced(positive) if weighted else torch.ones(len(positive)).double()
    found = fit_log_odds(columns, positive, weights)
    x, shares = columns.numpy(), (weights / weights.sum()).numpy()
    x = x - shares @ x
    x = x / np.sqrt(shares @ x**2)
    regression = LogisticRegression(C=1 / (PENALTY * len(x)), tol=1e-10)
    regression.fit(x, positive.numpy(), sample_weight=shares * len(x))
    np.testing.assert_allclose(found(columns), regression.decision_function(x), atol=1e-4)


def test_rows_of_no_weight_do_not_matter():
    columns, positive = case()
    known = torch.arange(len(columns)) < 300
    found = fit_log_odds(columns, positive, known.double())
    alone = fit_log_odds(columns[known], positive[known])
    torch.testing.assert_close(found(columns), alone(columns), rtol=1e-4, atol=1e-4)


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


def test_the_energy_by_hand():
    np.testing.assert_allclose(
        energy(torch.tensor([[0.0, 0.0], [1e4, 0.0]])), [[-np.log(2)], [-1e4]]
    )


def evidence_case(count=600, seed=0):
    """Log-odds of a mixture, a softmax and a layer that is right near clean rows alone."""
    rng = np.random.default_rng(seed)
    perturbed = np.arange(count) >= count // 3
    truth = rng.normal(size=count)
    wrong = rng.random(count) < 1 / (1 + np.exp(-2 * truth))
    mixture, softmax = (truth + rng.normal(size=count) for _ in range(2))
    layer = np.where(perturbed, -1.0, 1.0) * truth + 0.5 * rng.normal(size=count)
    energy = np.where(perturbed, 3.0, -3.0) + 0.3 * rng.normal(size=count)
    density = energy + rng.normal(size=count)
    columns = np.stack([mixture, softmax, layer], 1), np.stack([energy, density], 1)
    evidence = Evidence(*map(torch.from_numpy, columns))
    return evidence, torch.from_numpy(wrong), torch.from_numpy(perturbed)


def test_the_uncertainty_by_hand():
    model = ErrorModel(
        LogOdds(0.5, torch.tensor([2.0])),
        LogOdds(-1.0, torch.tensor([3.0])),
        LogOdds(0.25, torch.tensor([1.0, 0.5, 2.0])),
    )
    evidence = Evidence(torch.tensor([[-2.0, 1.0, 3.0]]), torch.tensor([[0.75, 9.0]]))
    far = 1 / (1 + np.exp(-(0.5 + 2 * 0.75)))
    near_odds, far_odds = 0.25 - 2 + 0.5 + 6, -1 - 6
    expected = (1 - far) * near_odds + far * far_odds
    assert float(model(evidence)) == pytest.approx(expected, rel=1e-6)
    constant, mixture, softmax, layer = model.terms(evidence)[0].tolist()
    assert constant == pytest.approx((1 - far) * 0.25 - far)
    assert mixture == pytest.approx((1 - far) * -2 + far * -6)
    assert (softmax, layer) == pytest.approx(((1 - far) * 0.5, (1 - far) * 6))


def test_a_layer_that_misleads_far_from_the_data_is_heard_near_it_alone():
    evidence, wrong, perturbed = evidence_case()
    model = fit_error_model(evidence, wrong, perturbed)
    assert model.near.slopes[2] > 0.1
    louder = evidence.odds.clone()
    louder[:, 2] += 5
    change = model(Evidence(louder, evidence.unusual)) - model(evidence)
    assert float(change[~perturbed].min()) > 5 * float(change[perturbed].max())
    assert bool((change >= 0).all())


def test_the_uncertainty_is_calibrated_on_the_rows_of_the_fit():
    evidence, wrong, perturbed = evidence_case()
    mean = torch.sigmoid(fit_error_model(evidence, wrong, perturbed)(evidence)).mean()
    assert float(mean) == pytest.approx(float(wrong.double().mean()), abs=1e-4)


def test_without_perturbed_rows_half_of_both():
    evidence, wrong, _ = evidence_case()
    model = fit_error_model(evidence, wrong, torch.zeros_like(wrong))
    assert model.gate.parameters() == (0, 0)
    near, far = model.near(evidence.odds), model.far(evidence.odds[:, :1])
    torch.testing.assert_close(model(evidence), (near + far) / 2)


def test_a_mixture_that_misleads_far_from_the_data_is_one_regression():
    evidence, wrong, perturbed = evidence_case()
    odds = torch.where(perturbed[:, None], -0.3 * evidence.odds, evidence.odds)
    model = fit_error_model(Evidence(odds, evidence.unusual), wrong, perturbed)
    assert model.near.parameters() == (*model.far.parameters(), 0, 0)
    found = Evidence(odds, evidence.unusual)
    torch.testing.assert_close(model(found), model.far(odds[:, :1]))
    mean = float(torch.sigmoid(model(found)).mean())
    assert mean == pytest.approx(float(wrong.double().mean()), abs=1e-3)


def test_no_errors_no_model():
    evidence, wrong, perturbed = evidence_case()
    assert fit_error_model(evidence, torch.zeros_like(wrong), perturbed) is None
    misleading = Evidence(-evidence.odds, evidence.unusual)
    assert fit_error_model(misleading, wrong, torch.zeros_like(perturbed)) is None


@pytest.mark.parametrize("layers", [0, 2])
def test_parameters_are_those_of_the_model(layers):
    rng = np.random.default_rng(layers)
    columns = (torch.from_numpy(rng.normal(size=(60, n))) for n in (2 + layers, 1 + layers))
    evidence = Evidence(*columns)
    wrong, perturbed = evidence.odds[:, 0] > 0, torch.arange(60) >= 30
    error = fit_error_model(evidence, wrong, perturbed)
    again = ErrorModel.of(torch.tensor(error.parameters(), dtype=torch.float64))
    assert again.parameters() == error.parameters()
    torch.testing.assert_close(again(evidence), error(evidence))


def test_without_a_fit():
    evidence, *_ = evidence_case()
    torch.testing.assert_close(ErrorModel.unfitted(1)(evidence), evidence.odds[:, 0])


def test_columns_that_vary_by_rounding_alone_count_as_constant():
    """Less than a billionth of the largest number, or of one where all numbers are smaller."""
    rng = np.random.default_rng(0)
    rows = torch.from_numpy(rng.normal(size=(50, 4)) * [1.0, 7e-10, 7e-4, 1.0] + [0, 0, 1e6, 0])
    positive = rows[:, 0] + rows[:, 3] > 0
    assert (fit_log_odds(rows, positive).slopes > 0).tolist() == [True, False, False, True]
