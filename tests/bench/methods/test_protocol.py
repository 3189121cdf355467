from __future__ import annotations

import pytest
import torch

from qipf.bench.methods import Batch, CleanData, create
from qipf.bench.methods.network import predict
from qipf.errors import QIPFInputError


def test_clean_outputs_are_computed_once(clean):
    fresh = CleanData(clean.network, clean.images, clean.labels)
    assert fresh.logits is fresh.logits
    expected = predict(clean.network, clean.images)
    torch.testing.assert_close(fresh.logits, expected.logits)
    torch.testing.assert_close(fresh.features, expected.features)


def test_both_scores_of_a_sampler_share_its_preparation_and_its_draws(clean, shifted):
    spread = create("mc_dropout", passes=5).fit(clean)
    entropy = create("mc_dropout_entropy", passes=5).fit(clean)
    batch = Batch(shifted.images, shifted.logits, shifted.features)
    assert spread.samples(batch) is entropy.samples(batch)
    other = create("mc_dropout_entropy", passes=6).fit(clean)
    assert other.samples(batch) is not entropy.samples(batch)
    assert other.samples(batch).std.shape == (599, 10)


def test_a_batch_keeps_the_networks_outputs(clean, digits):
    batch = Batch.of(clean.network, digits.test_images[:9])
    assert len(batch) == 9
    assert torch.equal(batch.predicted, batch.logits.argmax(1))
    torch.testing.assert_close(batch.logits, clean.network(digits.test_images[:9] / 255))


def test_images_without_labels_are_refused(clean):
    with pytest.raises(QIPFInputError, match="equally many, at least one; got 2 images and 3 lab"):
        CleanData(clean.network, clean.images[:2], clean.labels[:3])
