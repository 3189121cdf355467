"""Fields and lengths of several layers together, against float64 and against each alone."""

from dataclasses import replace

import pytest
import torch

from qipf.layered import stacked_layers as subject
from qipf.layered.class_field import FEWEST_SUMMED, ClassField
from qipf.layered.metric import Metric, Scatter
from qipf.layered.novelty import RowLengths
from qipf.layered.stacked_layers import StackedLayers
from qipf.network.features import LayerSite

CLASSES = 4


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make_field(
    centers, width, dimension, bandwidth, gain_free=False, classes=CLASSES, seed=0, sorts=True
):
    metric = Metric(numbers(width, seed=seed), numbers(width, dimension, seed=seed), gain_free)
    embeddings = metric(numbers(centers, width, seed=seed + 1))
    labels = torch.arange(centers) % classes
    counts = 0.5 + numbers(centers, seed=seed).abs()
    places = torch.arange(centers)
    if sorts:
        labels = labels.sort().values
    return ClassField(metric, embeddings, labels, CLASSES, bandwidth, places, counts)


def make_layers(*fields, others=()):
    """Fields by site, and lengths of their layers and of others with these widths."""
    by_site = {LayerSite(f"field {number}"): field for number, field in enumerate(fields)}
    widths = {site: len(field.metric.mean) for site, field in by_site.items()}
    widths |= {LayerSite(f"other {number}"): width for number, width in enumerate(others)}
    rows = {site: numbers(50, width, seed=5) + 0.3 for site, width in widths.items()}
    metrics = {site: field.metric for site, field in by_site.items()}
    return by_site, RowLengths.of(rows, tuple(reversed(widths)), metrics)


def rows_for(lengths, count, seed=11):
    return {site: numbers(count, width, seed=seed) for site, width in lengths.widths.items()}


def in_double(field, rows):
    """Posterior and log density, centre by centre."""
    metric, rows = field.metric, rows.double()
    if metric.gain_free:
        rows = rows / rows.norm(dim=1, keepdim=True)
    units = (rows - metric.mean.double()) @ metric.directions.double()
    units = units / units.norm(dim=1, keepdim=True)
    kernel = ((units @ field.embeddings.double().T - 1) / field.bandwidth**2).exp()
    kernel = kernel * field.counts.double() / field.counts.double().sum()
    by_class = torch.stack([kernel[:, field.labels == c].sum(1) for c in range(CLASSES)], 1)
    return by_class / by_class.sum(1, keepdim=True), by_class.sum(1).log()


CASES = {
    "of one size": make_layers(make_field(30, 6, 5, 0.3), make_field(30, 6, 5, 0.2, seed=7)),
    "of several sizes, and a layer without a field": make_layers(
        make_field(40, 9, 5, 0.3),
        make_field(8, 3, 3, 0.5, seed=3),
        make_field(21, 12, 7, 0.4),
        others=[17],
    ),
    "gain-free, and without some classes": make_layers(
        make_field(20, 5, 4, 0.3, gain_free=True), make_field(25, 8, 6, 0.5, classes=2)
    ),
    "not sorted, and so narrow that the nearest centre is looked for": make_layers(
        make_field(20, 5, 4, 0.3, sorts=False), make_field(25, 8, 6, 0.03)
    ),
    "alone": make_layers(make_field(30, 6, 5, 0.3)),
}


@pytest.mark.parametrize("count", [0, 1, 5, FEWEST_SUMMED + 1])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_values_are_those_of_each_layer(case, count):
    fields, lengths = case
    rows = rows_for(lengths, count)
    found = StackedLayers(fields, lengths)(rows)
    assert found.posterior.shape == (len(fields), count, CLASSES)
    for number, (site, field) in enumerate(fields.items()):
        posterior, log_density = in_double(field, rows[site])
        torch.testing.assert_close(found.posterior[number], posterior, rtol=0, atol=1e-5)
        densities = found.log_density[number].double()
        torch.testing.assert_close(densities, log_density, rtol=1e-5, atol=1e-4)
        alone = field(rows[site])
        torch.testing.assert_close(
            found.posterior[number].float(), alone.posterior, rtol=1e-3, atol=1e-6
        )
    expected = lengths(numbers(count, CLASSES), rows)
    torch.testing.assert_close(found.lengths, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("most", [1, 25 * FEWEST_SUMMED, 100 * 25])
def test_kernels_are_computed_in_blocks(most, monkeypatch):
    fields, lengths = CASES["not sorted, and so narrow that the nearest centre is looked for"]
    rows = rows_for(lengths, 30)
    whole = StackedLayers(fields, lengths)(rows)
    monkeypatch.setattr("qipf.layered.class_field.BLOCK", {"cpu": most})
    for one, other in zip(StackedLayers(fields, lengths)(rows), whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("value", [1e25, -1e25, torch.nan, torch.inf])
def test_rows_whose_squares_are_not_finite_are_left_to_each_layer(value):
    fields, lengths = CASES["gain-free, and without some classes"]
    for site in fields:
        rows = rows_for(lengths, 4)
        rows[site][1, 2] = value
        assert StackedLayers(fields, lengths)(rows) is None


def test_zeros_the_mean_and_long_rows():
    fields, lengths = CASES["gain-free, and without some classes"]
    first, second = fields
    rows = {first: numbers(4, 5), second: numbers(4, 8)}
    rows[first][0] = rows[second][0] = 0.0
    rows[second][1] *= 1e15
    rows[second][3] = fields[second].metric.mean
    found = StackedLayers(fields, lengths)(rows)
    close = {"rtol": 1e-4, "atol": 1e-5}
    for number, (site, field) in enumerate(fields.items()):
        usable = torch.tensor([True, True, True, site == first])  # at its mean a row is rounding
        alone = field(rows[site][usable])
        posterior, log_density = found.posterior[number], found.log_density[number]
        torch.testing.assert_close(posterior[usable].float(), alone.posterior, **close)
        torch.testing.assert_close(log_density[usable], alone.log_density, **close)
        assert bool(posterior.isfinite().all())
    torch.testing.assert_close(found.lengths, lengths(numbers(4, CLASSES), rows), **close)


def test_no_direction_is_held_twice():
    fields, lengths = CASES["gain-free, and without some classes"]
    stacked = StackedLayers(fields, lengths)
    assert list(stacked.fields) == list(fields)
    subspaces = dict(zip(stacked.lengths.sites, stacked.lengths.subspaces, strict=True))
    before = dict(zip(lengths.sites, lengths.subspaces, strict=True))
    for site, field in stacked.fields.items():
        own, inside = field.metric.directions, subspaces[site].directions
        assert torch.equal(own, fields[site].metric.directions)
        assert torch.equal(inside, before[site].directions)
        assert stacked.lengths.metrics[site] is field.metric
        assert own.untyped_storage().data_ptr() == inside.untyped_storage().data_ptr()


def test_where_layers_are_evaluated_one_by_one(monkeypatch):
    fields, lengths = make_layers(make_field(30, 6, 5, 0.3), make_field(20, 3, 3, 0.2))
    assert StackedLayers.of(fields, lengths) is not None
    assert StackedLayers.of({}, lengths) is None
    assert StackedLayers.of(fields, RowLengths.of({}, (), {})) is None
    for scale in (1e-20, 1e20):
        unusual = replace(lengths, shortest=scale * lengths.shortest)
        assert StackedLayers.of(fields, unusual) is None
    monkeypatch.setattr("qipf.layered.class_field.LARGEST_TABLE", 30 * CLASSES - 1)
    assert StackedLayers.of(fields, lengths) is None
    monkeypatch.undo()
    monkeypatch.setattr(subject, "FEWEST_TILED", 30)
    assert StackedLayers.of(fields, lengths) is None


@pytest.mark.parametrize("spread", [1.0, 1e-2, 1e-3])
@pytest.mark.parametrize("gain_free", [False, True])
def test_rows_that_vary_little_are_as_exact_as_alone(gain_free, spread):
    rows = numbers(1, 12, seed=1) + spread * numbers(300, 12, seed=2)
    metric = Scatter(rows, torch.arange(300) % CLASSES, gain_free).metric(0.1, 8)
    labels, places = (torch.arange(60) % CLASSES).sort().values, torch.arange(60)
    field = ClassField(metric, metric(rows[:60]), labels, CLASSES, 0.3, places)
    site = LayerSite("field")
    lengths = RowLengths.of({site: rows}, (site,), {site: metric})
    few = rows[100:140]
    found, alone = StackedLayers({site: field}, lengths)({site: few}), field(few)
    exact = in_double(field, few)[1]
    error, expected = (
        (part.double() - exact).abs().max() for part in (found.log_density[0], alone.log_density)
    )
    assert error < max(3 * expected, 2e-5)
    torch.testing.assert_close(
        found.lengths, lengths(numbers(40, 4), {site: few}), rtol=0, atol=1e-4
    )


def test_the_default_device_does_not_matter():
    fields, lengths = CASES["of one size"]
    rows = rows_for(lengths, 5)
    expected = StackedLayers(fields, lengths)(rows)
    torch.set_default_device("meta")
    try:
        found = StackedLayers(fields, lengths)(rows)
    finally:
        torch.set_default_device(None)
    torch.testing.assert_close(found.posterior, expected.posterior)
