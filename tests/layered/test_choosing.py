"""The field of a layer is the likeliest of those tried, and there is one wherever rows differ."""

import re

import numpy as np
import pytest
import torch

from qipf import QIPFWarning
from qipf.bandwidth import silverman
from qipf.layered import choosing
from qipf.layered.choosing import chosen_field, chosen_fields
from qipf.layered.class_field import ClassField
from qipf.layered.gathering import LABELS, Kept
from qipf.layered.metric import Scatter
from qipf.layered.taps import Tap
from qipf.layered.tuning import Tuning


def rows_of(count, seed, width=5, classes=3):
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (count,), generator=random)
    rows = 3 * torch.eye(width)[labels] + torch.randn(count, width, generator=random)
    return rows, labels


ROWS, LABELS_OF = rows_of(80, 0)
CLEAN, TRUTH = rows_of(60, 1)
SETS = {
    "clean": CLEAN,
    "noise": CLEAN + torch.randn(60, 5, generator=torch.Generator().manual_seed(2)),
}


def likelihood(field):
    own = [field(rows).posterior.gather(1, TRUTH[:, None]).log() for rows in SETS.values()]
    return float(torch.stack(own).clamp(min=choosing.DEEPEST).double().mean())


def test_it_is_the_likeliest_of_a_plain_search():
    found = chosen_field(ROWS, LABELS_OF, SETS, TRUTH, 3, 4)
    best = likelihood(found)
    for gain_free in (False, True):
        for shrinkage in choosing.SHRINKAGES:
            metric = Scatter(ROWS, LABELS_OF, gain_free).metric(shrinkage, 4)
            units = metric(ROWS)
            for factor in choosing.COARSE:
                field = ClassField(metric, units, LABELS_OF, 3, factor * silverman(units))
                assert likelihood(field) <= best + 1e-9
    assert found.units.shape == (80, 4)


def test_each_set_counts_the_same():
    """Twice the same set is the set once."""
    once = chosen_field(ROWS, LABELS_OF, {"a": CLEAN}, TRUTH, 3, 4)
    twice = chosen_field(ROWS, LABELS_OF, {"a": CLEAN, "b": CLEAN}, TRUTH, 3, 4)
    assert once.bandwidth == twice.bandwidth
    assert torch.equal(once.units, twice.units)


def test_many_rows_are_thinned_together_with_their_labels(monkeypatch):
    monkeypatch.setattr(choosing, "MOST_ROWS", 30)
    thinned = chosen_field(ROWS, LABELS_OF, SETS, TRUTH, 3, 4)
    few = {name: rows[::4] for name, rows in SETS.items()}
    plain = chosen_field(ROWS, LABELS_OF, few, TRUTH[::4], 3, 4)
    assert thinned.bandwidth == plain.bandwidth
    assert torch.equal(thinned.metric.directions, plain.metric.directions)


def test_without_tuning_rows_it_is_the_middle_of_everything():
    found = chosen_field(ROWS, LABELS_OF, {}, torch.empty(0, dtype=torch.long), 3, 4)
    middle = choosing.SHRINKAGES[len(choosing.SHRINKAGES) // 2]
    units = Scatter(ROWS, LABELS_OF, False).metric(middle, 4)(ROWS)
    assert torch.equal(found.units, units)
    assert found.bandwidth == choosing.COARSE[len(choosing.COARSE) // 2] * silverman(units)


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 1e20])
def test_rows_all_alike_have_no_field(value):
    rows = torch.full((20, 3), value)
    assert chosen_field(rows, LABELS_OF[:20], {"a": rows[:5]}, TRUTH[:5], 3, 4) is None


def test_one_number_that_never_is_negative():
    """Free of gain it is always 1; as it is, it has two sides."""
    rows = ROWS[:, :1].abs()
    found = chosen_field(rows, LABELS_OF, {"a": CLEAN[:, :1].abs()}, TRUTH, 3, 4)
    assert found is not None
    assert not found.metric.gain_free


def kept(rows, labels):
    found = Kept(100)
    found.add(np.arange(len(labels)) / 100, np.arange(len(labels)), {**rows, LABELS: labels})
    found.settle()
    return found


def test_a_layer_that_says_nothing_and_a_class_that_is_missing_are_told():
    taps = Tap("a"), Tap("b")
    centers = kept({taps[0]: ROWS, taps[1]: torch.ones(80, 2)}, LABELS_OF)
    tuning = Tuning({"clean": (CLEAN, {taps[0]: CLEAN, taps[1]: torch.ones(60, 2)})}, TRUTH)
    said = [
        "b (output) gives every training input the same numbers and is left out.",
        "There are no training examples of classes 3, 4, so the layers leave them to the softmax.",
    ]
    with pytest.warns(QIPFWarning) as warned:
        fields = chosen_fields(centers, tuning, taps, 5, 4)
    assert [str(w.message) for w in warned] == said
    assert list(fields) == [taps[0]]
    with pytest.warns(
        QIPFWarning, match=re.escape("of class 3, so the layers leave it to the softmax.")
    ):
        chosen_fields(centers, tuning, taps[:1], 4, 4)
