from __future__ import annotations

import pytest
import torch

from qipf.bench.methods import Batch, CleanData, LayeredNetwork, create, knn


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
