"""On digits, clean and slightly rotated, layers detect errors better than entropy does."""

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from qipf import LayeredQIPF
from qipf.bench import datasets
from qipf.bench.corruptions import corrupt
from qipf.bench.networks import Recipe, build
from qipf.bench.training import train

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained():
    """Digits, and a network trained on them."""
    digits = datasets.load("digits")
    net, _ = build("mlp", channels=1, classes=10, size=8, seed=0)
    train(net, digits.train_images, digits.train_labels, Recipe(epochs=20), seed=0)
    return digits, net


@pytest.fixture(scope="module", params=["random", "coreset"])
def judged(request, trained):
    """ROC-AUC of the uncertainty and of the entropy, by degrees of rotation.

    All training examples are centres, or 200 weighted ones stand for them.
    """
    few = {"max_centers": 200} if request.param == "coreset" else {}
    digits, net = trained
    seen = list(
        zip(digits.train_images.div(255).split(400), digits.train_labels.split(400), strict=True)
    )
    model = LayeredQIPF(net, max_tuning=150, reduction=request.param, **few).fit(seen)
    clean, found = digits.test_images / 255, {}
    for angle in (0, 15, 30):
        prediction = model(clean if angle == 0 else corrupt(clean, "rotation", angle))
        wrong = (prediction.predicted != digits.test_labels).numpy()
        entropy = torch.special.entr(prediction.logits.double().softmax(1)).sum(1)
        found[angle] = roc_auc_score(wrong, prediction.uncertainty), roc_auc_score(wrong, entropy)
    return found


@pytest.mark.parametrize("angle", [0, 15])
def test_errors_on_clean_and_turned_digits_are_found_better_than_by_entropy(judged, angle):
    uncertainty, entropy = judged[angle]
    assert uncertainty > entropy + 0.02
    assert uncertainty > 0.94


def test_over_clean_and_turned_digits_together(judged):
    uncertainty, entropy = np.mean(list(judged.values()), axis=0)
    assert uncertainty > entropy + 0.02
