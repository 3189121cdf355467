"""Posteriors of the softmax and the layers."""

import pytest
import torch

from qipf.layered.class_field import ClassField
from qipf.layered.metric import Metric
from qipf.layered.posteriors import completed, posteriors_of
from qipf.network.features import LayerSite

SITE = LayerSite("layer")


def case(count=200, seed=0):
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (count,), generator=random)
    rows = torch.eye(2)[labels] + 0.2 * torch.randn(count, 2, generator=random)
    return torch.randn(count, 2, generator=random), rows, labels


LOGITS, ROWS, TRUTH = case()


def field_of(classes):
    metric = Metric(torch.zeros(2), torch.eye(2), gain_free=False)
    return ClassField(metric, metric(ROWS), TRUTH, classes, 0.3, torch.arange(200))


def test_softmax_and_fields_are_stacked():
    field = field_of(2)
    posteriors, densities = posteriors_of(LOGITS, {SITE: ROWS}, {SITE: field})
    torch.testing.assert_close(posteriors[:, 0], LOGITS.double().softmax(1))
    torch.testing.assert_close(posteriors[:, 1], field(ROWS).posterior.double())
    torch.testing.assert_close(densities[:, 0], field(ROWS).log_density.double())
    alone, none = posteriors_of(LOGITS, {}, {})
    assert (alone.shape, none.shape) == ((200, 1, 2), (200, 0))


def test_classes_without_centres_have_the_softmax_probability():
    field = field_of(4)
    softmax = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).double()
    found = completed(torch.tensor([[0.9, 0.1, 1e-30, 1e-30]]), field, softmax)
    torch.testing.assert_close(found, torch.tensor([[0.63, 0.07, 0.2, 0.1]]).double())
    assert float(found.sum()) == pytest.approx(1)
