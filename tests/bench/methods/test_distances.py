from __future__ import annotations

import numpy as np
import pytest
import torch

from qipf.bench.methods import Batch, CleanData, LayeredNetwork, create


def fitted(features: torch.Tensor, labels: torch.Tensor):
    network = LayeredNetwork([torch.nn.Flatten()], torch.nn.Linear(features.shape[1], 2))
    return create("mahalanobis").fit(CleanData(network, features[:, None, None, :], labels))


def score(method, features: torch.Tensor) -> torch.Tensor:
    return method.score(Batch(features, torch.zeros(len(features), 2), features))


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(0)
    mix = torch.randn(4, 4, generator=generator)
    labels = torch.arange(90) % 3
    return torch.randn(90, 4, generator=generator) @ mix + 3 * labels[:, None], labels


def test_equals_the_naive_formula(data):
    features, labels = data
    x, y = features.double().numpy(), labels.numpy()
    means = np.stack([x[y == c].mean(0) for c in range(3)])
    inverse = np.linalg.inv((x - means[y]).T @ (x - means[y]) / len(x))
    expected = [
        min(np.sqrt((row - mean) @ inverse @ (row - mean)) for mean in means) for row in x[:10]
    ]
    assert score(fitted(features, labels), features[:10]).tolist() == pytest.approx(expected)


def test_does_not_change_under_an_invertible_linear_map(data):
    features, labels = data
    turn = torch.randn(4, 4, generator=torch.Generator().manual_seed(5))
    plain = score(fitted(features, labels), features)
    turned = score(fitted(features @ turn, labels), features @ turn)
    torch.testing.assert_close(turned, plain, rtol=1e-3, atol=1e-3)


def test_a_feature_that_never_varies_is_left_out(data):
    features, labels = data
    dead = torch.cat([features, torch.zeros(90, 1)], dim=1)
    asked = torch.cat([features[:5], torch.ones(5, 1)], dim=1)
    torch.testing.assert_close(
        score(fitted(dead, labels), asked), score(fitted(features, labels), features[:5])
    )


def test_a_class_mean_is_at_distance_zero_and_classes_may_be_missing(data):
    features, labels = data
    kept = labels != 1
    method = fitted(features[kept], labels[kept])
    mean = features[labels == 2].double().mean(0, keepdim=True)
    assert score(method, mean).item() == pytest.approx(0.0, abs=1e-6)
