from __future__ import annotations

import pytest
import torch
from torch import nn

from qipf.bench.methods import Batch, CleanData, LayeredNetwork, create
from qipf.bench.methods.flipout import Flipout, FlipoutConv2d, FlipoutLinear
from qipf.bench.methods.svi import VariationalNetwork
from qipf.bench.networks import VGG3, LeNet
from qipf.errors import QIPFInputError


@pytest.mark.parametrize(
    ("network", "dense"), [(LeNet(1, 10, 28), 3), (VGG3(3, 10, 8), 2)], ids=["lenet", "vgg3"]
)
def test_flipout_stands_in_every_dense_layer_and_in_the_last_convolution(network, dense):
    before = {key: tensor.clone() for key, tensor in network.state_dict().items()}
    variational = VariationalNetwork(network)
    kinds = [type(layer) for layer in variational.modules()]
    assert kinds.count(FlipoutLinear) == dense
    assert kinds.count(FlipoutConv2d) == 1
    assert nn.Linear not in kinds
    convolutions = [k for k in kinds if k in (nn.Conv2d, FlipoutConv2d)]
    assert convolutions[-1] is FlipoutConv2d
    assert all(torch.equal(tensor, before[key]) for key, tensor in network.state_dict().items())


def test_with_vanishing_deviation_it_is_the_network_it_came_from():
    network = LeNet(1, 10, 28).eval()
    images = torch.rand(4, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    variational = VariationalNetwork(network, initial_std=1e-6).eval()
    stem, tail = variational.split()
    torch.testing.assert_close(variational(images), network(images), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(tail(stem(images)), network(images), rtol=1e-3, atol=1e-4)
    assert not any(isinstance(layer, Flipout) for layer in stem)
    assert isinstance(tail[0], FlipoutConv2d)


def test_the_divergence_is_the_sum_over_layers():
    variational = VariationalNetwork(LeNet(1, 10, 28))
    layers = [layer.kl() for layer in variational.modules() if isinstance(layer, Flipout)]
    assert len(layers) == 4
    torch.testing.assert_close(variational.kl(), sum(layers))


@pytest.mark.parametrize("name", ["svi", "svi_ll"])
def test_the_divergence_counts_once_for_all_training_examples(name, clean):
    """The penalty of a step is KL / n: minus the evidence bound, per example."""
    trained = {}

    class Recording:
        def train(self, network, inputs, labels, *, penalty, **options):
            trained.update(network=network, penalty=penalty(), inputs=inputs, options=options)
            return network

    data = CleanData(clean.network, clean.images, clean.labels, Recording())
    create(name, epochs=7).fit(data)
    assert len(clean.labels) == 1198
    torch.testing.assert_close(trained["penalty"], trained["network"].kl() / 1198)
    assert trained["penalty"] > 0
    assert trained["options"]["epochs"] == 7
    assert trained["inputs"] is (data.images if name == "svi" else data.features)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["svi", "svi_ll"])
def test_it_learns(name, clean, digits):
    """Clean accuracy within 3 points of the deterministic network, and a posterior that moved."""
    batch = Batch.of(clean.network, digits.test_images)
    method = create(name, epochs=30, passes=50).fit(clean)
    accuracy = (method.samples(batch).mean.argmax(1) == digits.test_labels).double().mean()
    deterministic = (batch.predicted == digits.test_labels).double().mean()
    assert deterministic > 0.95
    assert accuracy > deterministic - 0.03
    untrained = create(name, epochs=1, passes=50).fit(clean)
    assert method.score(batch).mean() > 1.2 * untrained.score(batch).mean()


def test_the_last_layer_form_needs_a_dense_last_layer(clean):
    network = LayeredNetwork([nn.Flatten()], nn.Identity())
    network.register_parameter("weight", nn.Parameter(torch.zeros(1)))
    data = CleanData(network, torch.zeros(2, 1, 1, 3), torch.zeros(2).long(), clean.trainer)
    message = "svi_ll replaces a last layer of type nn.Linear; the network's is Identity."
    with pytest.raises(QIPFInputError, match=message):
        create("svi_ll").fit(data)
