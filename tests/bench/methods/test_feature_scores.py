from __future__ import annotations

import math

import pytest
import torch

from qipf.bench.methods import Batch, CleanData, LayeredNetwork, create
from qipf.bench.methods.feature_scores import _largest
from qipf.errors import QIPFInputError


def test_sirc_is_softmax_raised_where_features_are_small(relu_data, relu_batch):
    found = create("sirc").fit(relu_data).score(relu_batch)
    size = relu_data.features.double().sum(1)
    a, b = float(size.mean() - 3 * size.std()), 1 / float(size.std())
    for i in range(6):
        wrong = 1 - float(torch.softmax(relu_batch.logits[i].double(), 0).max())
        factor = 1 + math.exp(-b * (float(relu_batch.features[i].sum()) - a))
        assert found[i].item() == pytest.approx(math.log(wrong * factor), rel=1e-6)


def test_nci_subtracts_the_size_of_the_features(relu_data, relu_batch):
    plain, penalised = (create("nci", alpha=a).fit(relu_data).score(relu_batch) for a in (0, 0.5))
    torch.testing.assert_close(plain - penalised, 0.5 * relu_batch.features.double().sum(1))


def test_features_of_both_signs_count_by_their_size():
    network = LayeredNetwork([torch.nn.Flatten()], torch.nn.Linear(4, 2))
    images = torch.tensor([[3.0, -4.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]])[:, None, None, :]
    clean = CleanData(network, images, torch.tensor([0, 1]))
    batch = Batch.of(network, images)
    kept = torch.tensor([3.0, -4.0, 0.0, 0.0]).double() * math.exp(8 / 7)
    with torch.no_grad():
        logits = network.head.double()(kept)
        network.head.float()
    found = create("ash", share=0.5).fit(clean).score(batch)
    assert found[0].item() == pytest.approx(-float(torch.logsumexp(logits, 0)), rel=1e-5)
    assert torch.isfinite(found).all()  # also without any activation


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.5, [1.0, 1.0, 0.0, 0.0]),
        (0.7, [0.0, 1.0, 0.0, 0.0]),
        (0.99, [0.0, 1.0, 0.0, 0.0]),  # one is always kept
    ],
)
def test_the_largest_features_and_the_ratio_of_the_sums(share, expected):
    features = torch.tensor([[3.0, -4.0, 1.0, 0.0]]).double()
    kept, factor = _largest(features, share)
    assert kept.tolist() == [expected]
    size = sum(e * f for e, f in zip(expected, (3, 4, 1, 0), strict=True))
    assert factor.item() == pytest.approx(math.exp(8 / size))


@pytest.mark.parametrize("name", ["nci", "fdbd", "vim", "react", "ash", "scale", "laplace_ll"])
def test_a_last_layer_that_is_not_linear_is_refused(name):
    network = LayeredNetwork([torch.nn.Flatten(), torch.nn.Linear(3, 2)], torch.nn.Tanh())
    clean = CleanData(network, torch.zeros(4, 1, 1, 3), torch.zeros(4).long())
    message = f"{name} reads the weights of a last layer of type nn.Linear; the network's is Tanh."
    with pytest.raises(QIPFInputError, match=message):
        create(name).fit(clean)


def test_shares_and_dimensions_are_checked(relu_data):
    with pytest.raises(QIPFInputError, match="ash: 1 - share must be positive; got 0"):
        create("ash", share=1.0)
    with pytest.raises(QIPFInputError, match="vim: dimension must be between 1 and 11; got 12."):
        create("vim", dimension=12).fit(relu_data)
