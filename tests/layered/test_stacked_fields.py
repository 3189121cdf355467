"""Fields of several layers in batched operations, against each of them alone."""

import pytest
import torch

from qipf.layered import stacked_fields as subject
from qipf.layered.class_field import ClassField
from qipf.layered.metric import Metric
from qipf.layered.stacked_fields import StackedFields

CLASSES = 4


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make_field(centers, width, dimension, bandwidth, gain_free=False, classes=CLASSES, seed=0):
    metric = Metric(numbers(width, seed=seed), numbers(width, dimension, seed=seed), gain_free)
    embeddings = metric(numbers(centers, width, seed=seed + 1))
    labels = torch.arange(centers) % classes
    counts = 0.5 + numbers(centers, seed=seed).abs()
    places = torch.arange(centers)
    return ClassField(metric, embeddings, labels, CLASSES, bandwidth, places, counts)


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


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize(
    "fields",
    [
        [make_field(30, 6, 5, 0.3), make_field(30, 6, 5, 0.2, seed=7)],
        [make_field(40, 9, 5, 0.3), make_field(8, 3, 3, 0.5, seed=3), make_field(21, 12, 7, 0.4)],
        [make_field(20, 5, 4, 0.3, gain_free=True), make_field(25, 8, 6, 0.5, classes=2)],
    ],
    ids=["of one size", "of several sizes", "gain-free, and without some classes"],
)
def test_values_are_those_of_each_field(fields, count):
    rows = [numbers(count, len(field.metric.mean), seed=11) for field in fields]
    found = StackedFields(fields)(rows)
    for number, (field, part) in enumerate(zip(fields, rows, strict=True)):
        posterior, log_density = in_double(field, part)
        torch.testing.assert_close(found.posterior[number].double(), posterior, rtol=0, atol=1e-5)
        torch.testing.assert_close(
            found.log_density[number].double(), log_density, rtol=1e-5, atol=1e-4
        )
        alone = field(part)
        torch.testing.assert_close(found.posterior[number], alone.posterior, rtol=1e-4, atol=1e-6)


def test_extreme_and_missing_rows():
    fields = [make_field(30, 6, 5, 0.3), make_field(20, 3, 3, 0.2, gain_free=True)]
    rows = [numbers(3, 6), numbers(3, 3)]
    rows[0][0] *= 1e30
    rows[1][1] = 0.0
    rows[0][2] = torch.nan
    found = StackedFields(fields)(rows)
    for number, (field, part) in enumerate(zip(fields, rows, strict=True)):
        alone = field(part)
        close = {"equal_nan": True, "rtol": 1e-4, "atol": 1e-5}
        torch.testing.assert_close(found.posterior[number], alone.posterior, **close)
        torch.testing.assert_close(found.log_density[number], alone.log_density, **close)


def test_where_fields_are_evaluated_one_by_one(monkeypatch):
    fields = [make_field(30, 6, 5, 0.3), make_field(20, 3, 3, 0.2)]
    assert StackedFields.of(fields) is not None
    assert StackedFields.of(fields[:1]) is None
    assert StackedFields.of([]) is None
    monkeypatch.setattr("qipf.layered.class_field.LARGEST_TABLE", 30 * CLASSES - 1)
    assert StackedFields.of(fields) is None
    monkeypatch.undo()
    monkeypatch.setattr(subject, "FEWEST_TILED", 30)
    assert StackedFields.of(fields) is None
