"""k-means: blocks of scores, against the distances themselves."""

import numpy as np
import pytest
import torch

from qipf.field import kmeans


def test_scores_rank_the_centres_by_distance_in_memory_that_is_reused(monkeypatch):
    monkeypatch.setattr(kmeans, "SCORES_PER_BLOCK", {"cpu": 4 * 64 + 1})
    random = torch.Generator().manual_seed(0)
    rows, centers = (torch.randn(n, 3, generator=random).double() for n in (10, 5))
    nearest, places = [], set()
    for scores in kmeans._scores(rows, centers):
        nearest.append(kmeans._largest(scores))
        places.add(scores.data_ptr())
    assert [len(part) for part in nearest] == [4, 4, 2]
    assert torch.equal(torch.cat(nearest), torch.cdist(rows, centers).argmin(1))
    assert len(places) == 1


@pytest.mark.parametrize("groups", [1, 2, 9])
def test_the_largest_of_groups_is_the_largest_of_all(groups):
    generator = torch.Generator().manual_seed(groups)
    scores = torch.randn(200, 64 * groups, generator=generator)
    scores[:, -5:] = -torch.inf  # columns that fill up the last group
    assert torch.equal(kmeans._largest(scores), scores.argmax(1))
    assert kmeans._largest(torch.zeros(3, 64 * groups)).tolist() == [0, 0, 0]


@pytest.mark.parametrize(("outlier", "dtype"), [(25.0, torch.float32), (1000.0, torch.float64)])
def test_a_row_far_from_all_others_is_told_apart_in_float64(outlier, dtype, monkeypatch):
    """Beyond 30 root mean square distances, rounding of float32 would mix the other rows."""
    seen = set()
    plain = kmeans._scores

    def recorded(rows, centers):
        seen.add(rows.dtype)
        return plain(rows, centers)

    monkeypatch.setattr(kmeans, "_scores", recorded)
    rows = torch.randn(2000, 1, generator=torch.Generator().manual_seed(0))
    rows[0] = outlier
    found = kmeans.kmeans(
        rows, torch.ones(2000).double(), 20, np.random.RandomState(0), torch.device("cpu")
    )
    assert seen == {dtype}
    assert float(found.weights.sum()) == 2000


def test_clusters_start_at_rows_drawn_by_the_eighth_power_of_their_distance(monkeypatch):
    drawn = []

    def first_possible(chances, wanted, random):
        drawn.append((chances, wanted))
        return np.flatnonzero(chances > 0)[:wanted]

    monkeypatch.setattr(kmeans, "_draw", first_possible)
    rows, weights = torch.tensor([[0.0], [1.0], [2.0], [4.0]]).double(), np.array([1.0, 8, 2, 1])
    bar = kmeans.progress_bar("k-means", total=1, unit="clusters")
    with bar as shown:
        chosen = kmeans._initial(rows, weights, 3, np.random.RandomState(0), shown)
    assert chosen.tolist() == [0, 1, 2]
    assert [wanted for _, wanted in drawn] == [1, 1, 1]
    np.testing.assert_allclose(drawn[0][0], weights)
    np.testing.assert_allclose(drawn[1][0], weights * np.array([0, 1, 2, 4]) ** 8 / 4.0**8)
    np.testing.assert_allclose(drawn[2][0], weights * np.array([0, 0, 1, 3]) ** 8 / 3.0**8)


def test_rows_that_are_all_zero_stay_zero():
    rows = torch.zeros(4, 2)
    found = kmeans.kmeans(rows, torch.ones(4).double(), 2, np.random.RandomState(0), rows.device)
    assert not found.centers.any()
    assert float(found.weights.sum()) == 4.0
