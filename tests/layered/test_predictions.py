"""Given features and logits: checks, perturbed copies, probabilities."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from qipf import FeatureQIPF, QIPFInputError
from qipf.layered.predictions import checked_copies, checked_predictions, noisy_copies
from tests.layered.feature_examples import HELD_OUT, TRAIN, examples


def test_other_examples_go_to_the_device_of_the_training_examples():
    given = checked_predictions(*TRAIN[:2])
    elsewhere = given.mapped(lambda part: part.to("meta"))
    found = checked_predictions(*HELD_OUT[:2], like=elsewhere)
    copies = checked_copies({"same": HELD_OUT[:2]}, elsewhere, 600, held_out=True)
    for part in (found, copies["same"]):
        for tensor in (part.logits, *part.given.values(), *part.rows.values()):
            assert tensor.device.type == "meta"


def test_noisy_copies_move_logits_and_features_together():
    """Logits that are a linear function of the features stay that function of them."""
    features, _, labels = TRAIN
    linear = {"deep": np.tanh(features["deep"])}
    given = checked_predictions(linear, 3 * linear["deep"])
    truth = torch.from_numpy(labels)
    copies = noisy_copies(given[:100], truth[:100], given[100:], truth[100:], 0)
    assert len(copies) == 3
    clean = float((given.logits[:100].argmax(1).numpy() == labels[:100]).mean())
    accuracies = []
    for copy in copies.values():
        (rows,) = copy.rows.values()
        torch.testing.assert_close(copy.logits, 3 * rows)
        accuracies.append(float((copy.logits.argmax(1).numpy() == labels[:100]).mean()))
    # nine, seven and five tenths of the accuracy above chance are kept
    wanted = [0.25 + share * (clean - 0.25) for share in (0.9, 0.7, 0.5)]
    np.testing.assert_allclose(accuracies, wanted, atol=0.12)


def test_strengths_are_relative_to_the_chance_of_so_many_classes(monkeypatch):
    chances = []
    name = "qipf.layered.predictions.strengths"
    monkeypatch.setattr(name, lambda accuracy, chance: chances.append(chance) or [])
    features, logits, labels = TRAIN
    given, truth = checked_predictions(features, logits), torch.from_numpy(labels)
    assert noisy_copies(given[:50], truth[:50], given[50:], truth[50:], 0) == {}
    assert chances == [1 / logits.shape[1]]


def test_classes_of_one_example_each_cannot_perturb_others():
    features, logits, labels = TRAIN
    first = [int(np.flatnonzero(labels == label)[0]) for label in range(4)]
    given, truth = checked_predictions(features, logits), torch.from_numpy(labels)
    assert noisy_copies(given[:50], truth[:50], given[first], truth[first], 0) == {}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda f, y: (np.ones((9, 3)), y), "features must be a dict of arrays by layer"),
        (lambda f, y: ({}, y), "features lacks .*; it has none"),
        (lambda f, y: ({"early": f["early"]}, y), r"features lacks 'deep'; it has 'early'"),
        (lambda f, y: ({**f, "deep": f["deep"][:3]}, y), r"\['deep'\] must have one row per"),
        (lambda f, y: ({**f, "deep": f["deep"][:, 0]}, y), r"\['deep'\] must have one row per"),
        (
            lambda f, y: ({**f, "deep": f["deep"] * np.nan}, y),
            r"features\['deep'\] has 9 rows with",
        ),
        (lambda f, y: ({**f, "deep": f["deep"] > 0}, y), "must be a dense array of real numbers"),
        (lambda f, y: ({**f, "deep": [["a"]] * 9}, y), r"features\['deep'\] must hold numbers"),
        (lambda f, y: ({**f, "deep": None}, y), r"\['deep'\] must hold numbers, got None"),
        (
            lambda f, y: ({**f, "deep": csr_matrix(f["deep"])}, y),
            r"\['deep'\] must be dense, got a sparse matrix. Pass its toarray\(\)",
        ),
        (lambda f, y: ({**f, "logits": f["deep"]}, y), "a layer named 'logits'"),
        (lambda f, y: (f, y[:, 0]), r"logits must have shape \(n, classes\), got \(9,\)"),
        (lambda f, y: (f, y + np.inf), "logits has 9 rows with NaN or inf"),
    ],
)
def test_invalid_features_and_logits_are_rejected(change, reason):
    features, logits, labels = examples(9, 0)
    with pytest.raises(QIPFInputError, match=reason):
        FeatureQIPF().fit(*TRAIN, held_out=(*change(features, logits), labels))
    if "lacks 'deep'" not in reason:  # a layer that is not used may be missing
        with pytest.raises(QIPFInputError, match=reason):
            FeatureQIPF().fit(*change(features, logits), labels)


def test_probabilities_are_taken_as_such():
    """Their logarithms are used, whose softmax they are."""
    logits = torch.randn(200, 4, generator=torch.Generator().manual_seed(0)).double() * 3
    p = torch.softmax(logits, 1)
    p[p < 0.05] = 0
    p = p / p.sum(1, keepdim=True)
    found = checked_predictions({"x": logits}, p).logits.softmax(1)
    torch.testing.assert_close(found, p, atol=4e-3, rtol=0)
