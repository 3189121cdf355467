"""Error detection: areas as scikit-learn computes them, beside entropy and the largest logit."""

import numpy as np
import pytest
import torch
from scipy.stats import entropy
from sklearn.metrics import roc_auc_score

from qipf.calibration.detection import (
    ErrorDetection,
    entropy_of,
    error_detection,
    mean_detection,
    warn_if_worse,
    warn_of_labels,
)
from qipf.errors import QIPFScoreWarning


def test_the_areas_are_those_of_scikit_learn(rng):
    logits, wrong = rng.normal(size=(200, 4)), rng.random(200) < 0.3
    scores = rng.random(200) + wrong
    found = error_detection(scores, torch.from_numpy(wrong), torch.from_numpy(logits))
    assert (found.count, found.errors) == (200, wrong.sum())
    assert found.uncertainty == pytest.approx(roc_auc_score(wrong, scores), rel=1e-12)
    softmax = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert found.entropy == pytest.approx(roc_auc_score(wrong, entropy(softmax, axis=1)))
    assert found.max_logit == pytest.approx(roc_auc_score(wrong, -logits.max(1)), rel=1e-12)
    for name in ("ROC-AUC", "entropy", "largest logit"):
        assert name in str(found)


def test_without_logits_there_is_nothing_to_compare_with():
    found = error_detection([0.1, 0.9, 0.2], [False, True, False])
    assert found == ErrorDetection(3, 1, 1.0)
    assert str(found) == "errors of the calibration set: ROC-AUC 1.000"


def test_one_logit_is_compared_as_the_two_classes_that_it_stands_for(rng):
    z, wrong = torch.from_numpy(rng.normal(size=(200, 1))), rng.random(200) < 0.3
    both = torch.cat([-z, z], 1) / 2  # whose largest does not depend on the class
    scores = rng.random(200)
    assert error_detection(scores, wrong, z) == error_detection(scores, wrong, both)


@pytest.mark.parametrize("wrong", [[False, False], [True, True]])
def test_there_is_nothing_to_detect_if_all_are_alike(wrong):
    assert error_detection([0.1, 0.2], wrong) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logits_of_extreme_size_have_an_entropy(dtype):
    largest = torch.finfo(dtype).max
    logits = torch.tensor([[1e30, 0.0], [0.0, 0.0], [largest, -largest]], dtype=dtype)
    assert error_detection([0.1, 0.9, 0.2], [False, True, False], logits).entropy == 1.0


def test_entropy_of_probabilities_and_of_rows_that_are_none(rng):
    rows = torch.from_numpy(rng.dirichlet(np.ones(4), size=50))
    rows[0] = torch.tensor([1.0, 0.0, 0.0, 0.0])
    np.testing.assert_allclose(entropy_of(rows), entropy(rows, axis=1), atol=1e-12)
    assert torch.isfinite(entropy_of(torch.tensor([[-0.5, 1.5]]), probabilities=True)).all()


def test_noise_and_deficit_by_hand():
    found = ErrorDetection(100, 10, 0.7, 0.9)
    assert found.behind() == pytest.approx(0.2)
    assert found.noise() == pytest.approx(0.3 / 10**0.5)
    assert ErrorDetection(100, 96, 0.7).noise() == pytest.approx(0.3 / 2)  # four are right
    assert ErrorDetection(100, 10, 0.7).behind() == 0.0


def test_the_mean_of_several_sets():
    parts = [ErrorDetection(100, 10, 0.5, 0.75, 0.25), ErrorDetection(50, 8, 1.0, 0.25, 0.75)]
    assert mean_detection(parts, "x") == ErrorDetection(150, 18, 0.75, 0.5, 0.5, rows="x")
    assert mean_detection([], "x") is None


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("found", "warned"),
    [
        (None, False),
        (ErrorDetection(1000, 10, 0.7), False),
        (ErrorDetection(1000, 10, 0.80, 0.89), False),  # by less than 0.3/√10
        (ErrorDetection(1000, 10, 0.80, 0.90), True),
        (ErrorDetection(1000, 9, 0.50, 0.99), False),  # too few errors to say
    ],
)
def test_a_score_worse_than_the_entropy_is_warned_of_if_it_is_no_chance(found, warned):
    if not warned:
        return warn_if_worse(found)
    with pytest.warns(QIPFScoreWarning, match="0.800 against 0.900"):
        warn_if_worse(found)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("count", "right", "warned"),
    [
        (100, 28, True),  # four classes in turn: chance is 1/4, its three standard errors 0.13,
        (100, 32, True),  # a tenth of what lies above chance 0.075
        (100, 33, False),
        (10_000, 2_629, True),  # three standard errors are 0.013
        (10_000, 2_631, False),
        (0, 0, False),
    ],
)
def test_labels_that_agree_no_more_than_chance_are_warned_of(count, right, warned):
    logits = torch.eye(4).repeat(-(-count // 4), 1)[:count]
    wrong = torch.arange(count) >= right
    if not warned:
        return warn_of_labels(wrong, logits)
    with pytest.warns(QIPFScoreWarning, match=f"Only {right / count:.0%} of the predictions agree"):
        warn_of_labels(wrong, logits)


@pytest.mark.filterwarnings("error")
def test_one_class_that_is_always_predicted_leaves_room_above_chance():
    logits = torch.tensor([[1.0, 0.0]]).repeat(1000, 1)
    warn_of_labels(torch.arange(1000) >= 911, logits)  # chance counts as 0.9
    with pytest.warns(QIPFScoreWarning, match="91%"):
        warn_of_labels(torch.arange(1000) >= 909, logits)
