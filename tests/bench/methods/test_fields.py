from __future__ import annotations

import math
import types

import pytest
import torch

from qipf import QIPF, LayeredQIPF
from qipf.bench.methods import Batch, CleanData, create
from qipf.bench.methods.fields import Layers, LayersNovelty
from qipf.layered.model import MOST_EXAMPLES


def test_it_is_the_estimator_over_the_training_logits(clean, shifted):
    method = create("qipf").fit(clean)
    field = QIPF(normalization="peak", fallback=False, random_state=0)
    field.fit(clean.logits, clean.labels)
    torch.testing.assert_close(method.score(shifted), field.uncertainty(shifted.logits).double())
    assert method.field_.max_centers == 6000
    assert tuple(method.field_.orders) == (1, 2, 3, 4)
    assert method.field_.bandwidth == "cv"


FAITHFUL = {
    "orders": (1, 2, 3, 4),
    "bandwidth": "cv",
    "max_centers": 6000,
    "reduction": "random",
    "softening": 0.0,
}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("qipf", {"normalization": "peak"}),
        ("qipf_normalized", {"normalization": "density"}),
        ("qipf_standardized", {"normalization": "standard"}),
        ("qipf_potential", {"normalization": "peak", "orders": (1,)}),
        ("qipf_density", {"normalization": "peak", "orders": (1,)}),
        ("qipf_default", QIPF().get_params()),
    ],
)
def test_fields_have_the_options_that_their_rows_stand_for(name, options, clean):
    field = create(name).fit(clean).field_
    expected = {**FAITHFUL, **options, "random_state": clean.seed}
    assert {option: getattr(field, option) for option in expected} == expected


@pytest.mark.parametrize("count", [5999, 6001])
def test_the_faithful_field_keeps_a_random_sample_of_the_paper_s_size(count, clean):
    """More than 6000 predictions: centres are 6000 of the rows themselves, all equally weighted."""
    logits = torch.randn(count, 10, generator=torch.Generator().manual_seed(0))
    data = types.SimpleNamespace(logits=logits, labels=logits.argmax(1), seed=0)
    field = create("qipf", bandwidth="silverman").fit(data).field_
    assert field.log_weights_ is None
    assert len(field.centers_) == min(count, 6000)
    rows = {tuple(row) for row in logits.numpy().tolist()}
    assert {tuple(row) for row in field.centers_.astype("float32").tolist()} <= rows


def test_potential_and_density_are_those_of_one_field(clean, shifted):
    potential, density = create("qipf_potential").fit(clean), create("qipf_density").fit(clean)
    field = QIPF(orders=(1,), random_state=clean.seed).fit(clean.logits, clean.labels)
    assert potential.field_.bandwidth_ == density.field_.bandwidth_ == field.bandwidth_
    torch.testing.assert_close(
        potential.score(shifted), field.potential(shifted.logits).double(), rtol=1e-5, atol=1e-5
    )
    # the definition: log mean exp(-|x - c|² / 2σ²)
    centers = torch.as_tensor(field.centers_, dtype=torch.float64)
    squares = torch.cdist(shifted.logits.double(), centers).square()
    log_mean = torch.logsumexp(-squares / (2 * field.bandwidth_**2), dim=1) - math.log(len(centers))
    torch.testing.assert_close(density.score(shifted), -log_mean, rtol=1e-4, atol=1e-4)


def test_options_and_seed_reach_the_estimator(clean):
    seeded = CleanData(clean.network, clean.images, clean.labels, seed=4)
    options = {"orders": (1, 2), "bandwidth": 2.5, "max_centers": 50, "softening": 0.1}
    field = create("qipf", **options, engine="reference").fit(seeded).field_
    for name, value in options.items():
        assert getattr(field, name) == value
    assert field.engine == "reference"
    assert field.random_state == 4
    assert field.centers_.shape == (50, 10)


FEW = {"max_centers": 60, "max_tuning": 80, "max_dimension": 16}


@pytest.fixture(scope="module")
def small(clean):
    """So few training images that layers are fitted fast."""
    return CleanData(clean.network, clean.images[:300], clean.labels[:300], seed=clean.seed)


def seen(clean):
    return [(clean.images.float() / 255, clean.labels)]


@pytest.mark.parametrize("reduction", ["random", pytest.param("coreset", marks=pytest.mark.slow)])
def test_scores_are_those_of_the_model_it_fits(reduction, small, shifted):
    method = Layers(**FEW, reduction=reduction).fit(small)
    model = LayeredQIPF(small.network, **FEW, reduction=reduction, random_state=small.seed)
    expected = model.fit(seen(small))(shifted.images / 255)
    torch.testing.assert_close(method.score(shifted), expected.uncertainty, atol=1e-4, rtol=1e-4)
    novelty = LayersNovelty(**FEW, reduction=reduction).fit(small)
    assert novelty.model_ is method.model_
    torch.testing.assert_close(novelty.score(shifted), expected.novelty, atol=1e-4, rtol=1e-4)
    labels = expected.probabilities.argmax(1)
    labels[: len(labels) // 4] += 1
    assert method.facts(shifted, labels) == {
        "estimated_accuracy": pytest.approx(float(1 - expected.p_error.mean()), abs=1e-4),
        "mixture_accuracy": 1 - (len(labels) // 4) / len(labels),
    }
    assert novelty.facts(shifted, labels) == {}


@pytest.mark.slow
def test_fields_are_the_models_own_by_default(small):
    """Which has all training images as centres if they are few."""
    assert (Layers().max_centers, Layers().reduction) == (MOST_EXAMPLES, "distilled")
    method = Layers(max_tuning=50).fit(small)
    centers = len(small.images) - 50
    assert [len(field.embeddings) for field in method.model_.fields_] == [centers] * len(
        method.model_.fields_
    )


@pytest.mark.slow
def test_bytes_and_floats_are_the_same_image(small, digits, network):
    method = Layers(**FEW).fit(small)
    images = digits.test_images[:50]
    as_bytes = method.score(Batch.of(network, images))
    torch.testing.assert_close(as_bytes, method.score(Batch.of(network, images / 255)))


def test_options_and_seed_reach_the_model_of_the_layers(clean, monkeypatch):
    made = []

    class Recorded:
        def __init__(self, network, **options):
            made.append((network, options))

        def fit(self, batches):
            return self

    monkeypatch.setattr("qipf.bench.methods.fields.LayeredQIPF", Recorded)
    other = CleanData(clean.network, clean.images, clean.labels, seed=7)
    create("qipf_plus", max_centers=50, max_tuning=30).fit(other)
    ((network, options),) = made
    assert network is clean.network
    assert (options["random_state"], options["max_centers"], options["max_tuning"]) == (7, 50, 30)
