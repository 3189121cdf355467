"""Error detection: areas as scikit-learn computes them, beside entropy and the largest logit."""

import numpy as np
import pytest
import torch
from scipy.stats import entropy
from sklearn.metrics import roc_auc_score

from qipf.calibration.detection import ErrorDetection, entropy_of, error_detection


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
    both = torch.cat([torch.zeros_like(z), z], 1)
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
