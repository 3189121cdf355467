"""The fields of the classes, against a double loop."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qipf.layered import class_field, class_sums
from qipf.layered.class_field import SMALLEST, ClassField, nearest_of_class
from qipf.layered.metric import Metric


def field_of(
    count=40, dimension=3, classes=4, bandwidth=0.4, seed=0, repeat=1, order=None, counts=None
):
    random = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, dimension, generator=random)
    labels = torch.randint(classes, (count,), generator=random)
    order = torch.arange(count) if order is None else order
    metric = Metric(torch.zeros(dimension), torch.eye(dimension), gain_free=False)
    embeddings, labels = metric(rows)[order].repeat(repeat, 1), labels[order].repeat(repeat)
    return ClassField(metric, embeddings, labels, classes, bandwidth, order.repeat(repeat), counts)


COUNTS = torch.randint(1, 9, (40,), generator=torch.Generator().manual_seed(2)).float()
QUERIES = torch.randn(25, 3, generator=torch.Generator().manual_seed(7))


def naive(field, queries):
    """The definitions, pair by pair, in float64."""
    posterior, log_density = [], []
    for row in field.metric(queries).double().numpy():
        densities, counts = np.zeros(field.classes), field.counts.tolist()
        centers = zip(field.embeddings.double().numpy(), field.labels.tolist(), counts, strict=True)
        for center, label, count in centers:
            square = ((row - center) ** 2).sum()
            densities[label] += count * math.exp(-square / (2 * field.bandwidth**2)) / sum(counts)
        posterior.append(densities / densities.sum())
        log_density.append(math.log(densities.sum()))
    return torch.tensor(np.array(posterior)), torch.tensor(log_density).double()


@pytest.mark.parametrize("counts", [None, COUNTS], ids=["plain", "weighted"])
@pytest.mark.parametrize("bandwidth", [0.1, 0.4, 3.0])
def test_posterior_and_density_are_those_of_the_double_loop(bandwidth, counts):
    field = field_of(bandwidth=bandwidth, counts=counts)
    posterior, log_density = naive(field, QUERIES)
    found = field(QUERIES)
    torch.testing.assert_close(found.posterior.double(), posterior, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found.log_density.double(), log_density, atol=1e-4, rtol=1e-5)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.floats(0.05, 5), st.integers(2, 6))
def test_laws(seed, bandwidth, classes):
    field = field_of(seed=seed, bandwidth=bandwidth, classes=classes)
    found = field(QUERIES)
    torch.testing.assert_close(found.posterior.sum(1), torch.ones(25))
    assert (found.posterior >= SMALLEST).all()
    assert (found.log_density <= 1e-5).all()
    order = torch.randperm(40, generator=torch.Generator().manual_seed(seed))
    shuffled = field_of(seed=seed, bandwidth=bandwidth, classes=classes, order=order)(QUERIES)
    torch.testing.assert_close(shuffled.posterior, found.posterior, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(shuffled.log_density, found.log_density, atol=1e-5, rtol=1e-5)
    repeated = field_of(seed=seed, bandwidth=bandwidth, classes=classes, repeat=3)(QUERIES)
    torch.testing.assert_close(repeated.posterior, found.posterior, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(repeated.log_density, found.log_density, atol=1e-5, rtol=1e-5)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=40, max_size=40),
    st.floats(0.05, 5),
    st.sampled_from([1.0, 2.0, 1e6]),
)
def test_a_count_is_so_many_centres_in_one_place(counts, bandwidth, scale):
    counts = torch.tensor(counts)
    weighted = field_of(bandwidth=bandwidth, counts=scale * counts)(QUERIES)
    order = torch.arange(40).repeat_interleave(counts)
    plain = field_of(bandwidth=bandwidth, order=order)
    assert len(plain.embeddings) == int(counts.sum())
    torch.testing.assert_close(weighted.posterior, plain(QUERIES).posterior, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(
        weighted.log_density, plain(QUERIES).log_density, atol=1e-5, rtol=1e-5
    )


def test_the_largest_and_the_smallest_of_counts():
    counts = torch.ones(40)
    counts[3] = 2.0**50
    field = field_of(bandwidth=0.01, counts=counts)
    posterior, log_density = field(QUERIES)
    assert torch.isfinite(posterior).all()
    assert torch.isfinite(log_density).all()
    at_it = field(field.embeddings[3:4]).posterior[0]
    assert float(at_it[field.labels[3]]) == pytest.approx(1)


@pytest.mark.parametrize("counts", [None, COUNTS], ids=["plain", "weighted"])
def test_another_width_is_the_same_field_made_with_it(counts):
    field = field_of(counts=counts)
    other, made = field.at(0.9), field_of(bandwidth=0.9, counts=counts)
    assert (field.bandwidth, other.bandwidth) == (0.4, 0.9)
    for one, two in zip(other(QUERIES), made(QUERIES), strict=True):
        assert torch.equal(one, two)
    assert torch.equal(other.counts, made.counts)
    assert torch.equal(other.examples, field.examples)
    assert other.metric is field.metric


@pytest.mark.parametrize("deepest", [0.0, class_field.DEEPEST])
@pytest.mark.parametrize(
    "factor", [0.98, 1.02, 3.0]
)  # of the narrowest kernel that needs no nearest
def test_kernels_with_and_without_the_nearest_centre(deepest, factor, monkeypatch):
    monkeypatch.setattr(class_field, "DEEPEST", deepest)
    limit = math.sqrt(class_field.LOG2_E / 100.0)
    random = torch.Generator().manual_seed(0)
    spread = 0.1 * torch.rand(40, 3, generator=random)
    near = torch.nn.functional.normalize(torch.tensor([1.0, 0, 0]) + spread, dim=1)
    labels = torch.arange(40) % 2
    counts = 0.5 + torch.rand(40, generator=random)
    plain = Metric(torch.zeros(3), torch.eye(3), False)
    field = ClassField(plain, near, labels, 2, factor * limit, torch.arange(40), counts)
    rows = torch.cat([near[:5], -near[:5], torch.eye(3), torch.zeros(1, 3)])  # antipodes too
    found = field(rows)
    cosines = (torch.nn.functional.normalize(rows, dim=1) @ near.T).double()
    logs = (cosines - 1) / field.bandwidth**2 + counts.double().log()
    by_class = torch.stack([logs[:, labels == c].logsumexp(1) for c in range(2)], 1)
    total = by_class.logsumexp(1)
    density = total - counts.double().sum().log()
    torch.testing.assert_close(found.log_density.double(), density, rtol=1e-5, atol=1e-4)
    posterior = (by_class - total[:, None]).exp()
    torch.testing.assert_close(found.posterior.double(), posterior, rtol=1e-4, atol=1e-5)


def test_widths_at_once_are_widths_one_by_one():
    field = field_of()
    for found, width in zip(
        field.at_bandwidths(QUERIES, [0.2, 0.4, 1.0]), [0.2, 0.4, 1.0], strict=True
    ):
        alone = field_of(bandwidth=width)(QUERIES)
        torch.testing.assert_close(found.posterior, alone.posterior)
        torch.testing.assert_close(found.log_density, alone.log_density)


@pytest.mark.parametrize("counts", [None, COUNTS], ids=["plain", "weighted"])
@pytest.mark.parametrize(("chunk", "tile", "rows"), [(1, 1, 1), (7, 7, 3), (8, 16 * 28, 25)])
def test_tiles_change_nothing(monkeypatch, chunk, tile, rows, counts):
    monkeypatch.setattr(class_sums, "CHUNK", chunk)
    monkeypatch.setattr(class_sums, "TILE", {"cpu": tile})
    monkeypatch.setattr(class_field, "ROWS", {"cpu": rows})
    monkeypatch.setattr(class_field, "FEWEST_TILED", 1)
    field = field_of(counts=counts)
    whole = field.in_one(field.metric(QUERIES))
    torch.testing.assert_close(field(QUERIES).posterior, whole.posterior)
    torch.testing.assert_close(field(QUERIES).log_density, whole.log_density)


@pytest.mark.parametrize("counts", [None, COUNTS], ids=["plain", "weighted"])
def test_without_a_table_of_centres_and_classes_the_values_are_the_same(monkeypatch, counts):
    field = field_of(counts=counts)
    with_table = field(QUERIES), field.in_one(field.metric(QUERIES))
    monkeypatch.setattr(class_field, "LARGEST_TABLE", 40 * 4 - 1)
    field = field_of(counts=counts)
    for one, two in zip(
        (field(QUERIES), field.in_one(field.metric(QUERIES))), with_table, strict=True
    ):
        torch.testing.assert_close(one.posterior, two.posterior, rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(one.log_density, two.log_density)
    assert "_members" not in vars(field)


def test_rows_are_cut_where_there_are_many_classes(monkeypatch):
    monkeypatch.setattr(class_field, "LARGEST_TABLE", 3 * 40)
    field = field_of(classes=40)
    assert field._rows_at_once(QUERIES) == 3
    posterior, _ = naive(field, QUERIES)
    torch.testing.assert_close(field(QUERIES).posterior.double(), posterior, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("block", [1, 3 * 40, 2**21])
def test_blocks_change_nothing(monkeypatch, block):
    monkeypatch.setattr(class_field, "BLOCK", {"cpu": block})
    field = field_of()
    assert field._rows_at_once(QUERIES) == max(1, block // 40)
    whole = field.in_one(field.metric(QUERIES))
    for found in (field(QUERIES), list(field.at_bandwidths(QUERIES, [0.9, 0.4]))[1]):
        torch.testing.assert_close(found.posterior, whole.posterior)
        torch.testing.assert_close(found.log_density, whole.log_density)


def test_thinned_has_every_so_many_centres():
    field = field_of(classes=2, counts=COUNTS)
    few = field.thinned(16)
    kept = [place * 40 // 16 for place in range(16)]
    assert few.examples.tolist() == kept
    assert torch.equal(few.embeddings, field.embeddings[kept])
    assert torch.equal(few.labels, field.labels[kept])
    assert torch.equal(few.counts, COUNTS[kept])
    assert field.thinned(40) is field


def test_a_narrow_kernel_knows_only_the_nearest_and_a_wide_one_only_the_shares():
    field = field_of(bandwidth=1e-8)
    cosines = field.metric(QUERIES) @ field.embeddings.T
    nearest = field.labels[cosines.argmax(1)]
    assert torch.equal(field(QUERIES).posterior.argmax(1), nearest)
    assert torch.isfinite(field(QUERIES).log_density).all()
    shares = torch.bincount(field.labels, minlength=4) / 40
    wide = field_of(bandwidth=1e3)(QUERIES).posterior
    torch.testing.assert_close(wide, shares.expand(25, -1), atol=1e-5, rtol=0)


def test_a_class_without_centres_is_told():
    field = field_of(classes=4)
    more = ClassField(field.metric, field.embeddings, field.labels, 6, 0.4, field.examples)
    assert (field.complete, more.complete) == (True, False)
    assert more.known.tolist() == [True] * 4 + [False] * 2
    posterior = more(QUERIES).posterior
    assert torch.equal(posterior[:, :4], field(QUERIES).posterior)
    assert (posterior[:, 4:] == torch.tensor(SMALLEST)).all()


def test_nearest_are_those_of_sorting(monkeypatch):
    monkeypatch.setattr(class_field, "BLOCK", {"cpu": 3 * 40})
    field = field_of()
    classes = torch.arange(25) % 4
    places, cosines = field.nearest(QUERIES, classes, 3)
    for row, label, found, similar in zip(QUERIES, classes, places, cosines, strict=True):
        every = (field.metric(row[None]) @ field.embeddings.T)[0]
        own = (field.labels == label).nonzero()[:, 0]
        expected = own[every[own].argsort(descending=True)][:3]
        assert found.tolist() == expected.tolist()
        torch.testing.assert_close(similar, every[expected])


def test_where_a_class_has_too_few_centres_the_rest_is_marked():
    field = field_of(count=5, classes=2)
    own = int((field.labels == 1).sum())
    assert 0 < own < 5
    places, cosines = field.nearest(QUERIES, torch.ones(25, dtype=torch.long), 10)
    assert places.shape == (25, 5)
    assert torch.isfinite(cosines).sum(1).tolist() == [own] * 25


def test_empty_and_moved():
    field = field_of(counts=COUNTS)
    assert [part.shape for part in field(QUERIES[:0])] == [(0, 4), (0,)]
    assert [part.shape for part in field.nearest(QUERIES[:0], field.labels[:0], 2)] == [(0, 2)] * 2
    moved = field.to(torch.device("cpu"))
    assert torch.equal(moved(QUERIES).posterior, field(QUERIES).posterior)
    assert torch.equal(moved.counts, COUNTS)
    assert torch.equal(moved.examples, field.examples)
    assert field_of().counts.tolist() == [1.0] * 40


def test_a_class_with_few_centres_is_not_thinned_away():
    labels = torch.tensor([0] * 51 + [1] + [2] * 48)
    points = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    metric = Metric(torch.zeros(3), torch.eye(3), gain_free=False)
    field = ClassField(metric, metric(points), labels, 3, 0.3, torch.arange(100))
    small = field.thinned(20)
    assert small.labels.bincount().tolist() == [11, 1, 9]
    assert torch.equal(small.examples, small.examples.sort().values)


def test_a_changed_field_is_made_of_the_same_parts_but_for_these():
    field = field_of(counts=COUNTS)
    field(QUERIES)  # sums of its centres are kept
    half = slice(20)
    found = field.changed(
        embeddings=field.embeddings[half], labels=field.labels[half], counts=None, bandwidth=0.7
    )
    expected = ClassField(
        field.metric, field.embeddings[half], field.labels[half], 4, 0.7, field.examples
    )
    assert found.metric is field.metric
    assert found.examples is field.examples
    assert torch.equal(found.counts, torch.ones(20))
    for one, other in zip(found(QUERIES), expected(QUERIES), strict=True):
        assert torch.equal(one, other)
    same = field.changed()
    assert torch.equal(same.counts, COUNTS)
    assert torch.equal(same(QUERIES).posterior, field(QUERIES).posterior)


def test_the_nearest_centre_of_the_class_in_another_field():
    field = field_of()
    assert torch.equal(nearest_of_class(field, field), torch.arange(40))
    small = field_of(count=25, seed=3)
    for center, label, found in zip(
        small.embeddings, small.labels, nearest_of_class(small, field), strict=True
    ):
        distances = (field.embeddings - center).square().sum(1)
        assert int(found) == int(distances.masked_fill(field.labels != label, 9).argmin())
