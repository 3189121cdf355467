from __future__ import annotations

import numpy as np
import pytest
import torch

from qipf.bench.methods import Batch, CleanData, LayeredNetwork, create
from qipf.bench.methods import distances as knn


def clean_with(features: torch.Tensor) -> CleanData:
    """Clean data whose features are the images themselves."""
    network = LayeredNetwork([torch.nn.Flatten()], torch.nn.Linear(features.shape[1], 2))
    return CleanData(network, features[:, None, None, :], torch.zeros(len(features)).long())


def batch_of(features: torch.Tensor) -> Batch:
    return Batch(features[:, None, None, :], torch.zeros(len(features), 2), features)


@pytest.mark.parametrize("k", [1, 3, 20, 99])
def test_equals_the_naive_sorted_distance(k):
    generator = torch.Generator().manual_seed(0)
    known = torch.randn(20, 5, generator=generator, dtype=torch.float64).float()
    asked = torch.randn(7, 5, generator=generator, dtype=torch.float64).float()
    scores = create("knn", k=k).fit(clean_with(known)).score(batch_of(asked))
    unit_known = known.double() / known.double().norm(dim=1, keepdim=True)
    unit_asked = asked.double() / asked.double().norm(dim=1, keepdim=True)
    for row, score in zip(unit_asked, scores, strict=True):
        distances = sorted((row - other).norm().item() for other in unit_known)
        assert score.item() == pytest.approx(distances[min(k, 20) - 1], abs=1e-6)


def test_length_does_not_matter_and_small_distances_keep_their_digits():
    known = torch.tensor([[1.0, 0.0]])
    asked = torch.tensor([[5.0, 0.0], [1.0, 1e-5], [0.0, 0.0]])
    scores = create("knn", k=1).fit(clean_with(known)).score(batch_of(asked))
    assert scores.tolist() == pytest.approx([0.0, 1e-5, 1.0], rel=1e-3)


def test_queries_are_taken_in_parts(monkeypatch):
    generator = torch.Generator().manual_seed(1)
    known, asked = torch.randn(30, 4, generator=generator), torch.randn(11, 4, generator=generator)
    method = create("knn", k=2).fit(clean_with(known))
    whole = method.score(batch_of(asked))
    monkeypatch.setattr(knn, "PAIRS", 60)  # two queries at a time
    torch.testing.assert_close(method.score(batch_of(asked)), whole, rtol=1e-6, atol=1e-7)


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
