from __future__ import annotations

import math

import pytest
import torch

from qipf.bench.methods import Batch, CleanData, LayeredNetwork, create, neighbours


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
    monkeypatch.setattr(neighbours, "PAIRS", 60)  # two queries at a time
    torch.testing.assert_close(method.score(batch_of(asked)), whole, rtol=1e-6, atol=1e-7)


def test_nnguide_is_energy_times_the_mean_of_the_largest_scaled_cosines(relu_data, relu_batch):
    found = create("nnguide", k=3).fit(relu_data).score(relu_batch)
    energy = relu_data.logits.double().exp().sum(1).log()
    for i in range(4):
        z = relu_batch.features[i].double()
        similar = [
            float(energy[j] * (z @ other) / (z.norm() * other.norm()))
            for j, other in enumerate(relu_data.features.double())
        ]
        guidance = sum(sorted(similar)[-3:]) / 3
        own = float(relu_batch.logits[i].double().exp().sum().log())
        assert found[i].item() == pytest.approx(-guidance * own, rel=1e-5)


def test_trust_score_is_the_ratio_of_the_nearest_distances(relu_data, relu_batch):
    found = create("trust_score").fit(relu_data).score(relu_batch)
    for i in range(4):
        distances = (relu_data.features - relu_batch.features[i]).double().norm(dim=1)
        nearest = [float(distances[relu_data.labels == c].min()) for c in range(4)]
        own = nearest.pop(int(relu_batch.predicted[i]))
        assert found[i].item() == pytest.approx(own / min(nearest), rel=1e-4)


def test_trust_score_without_examples_of_a_class(relu_data, relu_batch):
    some = relu_data.labels != 2
    few = CleanData(relu_data.network, relu_data.images[some], relu_data.labels[some])
    found = create("trust_score").fit(few).score(relu_batch)
    assert bool((found[relu_batch.predicted == 2] == 1e6).all())
    assert torch.isfinite(found).all()


def test_trust_score_of_examples_that_two_classes_share():
    """Their distances to both are zero: as near to the own class as to another."""
    clean = clean_with(torch.eye(3).repeat(2, 1))
    clean = CleanData(clean.network, clean.images, torch.tensor([0, 0, 0, 1, 1, 1]))
    assert create("trust_score").fit(clean).score(batch_of(torch.eye(3))).tolist() == [0, 0, 0]


def test_nuq_is_the_error_of_the_kernel_classifier_plus_its_standard_error(relu_data, relu_batch):
    method = create("nuq", k=500).fit(relu_data)  # more than there are: all of them
    found, h = method.score(relu_batch), method.chosen()["bandwidth"]
    for i in range(4):
        r = (relu_data.features - relu_batch.features[i]).double().norm(dim=1)
        kernel = (-(r**2) / (2 * h * h)).exp()
        p = [float(kernel[relu_data.labels == c].sum() / kernel.sum()) for c in range(4)]
        spread = max(q * (1 - q) for q in p) * 2 ** (-relu_batch.features.shape[1] / 2)
        tau = math.sqrt(spread / float(kernel.sum()))
        total = 1 - max(p) + 2 * math.sqrt(2 / math.pi) * tau
        assert found[i].item() == pytest.approx(math.log(total), rel=1e-3, abs=1e-3)


def test_nuq_grows_without_bound_away_from_the_data(relu_data):
    method = create("nuq").fit(relu_data)
    far = [10.0**k * torch.ones(1, 12) for k in (1, 2, 3)]
    scores = [method.score(Batch(x, torch.zeros(1, 4), x)).item() for x in far]
    assert scores[0] < scores[1] < scores[2] < math.inf


def test_the_bandwidth_of_nuq_is_in_units_of_the_distances_to_neighbours(relu_data):
    width = create("nuq", k=20).fit(relu_data).chosen()["bandwidth"]
    features = relu_data.features
    nearest = (features[:, None] - features).double().norm(dim=2).sort(1).values[:, 1:21]
    factor = width / float(nearest.flatten().median())
    assert factor == pytest.approx(min(neighbours.WIDTHS, key=lambda w: abs(w - factor)), rel=1e-3)


def test_bandwidths_of_nuq_are_those_of_the_published_results():
    assert neighbours.WIDTHS == (0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.4)


@pytest.mark.parametrize(("pairs", "sizes"), [(1, [1] * 7), (20, [2, 2, 2, 1]), (1000, [7])])
def test_few_pairs_are_held_at_once(pairs, sizes, monkeypatch):
    monkeypatch.setattr(neighbours, "PAIRS", pairs)
    queries, known, seen = torch.arange(7.0)[:, None], torch.zeros(10, 1), []

    def doubled(part):
        seen.append(len(part))
        return 2 * part

    assert torch.equal(neighbours.by_parts(queries, known, doubled), 2 * queries)
    assert seen == sizes
