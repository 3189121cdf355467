"""Tiles of kernels summed by class, against one dense sum in float64."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qipf.field.engines.online import online_step
from qipf.layered import class_field, class_sums
from qipf.layered.class_field import SMALLEST, ClassField
from qipf.layered.class_sums import CHUNK, ROWS, TILE, ClassSums, chains
from qipf.layered.metric import Metric

DIMENSION = 12
CPU_ROWS, CPU_TILE = ROWS["cpu"], TILE["cpu"]
METRIC = Metric(torch.zeros(DIMENSION), torch.eye(DIMENSION), gain_free=False)


@pytest.fixture(autouse=True, scope="module")
def tiled():
    """Also where there are few centres."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(class_field, "FEWEST_TILED", 1)
        yield


def field_of(count, classes=5, bandwidth=0.3, weighted=False, seed=0):
    random = torch.Generator().manual_seed(seed)
    embeddings = METRIC(torch.randn(count, DIMENSION, generator=random))
    labels = torch.randint(classes, (count,), generator=random)
    counts = torch.randint(1, 99, (count,), generator=random).float() if weighted else None
    return ClassField(METRIC, embeddings, labels, classes, bandwidth, torch.arange(count), counts)


def queries_of(count, seed=1):
    return torch.randn(count, DIMENSION, generator=torch.Generator().manual_seed(seed))


def dense(field, queries, bandwidth=None):
    """All kernels at once, in float64: posterior and log-density."""
    inverse = 1 / (bandwidth or field.bandwidth) ** 2
    scores = (METRIC(queries).double() @ field.embeddings.double().T - 1) * inverse
    nearest = scores.amax(1, keepdim=True)
    members = torch.zeros(len(field.embeddings), field.classes, dtype=torch.float64)
    members.scatter_(1, field.labels[:, None], field.counts.double()[:, None])
    by_class = (scores - nearest).exp() @ members
    total = by_class.sum(1, keepdim=True)
    height = nearest[:, 0] + total[:, 0].log() - field.counts.double().sum().log()
    return (by_class / total).clamp(min=SMALLEST), height


def assert_agree(found, expected, inverse):
    """Within the rounding of a float32 cosine, which a narrow kernel magnifies."""
    posterior, log_density = expected
    loss = 1e-6 * (1 + inverse)
    # below the smallest float32 that has all its digits, the clamp has been reached
    torch.testing.assert_close(found.posterior.double(), posterior, rtol=loss, atol=1e-29)
    # the logarithm of all counts, about 11, is subtracted from another as large
    torch.testing.assert_close(found.log_density.double(), log_density, rtol=1e-6, atol=3 * loss)


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 200, CPU_ROWS, CPU_ROWS + 1])
def test_any_number_of_rows_agrees_with_float64(count, weighted):
    field, queries = field_of(3000, weighted=weighted), queries_of(count)
    assert_agree(field(queries), dense(field, queries), 1 / 0.3**2)


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize(
    "centers", [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, CPU_TILE // 16, CPU_TILE // 16 + 1]
)
def test_any_number_of_centres_agrees_with_float64(centers, weighted):
    field, queries = field_of(centers, weighted=weighted), queries_of(16)
    assert_agree(field(queries), dense(field, queries), 1 / 0.3**2)


@pytest.mark.parametrize("bandwidth", [0.02, 0.1, 1.0, 30.0])
def test_narrow_and_wide_kernels_agree_with_float64(bandwidth):
    field, queries = field_of(2500, bandwidth=bandwidth), queries_of(70)
    assert_agree(field(queries), dense(field, queries), 1 / bandwidth**2)


def test_where_every_kernel_is_below_the_smallest_float32():
    field = field_of(2500, bandwidth=0.05)
    pole = torch.zeros(DIMENSION)
    pole[0] = 1.0
    embeddings = METRIC(field.embeddings * 0.2 + pole)
    far = ClassField(METRIC, embeddings, field.labels, 5, 0.05, field.examples)
    queries = -pole + 0.1 * queries_of(40)
    posterior, log_density = dense(far, queries)
    assert float(log_density.max()) < -200
    assert torch.exp(log_density.float()).max() == 0
    assert_agree(far(queries), (posterior, log_density), 1 / 0.05**2)


def test_classes_without_centres_have_the_smallest_probability():
    field = field_of(2000, classes=3)
    more = ClassField(METRIC, field.embeddings, field.labels * 2, 7, 0.3, field.examples)
    posterior = more(queries_of(20)).posterior
    assert (posterior[:, [1, 3, 5, 6]] == torch.tensor(SMALLEST)).all()
    torch.testing.assert_close(posterior[:, [0, 2, 4]], field(queries_of(20)).posterior)


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("classes", [2, 700, 5000])
def test_many_classes_in_many_chunks(classes, weighted):
    field, queries = field_of(20 * CHUNK + 5, classes, weighted=weighted), queries_of(9)
    assert_agree(field(queries), dense(field, queries), 1 / 0.3**2)


def test_sums_of_a_thousand_classes_are_exact_to_a_millionth():
    """Embeddings with few digits, so that cosines are exact: only the sums are rounded."""
    random = torch.Generator().manual_seed(0)
    embeddings = torch.randint(-8, 9, (9000, DIMENSION), generator=random) / 32
    queries = torch.randint(-8, 9, (40, DIMENSION), generator=random) / 32
    labels = torch.randint(1000, (9000,), generator=random)
    for found, width in zip(
        ClassSums(embeddings, labels, torch.ones(9000), 1000)(queries, [1.0, 0.5]),
        [1.0, 0.5],
        strict=True,
    ):
        scores = queries.double() @ embeddings.double().T / width**2
        kernel = (scores - scores.amax(1, keepdim=True)).exp()
        expected = torch.zeros(40, 1000, dtype=torch.float64).index_add_(1, labels, kernel)
        torch.testing.assert_close(found.by_class.double(), expected, rtol=1e-6, atol=0)
        torch.testing.assert_close(found.nearest.double(), scores.amax(1) - 1 / width**2)


def test_sums_at_narrower_widths_are_scaled_down_where_the_maximum_rises(monkeypatch):
    """The centres of later tiles are nearer, so that every tile changes the maximum."""
    monkeypatch.setattr(class_sums, "CHUNK", 4)
    monkeypatch.setattr(class_sums, "TILE", {"cpu": 4 * 4})
    angles = torch.linspace(1.5, 0.1, 40)
    embeddings = torch.stack([angles.cos(), angles.sin()], 1)
    labels = torch.arange(40) // 5  # ascending: the tiles are in this order
    widths = [1.0, 0.5**0.5, 0.5, 0.25]
    sums = ClassSums(embeddings, labels, torch.ones(40), 8)(torch.tensor([[1.0, 0.0]]), widths)
    for found, width in zip(sums, widths, strict=True):
        scores = embeddings[:, 0].double() / width**2
        kernel = (scores - scores.max()).exp().view(8, 5).sum(1)
        torch.testing.assert_close(found.by_class[0].double(), kernel, rtol=3e-5, atol=1e-30)


def test_rows_of_another_precision_are_taken_as_float32():
    field, queries = field_of(2000), queries_of(30)
    for one, two in zip(field(queries.double()), field(queries), strict=True):
        assert one.dtype == torch.float32
        assert torch.equal(one, two)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 300), st.data())
def test_a_row_does_not_depend_on_its_batch_beyond_rounding(count, data):
    field, queries = field_of(2100, bandwidth=0.4), queries_of(count)
    place = data.draw(st.integers(0, count - 1))
    together, alone = field(queries), field(queries[place : place + 1])
    # other numbers of rows are multiplied in another order: some units of the last digit
    for one, two in zip(together, alone, strict=True):
        torch.testing.assert_close(one[place : place + 1], two, rtol=1e-5, atol=2e-6)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from([0.1, 0.1 * 2**0.5, 0.2, 0.25, 0.4, 0.8, 40.0]), max_size=6),
    st.booleans(),
)
def test_many_widths_are_each_as_accurate_as_alone(widths, weighted):
    field, queries = field_of(1100, weighted=weighted), queries_of(5)
    found = list(field.at_bandwidths(queries, widths))
    assert len(found) == len(widths)
    for values, width in zip(found, widths, strict=True):
        assert_agree(values, dense(field, queries, width), 1 / width**2)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 30), max_size=8))
def test_chains_lead_from_the_widest_to_every_width(eighths):
    widths = [2 ** (-eighth / 8) for eighth in eighths]
    places = []
    for chain in chains(widths):
        (first, none), done = chain[0], 0
        assert none == 0
        for place, squarings in chain:
            done += squarings
            assert squarings >= 0
            assert math.isclose(widths[place] ** 2, widths[first] ** 2 / 2**done, rel_tol=1e-8)
            places.append(place)
        assert done <= 4
    assert sorted(places) == list(range(len(widths)))


def test_the_widths_that_are_weighed_and_chosen_need_one_pass():
    for factors in ((0.5, 0.5**0.5, 1.0, 2**0.5), (1.4, 2.8, 5.6), (2.8 / 2**0.5, 2.8 * 2**0.5)):
        assert len(chains([0.1234 * factor for factor in factors])) == 1


def test_sums_are_those_of_the_definition():
    field, queries = field_of(50), METRIC(queries_of(3))
    (found,) = ClassSums(field.embeddings, field.labels, field.counts, 5)(queries, [0.3])
    scores = queries @ field.embeddings.T / 0.3**2
    for label in range(5):
        own = scores[:, field.labels == label] - scores.amax(1, keepdim=True)
        torch.testing.assert_close(found.by_class[:, label], own.exp().sum(1), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found.nearest, scores.amax(1) - 1 / 0.3**2, rtol=1e-5, atol=1e-5)


def test_a_tile_has_whole_chunks_and_no_more_scores_than_fit(monkeypatch):
    shapes = []

    def recorded(scores, top):
        shapes.append(tuple(scores.shape))
        return online_step(scores, top)

    monkeypatch.setattr(class_sums, "online_step", recorded)
    monkeypatch.setattr(class_sums, "TILE", {"cpu": 2**14 + 2**10})
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.nn.functional.normalize(torch.randn(2000, 3, generator=generator))
    sums = class_sums.ClassSums(embeddings, torch.arange(2000) // 500, torch.ones(2000), 4)
    sums(embeddings[:13], [1.0])  # sixteen columns: 1,088 rows would fit, eight chunks of 128 do
    assert shapes == [(1024, 16), (976, 16)]
