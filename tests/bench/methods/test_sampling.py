from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from qipf.bench.methods import Batch, create
from qipf.bench.methods.network import predict, seeded, unit_range
from qipf.bench.methods.sampling import OwnClassSpread, PredictiveEntropy, Sampler, Samples, Spread


@pytest.fixture
def drawn() -> torch.Tensor:  # (draws, n, classes)
    return torch.randn(6, 5, 3, generator=torch.Generator().manual_seed(0))


def test_samples_equal_the_whole_tensor_at_once(drawn):
    samples = Samples.of(iter(drawn))
    probabilities = drawn.double().softmax(-1)
    torch.testing.assert_close(samples.mean, probabilities.mean(0))
    torch.testing.assert_close(samples.std, probabilities.std(0, correction=0))
    single = Samples.of(iter(drawn[:1]))
    assert torch.equal(single.mean, probabilities[0])
    assert not single.std.any()


def test_small_deviations_of_confident_draws_keep_their_digits():
    """Probabilities of 1 - 1e-9 (1 ± 1/2): the sum of squares would lose all digits of 5e-10."""
    logits = [torch.tensor([[0.0, math.log(1e-9 * x)]], dtype=torch.float64) for x in (0.5, 1.5)]
    assert Samples.of(logits).std[0, 0].item() == pytest.approx(5e-10, rel=1e-6)


def test_joined_parts_are_the_whole(drawn):
    whole = Samples.of(iter(drawn))
    joined = Samples.join([Samples.of(iter(drawn[:, :2])), Samples.of(iter(drawn[:, 2:]))])
    assert torch.equal(joined.mean, whole.mean)
    assert torch.equal(joined.std, whole.std)


class Known(Sampler):
    """Draws given probabilities."""

    def __init__(self, *draws):
        self.passes = len(draws)
        self.draws = [torch.tensor(draw, dtype=torch.float64).log() for draw in draws]

    def prepare(self, clean):
        return lambda batch: Samples.of(self.draws)


def test_scores_of_known_draws(clean):
    """Two draws with probabilities 0.9 and 0.5 spread by 0.2 and have entropy H(0.7)."""
    sampler = Known([[0.9, 0.1]], [[0.5, 0.5]])
    batch = Batch(torch.zeros(1, 1, 1, 1), torch.tensor([[1.0, 0.0]]), torch.zeros(1, 1))
    spread = Spread("two", sampler).fit(clean).score(batch)
    entropy = PredictiveEntropy("two", sampler).fit(clean).score(batch)
    assert spread.item() == pytest.approx(0.2)
    assert entropy.item() == pytest.approx(-(0.7 * math.log(0.7) + 0.3 * math.log(0.3)))
    assert Spread("two", sampler).forward_passes == 2


def test_the_spread_is_that_of_the_networks_class_or_of_the_samples_own(clean):
    """The network says class 0 in both rows; the draws agree in the first, not in the second."""
    first, second = [[0.8, 0.1, 0.1], [0.3, 0.6, 0.1]], [[0.6, 0.3, 0.1], [0.2, 0.4, 0.4]]
    logits = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    batch = Batch(torch.zeros(2, 1, 1, 1), logits, torch.zeros(2, 1))
    sampler = Known(first, second)
    spread = Spread("two", sampler).fit(clean).score(batch)
    own = OwnClassSpread("two", sampler).fit(clean)
    assert own.name == "two_own_class"
    torch.testing.assert_close(spread, torch.tensor([0.1, 0.05], dtype=torch.float64))
    torch.testing.assert_close(own.score(batch), torch.tensor([0.1, 0.1], dtype=torch.float64))


@pytest.mark.parametrize("name", ["mc_dropout", "mc_dropout_ll"])
def test_both_spreads_of_a_sampler_by_hand(name, clean, shifted):
    """The same draws by hand: the seed, then one pass of dropout after the other."""
    rows = Batch(shifted.images[:40], shifted.logits[:40], shifted.features[:40])
    network, passes = clean.network, 4
    rate, drawn = clean.dropout_rate if name == "mc_dropout" else 0.2, []
    with torch.no_grad(), seeded("cpu", clean.seed):
        for _ in range(passes):
            if name == "mc_dropout_ll":
                logits = network.head(functional.dropout(rows.features, rate))
            else:
                hidden = unit_range(rows.images)
                for layer in [*network.body, network.head]:
                    dropout = isinstance(layer, torch.nn.Dropout)
                    hidden = functional.dropout(hidden, rate) if dropout else layer(hidden)
                logits = hidden
            drawn.append(logits.double().softmax(1).numpy())
    probabilities = np.stack(drawn)  # (draws, n, classes)
    network_class = rows.logits.numpy().argmax(1)
    own_class = probabilities.mean(0).argmax(1)
    assert (network_class != own_class).any()
    for method, chosen in ((name, network_class), (f"{name}_own_class", own_class)):
        expected = [probabilities[:, i, c].std() for i, c in enumerate(chosen)]
        scores = create(method, passes=passes).fit(clean).score(rows)
        np.testing.assert_allclose(scores.numpy(), expected, rtol=1e-9, atol=1e-15)


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
    torch.testing.assert_close(samples.std, (probabilities[0] - probabilities[1]).abs() / 2)


def test_members_differ_from_each_other_and_from_the_network(clean):
    members = clean.trainer.train_ensemble(clean.network, 2, clean.images[:200], clean.labels[:200])
    weights = [m.head.weight for m in (*members, clean.network)]
    for i in range(3):
        for j in range(i):
            assert (weights[i] - weights[j]).abs().mean() > 0.01
