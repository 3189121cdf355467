from __future__ import annotations

import pytest
import torch

from qipf import QIPF, LayeredQIPF
from qipf.bench.methods import Batch, CleanData, create
from qipf.bench.methods.fields import Layers
from qipf.layered.model import MOST_EXAMPLES


def test_it_is_the_estimator_over_the_training_logits(clean, shifted):
    method = create("qipf").fit(clean)
    field = QIPF(random_state=0).fit(clean.logits, clean.labels)
    torch.testing.assert_close(method.score(shifted), field.uncertainty(shifted.logits).double())
    assert method.field_.max_centers == 6000
    assert tuple(method.field_.orders) == (1, 2, 3, 4)
    assert method.field_.bandwidth == "cv"


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


def seen(clean):
    return [(clean.images.float() / 255, clean.labels)]


@pytest.mark.parametrize("reduction", ["random", pytest.param("coreset", marks=pytest.mark.slow)])
def test_scores_are_those_of_the_model_it_fits(reduction, clean, shifted):
    method = Layers(**FEW, reduction=reduction).fit(clean)
    model = LayeredQIPF(clean.network, **FEW, reduction=reduction, random_state=clean.seed)
    expected = model.fit(seen(clean)).uncertainty(shifted.images / 255)
    torch.testing.assert_close(method.score(shifted), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_all_training_images_are_centres_by_default(clean):
    assert (Layers().max_centers, Layers().reduction) == (MOST_EXAMPLES, "random")
    method = Layers(max_tuning=80).fit(clean)
    centers = len(clean.images) - 80
    assert [len(field.embeddings) for field in method.model_.fields_] == [centers] * len(
        method.model_.fields_
    )


@pytest.mark.slow
def test_bytes_and_floats_are_the_same_image(clean, digits, network):
    method = Layers(**FEW).fit(clean)
    images = digits.test_images[:50]
    as_bytes = method.score(Batch.of(network, images))
    torch.testing.assert_close(as_bytes, method.score(Batch.of(network, images / 255)))
