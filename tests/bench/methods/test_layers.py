"""LayeredQIPF as a method: its own options, its own scores, on images of either range."""

import pytest
import torch

from qipf import LayeredQIPF
from qipf.bench.methods import Batch
from qipf.bench.methods.layers import Layers
from qipf.layered.model import MOST_EXAMPLES

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
