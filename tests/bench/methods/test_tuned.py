from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from qipf.bench.methods import CleanData, create
from qipf.bench.methods.tuned import EXAMPLES, EXPONENTS, TEMPERATURES, tuning_data
from qipf.errors import QIPFInputError
from qipf.layered import tuning
from qipf.layered.model import LayeredQIPF
from qipf.metrics.error_detection import roc_auc


def fresh(clean: CleanData) -> CleanData:
    return CleanData(clean.network, clean.images, clean.labels, seed=clean.seed)


@pytest.mark.slow
def test_the_tuning_inputs_are_those_of_layered_qipf(clean, monkeypatch):
    seen = []
    original = tuning.run_in_batches

    def spy(net, example, sites):
        (inputs,) = example.inputs
        if sites:
            mark = torch.arange(inputs[0].numel()).double()
            seen.append((len(inputs), float((inputs.double().flatten(1) @ mark).sum())))
        return original(net, example, sites)

    monkeypatch.setattr(tuning, "run_in_batches", spy)
    data = tuning_data(fresh(clean), "stacked")
    ours = set(seen)
    seen.clear()
    images = clean.images.float() / 255
    model = LayeredQIPF(clean.network, max_centers=100, reduction="random", random_state=clean.seed)
    model.fit([(images, clean.labels)])
    assert ours == set(seen)
    assert len(ours) > 20  # clean, and nine families at three strengths, some of which coincide
    assert len(data.labels) == len(data.batch.logits) >= 20 * min(EXAMPLES, len(images) // 5)


def test_stacked_is_a_logistic_regression_of_four_scores(clean, shifted):
    clean = fresh(clean)
    data = tuning_data(clean, "stacked")
    parts = [create(name).fit(clean) for name in ("entropy", "max_logit", "energy", "knn")]
    rows, asked = (
        np.stack([part.score(batch).numpy() for part in parts], 1)
        for batch in (data.batch, shifted)
    )
    mean, std = rows.mean(0), rows.std(0)
    naive = LogisticRegression(max_iter=1000).fit((rows - mean) / std, data.wrong.numpy())
    expected = (asked - mean) / std @ naive.coef_[0] + naive.intercept_
    method = create("stacked").fit(clean)
    np.testing.assert_allclose(method.score(shifted).numpy(), expected, rtol=1e-6, atol=1e-8)
    assert list(method.chosen()) == ["entropy", "max_logit", "energy", "knn"]


def test_temperature_and_exponent_are_the_best_of_those_tried(clean, shifted):
    clean = fresh(clean)
    data = tuning_data(clean, "temperature")
    logits, labels = data.batch.logits.double(), data.labels
    t = create("temperature").fit(clean).chosen()["temperature"]
    losses = [float(torch.nn.functional.cross_entropy(logits / s, labels)) for s in TEMPERATURES]
    assert t == TEMPERATURES[int(np.argmin(losses))]
    assert t > 1  # the network is overconfident on perturbed inputs
    method = create("max_logit_pnorm").fit(clean)

    def scores(z, p):
        z = (z - z.mean(1, keepdim=True)).double().numpy()
        return -z.max(1) / (np.abs(z) ** p).sum(1) ** (1 / p)

    areas = [roc_auc(scores(data.batch.logits, p), data.wrong.numpy()) for p in EXPONENTS]
    p = method.chosen()["p"]
    assert p == EXPONENTS[int(np.argmax(areas))]
    expected = scores(shifted.logits, p)
    np.testing.assert_allclose(method.score(shifted).numpy(), expected, rtol=1e-6, atol=1e-7)


def test_too_few_examples_are_refused(clean):
    few = CleanData(clean.network, clean.images[:60], clean.labels[:60])
    message = "stacked is tuned on held-out training examples, and 60 are too few to hold some out."
    with pytest.raises(QIPFInputError, match=message):
        create("stacked").fit(few)


def test_temperatures_and_exponents_are_those_of_the_published_results():
    assert len(TEMPERATURES) == 81
    assert (TEMPERATURES[0], TEMPERATURES[40], TEMPERATURES[80]) == pytest.approx((0.1, 1.0, 10.0))
    np.testing.assert_allclose(np.diff(np.log10(TEMPERATURES)), 1 / 40)
    assert EXPONENTS == (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
