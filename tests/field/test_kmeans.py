"""k-means: blocks of scores, against the distances themselves."""

import torch

from qipf.field import kmeans


def test_scores_rank_the_centres_by_distance_in_memory_that_is_reused(monkeypatch):
    monkeypatch.setattr(kmeans, "SCORES_PER_BLOCK", 4 * 5 + 1)
    random = torch.Generator().manual_seed(0)
    rows, centers = (torch.randn(n, 3, generator=random).double() for n in (10, 5))
    nearest, places = [], set()
    for scores in kmeans._scores(rows, centers):
        nearest.append(scores.argmax(1))
        places.add(scores.data_ptr())
    assert [len(part) for part in nearest] == [4, 4, 2]
    assert torch.equal(torch.cat(nearest), torch.cdist(rows, centers).argmin(1))
    assert len(places) == 1
