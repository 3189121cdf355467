import numpy as np
import pytest
import torch
from scipy.stats import gaussian_kde
from sklearn.metrics import roc_auc_score

from qipf import QIPF, QIPFInputError
from qipf.bandwidth import FACTORS, choose_factor, silverman
from tests.conftest import make_logits

OPTIONS = {"orders": (1, 2, 3, 4), "softening": 0.0, "engine": "attention"}


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


def test_silverman_refuses_rows_that_are_all_alike():
    with pytest.raises(QIPFInputError, match="all alike, so Silverman's bandwidth is zero"):
        silverman(torch.ones(5, 2))


def test_likelihood_finds_the_width_that_a_direct_search_finds():
    rows = make_logits(600, dimension=2).double()
    centers, held_out = rows[:400], rows[400:]
    width = silverman(centers)
    choice = choose_factor(centers, held_out, None, width=width, **OPTIONS)
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


def test_error_detection_finds_the_width_that_a_direct_search_finds():
    rows = make_logits(600, dimension=2).double()
    centers, held_out = rows[:400], rows[400:]
    noise = torch.randn(200, generator=torch.Generator().manual_seed(0)).numpy()
    wrong = np.abs(held_out.numpy()).sum(1) + 3 * noise > 14
    width = silverman(centers)
    choice = choose_factor(centers, held_out, wrong, width=width, **OPTIONS)
    direct = {}
    for factor in FACTORS:
        field = QIPF(bandwidth=factor * width, engine="reference").fit(centers)
        direct[factor] = roc_auc_score(wrong, field.uncertainty(held_out).numpy())
    assert choice.criterion == "error detection"
    assert choice.factor == max(direct, key=direct.get)
    assert choice.scores == pytest.approx(direct, abs=1e-9)


def test_equal_detection_is_decided_by_likelihood():
    rows = make_logits(600, dimension=2).double()
    centers, held_out = rows[:400], rows[400:]
    wrong = np.repeat([False, True], [200, 10])  # so far out that every width finds them
    held_out = torch.cat([held_out, torch.full((10, 2), 1e4, dtype=torch.float64)])
    width = silverman(centers)
    choice = choose_factor(centers, held_out, wrong, width=width, **OPTIONS)
    by_likelihood = choose_factor(centers, held_out, None, width=width, **OPTIONS)
    assert set(choice.scores.values()) == {1.0}
    assert choice.factor == by_likelihood.factor


@pytest.mark.parametrize("errors", [0, 1, 9, 191, 200])
def test_with_too_few_of_either_kind_the_likelihood_decides(errors):
    flags = np.arange(200) < errors
    rows = make_logits(600)
    arguments = {"width": silverman(rows[:400]), **OPTIONS}
    choice = choose_factor(rows[:400], rows[400:], flags, **arguments)
    assert choice == choose_factor(rows[:400], rows[400:], None, **arguments)


def test_a_factor_costs_one_field_evaluation(monkeypatch):
    from qipf.engines.attention import AttentionEngine

    calls = []
    plain = AttentionEngine.__call__
    monkeypatch.setattr(
        AttentionEngine, "__call__", lambda self, q: calls.append(len(q)) or plain(self, q)
    )
    rows = make_logits(300)
    choose_factor(rows[:200], rows[200:], None, width=1.0, **OPTIONS)
    assert calls == [100] * len(FACTORS)
