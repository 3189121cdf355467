"""Data and models of random numbers, as large as real ones: they take the same time."""

from __future__ import annotations

import torch
from torch import Tensor

import qipf
from qipf.bench.datasets import Dataset
from qipf.bench.methods.network import LayeredNetwork
from qipf.export.program import Example
from qipf.layered.class_field import ClassField
from qipf.layered.error_model import ErrorModel
from qipf.layered.metric import Scatter, unit_length
from qipf.layered.novelty import COLUMNS, NoveltyModel, RowLengths
from qipf.network.features import chosen_sites, run_in_batches

#: Number, channels and side of the training images of each network, and number of test images.
SHAPES = {"mnist_lenet": (60_000, 1, 28), "cifar10_vgg3": (50_000, 3, 32)}
SHAPES["cifar10_resnet18"] = SHAPES["cifar10_vgg3"]
LARGEST = 1000


def random_data(network: str) -> Dataset:
    """Images of noise, as many and as large as those of the network's dataset."""
    count, channels, size = SHAPES[network]
    random = torch.Generator().manual_seed(0)
    images = torch.randint(
        256, (count + LARGEST, channels, size, size), generator=random, dtype=torch.uint8
    )
    labels = torch.arange(len(images)) % 10
    names = tuple(map(str, range(10)))
    return Dataset("random", images[:count], labels[:count], images[count:], labels[count:], names)


def unfitted(
    net: LayeredNetwork, images: Tensor, labels: Tensor, centers: int, layers: int
) -> qipf.LayeredQIPF:
    """A model with random centres in the last layers, as large as a fitted one."""
    with torch.no_grad():
        every = chosen_sites(net, lambda part: net(*part.inputs), Example((images[:2],), {}))
        _, rows = run_in_batches(net, images, every)
    sites = every[-layers:]
    model, count, fields = qipf.LayeredQIPF(net), len(sites), {}
    random = torch.Generator().manual_seed(0)
    classes = (torch.arange(centers) * 10 // centers).to(net.device)  # sorted, as in a fitted field
    for site in sites:
        # gain-free, as most fitted metrics are, which takes longer
        metric = Scatter(rows[site], labels, gain_free=True).metric(0.3, model.max_dimension)
        units = unit_length(torch.randn(centers, metric.directions.shape[1], generator=random))
        counts = 0.5 + torch.rand(centers, generator=random)
        places = torch.arange(centers)
        fields[site] = ClassField(metric, units.to(net.device), classes, 10, 0.2, places, counts)
    model.layers_, model.fields_ = sites, tuple(fields.values())
    model.weights_ = torch.full((1 + count,), 1 / (1 + count)).double()
    model.error_model_ = ErrorModel.of(torch.ones(7 + count).double())
    metrics = {site: field.metric for site, field in fields.items()}
    model.lengths_ = RowLengths.of(rows, every, metrics)
    size = 1 + count + model.lengths_.count
    parameters = torch.ones(1 + COLUMNS + size + size**2).double()
    model.novelty_model_ = NoveltyModel.of(parameters, count, model.lengths_.count)
    model._set_fitted(Example((images[:2],), {}))
    return model
