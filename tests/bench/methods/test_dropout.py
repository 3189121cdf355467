from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from qipf.bench.methods import Batch, CleanData, LayeredNetwork, create
from qipf.bench.methods.network import seeded
from qipf.bench.networks import LeNet
from qipf.errors import QIPFInputError


class Chance(nn.Module):
    """Notes which inputs it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        self.seen.append(hidden)
        return hidden


def clean_of(network: LayeredNetwork, images: torch.Tensor, **more) -> CleanData:
    return CleanData(network, images, torch.zeros(len(images)).long(), **more)


def test_dropout_acts_at_every_joint_with_the_given_rate_and_only_there():
    first, second = Chance(), Chance()
    body = [Chance(), nn.Flatten(), nn.Dropout(0.0), first, nn.Dropout(0.9), second]
    network = LayeredNetwork(body, nn.Linear(400, 2))
    images = torch.ones(30, 1, 20, 20)
    batch = Batch(images, torch.zeros(30, 2), torch.ones(30, 400))
    create("mc_dropout", rate=0.25, passes=4).fit(clean_of(network, images)).score(batch)
    assert len(body[0].seen) == 1  # what comes before the first joint is computed once
    assert len(first.seen) == len(second.seen) == 4
    once, twice = torch.cat(first.seen), torch.cat(second.seen)
    assert sorted(once.unique().tolist()) == pytest.approx([0.0, 1 / 0.75])
    assert (once == 0).double().mean().item() == pytest.approx(0.25, abs=0.01)
    assert (twice == 0).double().mean().item() == pytest.approx(1 - 0.75**2, abs=0.01)
    assert not torch.equal(first.seen[0], first.seen[1])  # passes differ


def test_lenet_drops_after_each_block_and_before_each_dense_layer():
    layers = [type(layer).__name__ for layer in LeNet().body]
    joints = [i for i, name in enumerate(layers) if name == "Dropout"]
    assert [layers[i - 1] for i in joints] == ["AvgPool2d", "Flatten", "Tanh", "Tanh"]
    followers = [*layers, "Linear"]
    assert [followers[i + 1] for i in joints] == ["Conv2d", "Linear", "Linear", "Linear"]


@pytest.mark.slow
def test_the_last_layer_form_has_the_analytic_mean_and_variance():
    r"""With w the head's weights: logits vary by p/(1-p) Σ w² z², around the deterministic ones."""
    with seeded("cpu", 0):
        network = LayeredNetwork([nn.Flatten()], nn.Linear(6, 2).double())
    features = torch.rand(1, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    captured: list[torch.Tensor] = []
    network.head.register_forward_hook(lambda _, __, output: captured.append(output))
    batch = Batch(features[:, None, None], torch.zeros(1, 2), features)
    create("mc_dropout_ll", passes=20_000).fit(clean_of(network, features[:, None, None])).score(
        batch
    )
    drawn = torch.cat(captured)
    weight, bias = network.head.weight.detach(), network.head.bias.detach()
    variance = 0.2 / 0.8 * (weight.square() @ features[0].square())
    assert drawn.mean(0).tolist() == pytest.approx((weight @ features[0] + bias).tolist(), abs=0.02)
    assert drawn.var(0).tolist() == pytest.approx(variance.tolist(), rel=0.05)


def test_the_rate_comes_from_the_clean_data_unless_given(clean, shifted):
    def with_rate(clean_rate: float, **options) -> torch.Tensor:
        data = CleanData(clean.network, clean.images, clean.labels, dropout_rate=clean_rate)
        batch = Batch(shifted.images, shifted.logits, shifted.features)
        return create("mc_dropout", passes=10, **options).fit(data).score(batch)

    assert torch.equal(with_rate(0.3), with_rate(0.1, rate=0.3))
    assert with_rate(0.3).mean() > with_rate(0.05).mean()


def test_many_rows_are_taken_in_parts(clean, digits, monkeypatch):
    from qipf.bench.methods import sampling

    monkeypatch.setattr(sampling, "ROWS", 100)
    batch = Batch.of(clean.network, digits.test_images)
    samples = create("mc_dropout", passes=3).fit(clean).samples(batch)
    assert samples.std.shape == (599, 10)
    assert samples.mean.sum(1).tolist() == pytest.approx([1.0] * 599)


def test_a_network_without_joints_is_refused():
    network = LayeredNetwork([nn.Flatten()], nn.Linear(4, 2))
    message = (
        "mc_dropout acts at the nn.Dropout modules of the network's body, and it has none. Put "
        "nn.Dropout(0.0) where dropout may act."
    )
    with pytest.raises(QIPFInputError, match=re.escape(message)):
        create("mc_dropout").fit(clean_of(network, torch.zeros(3, 1, 2, 2)))
