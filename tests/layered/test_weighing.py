"""Opinions and their weights, and when the softmax speaks alone."""

import pytest
import torch

from qipf import QIPFWarning
from qipf.layered.class_field import ClassField
from qipf.layered.metric import Metric
from qipf.layered.taps import Tap
from qipf.layered.tuning import FEWEST, Tuning
from qipf.layered.weighing import completed, opinions_of, weighed

TAP = Tap("layer")


def field_of(rows, labels, classes=2, bandwidth=0.3):
    metric = Metric(torch.zeros(rows.shape[1]), torch.eye(rows.shape[1]), gain_free=False)
    return ClassField(metric, metric(rows), labels, classes, bandwidth)


def case(count=200, seed=0):
    """A layer that knows the class, beside logits that often do not."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (count,), generator=random)
    rows = torch.eye(2)[labels] + 0.2 * torch.randn(count, 2, generator=random)
    logits = torch.eye(2)[labels] + torch.randn(count, 2, generator=random)
    return logits, rows, labels


LOGITS, ROWS, TRUTH = case()
FIELD = field_of(*case(seed=1)[1:])


def test_opinions_are_the_softmax_and_the_posteriors():
    opinions, heights = opinions_of(LOGITS, {TAP: ROWS}, {TAP: FIELD})
    torch.testing.assert_close(opinions[:, 0], LOGITS.double().softmax(1))
    torch.testing.assert_close(opinions[:, 1], FIELD(ROWS).posterior.double())
    torch.testing.assert_close(heights[:, 0], FIELD(ROWS).log_density.double())
    alone, none = opinions_of(LOGITS, {}, {})
    assert (alone.shape, none.shape) == ((200, 1, 2), (200, 0))


def test_what_a_layer_does_not_know_it_leaves_to_the_softmax():
    field = field_of(ROWS, TRUTH, classes=4)
    softmax = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).double()
    found = completed(torch.tensor([[0.9, 0.1, 1e-30, 1e-30]]), field, softmax)
    torch.testing.assert_close(found, torch.tensor([[0.63, 0.07, 0.2, 0.1]]).double())
    assert float(found.sum()) == pytest.approx(1)


def test_the_opinion_that_knows_more_weighs_more():
    weights = weighed({TAP: FIELD}, Tuning({"clean": (LOGITS, {TAP: ROWS})}, TRUTH))
    assert weights.dtype == torch.float64
    assert float(weights.sum()) == pytest.approx(1)
    assert weights[1] > 0.9


ALONE = "The layers are not used: {}. The uncertainty is that of the softmax alone."


@pytest.mark.parametrize(
    ("logits", "rows", "reason"),
    [
        (
            5 * torch.eye(2)[TRUTH],
            ROWS,
            "the network makes no errors to learn from, even on disturbed inputs",
        ),
        (
            LOGITS,
            torch.randn(200, 2, generator=torch.Generator().manual_seed(3)),
            "they tell the network's errors no better than its softmax does",
        ),
    ],
)
def test_where_the_softmax_speaks_alone(logits, rows, reason, monkeypatch):
    if "better" in reason:  # EM gives such a layer next to nothing, which is next to no harm
        monkeypatch.setattr(
            "qipf.layered.weighing.likeliest_weights",
            lambda told: torch.tensor([0.1, 0.9]).double(),
        )
    with pytest.warns(QIPFWarning) as warned:
        weights = weighed({TAP: FIELD}, Tuning({"clean": (logits, {TAP: rows})}, TRUTH))
    assert [str(w.message) for w in warned] == [ALONE.format(reason)]
    assert weights.tolist() == [1.0, 0.0]


def test_with_too_few_examples_the_softmax_speaks_alone():
    with pytest.warns(QIPFWarning) as warned:
        weights = weighed({TAP: FIELD}, Tuning({}, TRUTH[:0]))
    reason = f"fewer than {FEWEST} examples were left to weigh the layers by"
    assert [str(w.message) for w in warned] == [ALONE.format(reason)]
    assert weights.tolist() == [1.0, 0.0]
