from __future__ import annotations

import math

import pytest
import torch

from qipf.bench.methods import Batch, create
from qipf.bench.methods.network import predict
from qipf.bench.methods.sampling import Samples


@pytest.fixture
def drawn() -> torch.Tensor:  # (draws, n, classes)
    return torch.randn(6, 5, 3, generator=torch.Generator().manual_seed(0))


def test_samples_equal_the_whole_tensor_at_once(drawn):
    predicted = torch.tensor([0, 2, 1, 1, 0])
    samples = Samples.of(iter(drawn), predicted)
    probabilities = drawn.double().softmax(-1)
    torch.testing.assert_close(samples.mean, probabilities.mean(0))
    expected = torch.stack([probabilities[:, i, c] for i, c in enumerate(predicted)], dim=1)
    torch.testing.assert_close(samples.predicted, expected)


def test_joined_parts_are_the_whole(drawn):
    predicted = torch.tensor([0, 2, 1, 1, 0])
    whole = Samples.of(iter(drawn), predicted)
    parts = [
        Samples.of(iter(drawn[:, rows]), predicted[rows]) for rows in (slice(0, 2), slice(2, 5))
    ]
    joined = Samples.join(parts)
    assert torch.equal(joined.mean, whole.mean)
    assert torch.equal(joined.predicted, whole.predicted)


def test_scores_of_known_draws(clean, shifted):
    """Two draws with probabilities 0.9 and 0.5 spread by 0.2 and have entropy H(0.7)."""
    from qipf.bench.methods.protocol import Batch
    from qipf.bench.methods.sampling import PredictiveEntropy, Sampler, Spread

    class Two(Sampler):
        passes = 2

        def prepare(self, clean):
            def draw(batch):
                logits = [torch.tensor([[math.log(p), math.log(1 - p)]]) for p in (0.9, 0.5)]
                return Samples.of(logits, batch.predicted)

            return draw

    sampler = Two()
    batch = Batch(torch.zeros(1, 1, 1, 1), torch.tensor([[1.0, 0.0]]), torch.zeros(1, 1))
    spread = Spread("two", sampler).fit(clean).score(batch)
    entropy = PredictiveEntropy("two", sampler).fit(clean).score(batch)
    assert spread.item() == pytest.approx(0.2)
    assert entropy.item() == pytest.approx(-(0.7 * math.log(0.7) + 0.3 * math.log(0.3)))
    assert Spread("two", sampler).forward_passes == 2


def test_it_draws_the_predictions_of_its_networks(clean, shifted):
    members = []
    ensemble = create("ensemble", networks=2)

    class Recording:
        def train(self, *args, **kwargs):
            raise AssertionError("an ensemble trains its networks at once")

        def train_ensemble(self, network, count, inputs, labels):
            assert network is clean.network
            assert inputs is clean.images
            trained = clean.trainer.train_ensemble(network, count, inputs[:200], labels[:200])
            members.extend(trained)
            return trained

    data = type(clean)(clean.network, clean.images, clean.labels, Recording())
    batch = Batch(shifted.images, shifted.logits, shifted.features)
    samples = ensemble.fit(data).samples(batch)
    assert len(members) == 2
    probabilities = [predict(m, batch.images).logits.double().softmax(1) for m in members]
    torch.testing.assert_close(samples.mean, sum(probabilities) / 2)
    for drawn, expected in zip(samples.predicted, probabilities, strict=True):
        torch.testing.assert_close(drawn, expected[torch.arange(599), batch.predicted])


def test_members_differ_from_each_other_and_from_the_network(clean):
    members = clean.trainer.train_ensemble(clean.network, 2, clean.images[:200], clean.labels[:200])
    weights = [m.head.weight for m in (*members, clean.network)]
    for i in range(3):
        for j in range(i):
            assert (weights[i] - weights[j]).abs().mean() > 0.01
