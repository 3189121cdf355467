"""The samples of a loader do not depend on its batches, are uniform and do not overlap."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qipf import QIPFInputError
from qipf.layered import holdout
from qipf.layered.holdout import INPUTS, LABELS, ONE_IN, PLACES, sample_examples
from qipf.network.features import LayerSite

SITE = LayerSite("layer")


def stream(count=200):
    """Inputs that say which example they are, and labels."""
    inputs = torch.arange(count).float()[:, None].repeat(1, 2)
    return inputs, torch.arange(count) % 3


class Network:
    """Stands in for a network: three logits and one layer, and counts what it is shown."""

    def __init__(self):
        self.seen = []

    def __call__(self, inputs):
        self.seen += inputs[:, 0].long().tolist()
        return torch.zeros(len(inputs), 3), {SITE: inputs * 10}


def sample(batches, centers=30, tuning=10, network=None, seed=0):
    random = np.random.RandomState(seed)
    return sample_examples(batches, network or Network(), centers, tuning, random)


def cut(inputs, labels, *lengths):
    return list(zip(inputs.split(list(lengths)), labels.split(list(lengths)), strict=True))


def places(examples):
    return examples[PLACES].tolist()


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=12), st.integers(1, 300))
def test_how_the_stream_is_cut_does_not_matter(lengths, capacity):
    inputs, labels = stream(sum(lengths) + 50)
    whole = sample([(inputs, labels)], centers=capacity)
    parts = sample(cut(inputs, labels, *lengths, 50), centers=capacity)
    for found, expected in zip(parts[:2], whole[:2], strict=True):
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_places_rows_and_labels_belong_together():
    centers, held, classes = sample(cut(*stream(), 100, 100))
    assert (len(places(centers)), len(places(held)), classes) == (30, 10, 3)
    for examples in (centers, held):
        assert torch.equal(examples[LABELS], examples[PLACES] % 3)
    assert torch.equal(centers[SITE][:, 0], 10.0 * centers[PLACES])
    assert torch.equal(held[INPUTS][:, 0], 1.0 * held[PLACES])


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 150), st.integers(1, 200), st.integers(1, 60), st.integers(0, 99))
def test_a_fifth_at_most_is_for_tuning_and_never_a_centre(count, centers, tuning, seed):
    fields, held, _ = sample([stream(count)], centers, tuning, seed=seed)
    tuned = min(tuning, count // ONE_IN)
    assert {len(value) for value in held.values()} == {tuned}
    assert {len(value) for value in fields.values()} == {min(centers, count - tuned)}
    both = places(fields) + places(held)
    assert len(set(both)) == len(both)
    if len(both) == count:
        assert sorted(both) == list(range(count))


def test_centres_times_classes_are_bounded(monkeypatch):
    whole, *_ = sample([stream()], centers=1000)
    monkeypatch.setattr(holdout, "LARGEST_TABLE", 3 * 20 + 2)
    few, held, _ = sample([stream()], centers=1000)
    assert len(places(held)) == 10
    assert places(few) == places(whole)[:20]


def test_only_what_may_stay_is_run_through_the_network():
    network = Network()
    centers, held, _ = sample(cut(*stream(5000), *[100] * 50), network=network)
    assert len(network.seen) == len(set(network.seen))
    assert set(places(centers)) <= set(network.seen)
    # 40 of n stay: about 40·log(5000/40) ever did, and not many more than that were run
    assert len(network.seen) < 400
    assert len(places(held)) == 10


@pytest.mark.slow
def test_both_samples_are_uniform():
    counts = np.zeros((2, 100))
    for seed in range(300):
        centers, held, _ = sample([stream(100)], centers=20, tuning=15, seed=seed)
        counts[0, places(centers)] += 1
        counts[1, places(held)] += 1
    assert counts.sum(1).tolist() == [300 * 20, 300 * 15]
    # each is kept with that probability: five deviations of 300 draws
    for found, chance in zip(counts / 300, (0.2, 0.15), strict=True):
        assert (np.abs(found - chance) < 5 * (chance * (1 - chance) / 300) ** 0.5).all()


INPUT, LABEL = stream(4)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (INPUT, "Batch 0 has no labels"),
        (((INPUT, INPUT), LABEL), "Batch 0 is not .* one tensor of inputs"),
        ({"x": INPUT, "labels": LABEL}, "Batch 0 is not .* one tensor of inputs"),
        ((INPUT[:, 0], LABEL), "Batch 0 is not .* one tensor of inputs"),
        ((INPUT, LABEL[:2]), r"labels of batch 0 must have shape \(4,\), .* got \(2,\)"),
        ((INPUT, torch.eye(4)), r"labels of batch 0 must have shape .* \(4, 4\)"),
        ((INPUT, ["a", "b", "c", "d"]), "labels of batch 0 must hold .* not numbers"),
    ],
)
def test_batches_that_cannot_be_used(batch, message):
    with pytest.raises(QIPFInputError, match=message):
        sample([batch])


def test_labels_beyond_the_classes_are_found_even_where_nothing_is_kept():
    inputs, labels = stream(500)
    labels[499] = 7
    with pytest.raises(QIPFInputError, match=r"classes 0\.\.2, got values from 0 to 7"):
        sample(cut(inputs, labels, 250, 250), centers=5, tuning=5)


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        ([], "holds 0 examples"),
        ([(INPUT[:0], LABEL[:0])], "holds 0 examples"),
        ([(INPUT[:1], LABEL[:1])], "holds 1 examples"),
        (5, "an iterable of batches"),
    ],
)
def test_loaders_that_cannot_be_used(loader, message):
    with pytest.raises(QIPFInputError, match=message):
        sample(loader)


def test_one_class_is_rejected():
    with pytest.raises(QIPFInputError, match="at least two classes"):
        sample([stream()], network=lambda x: (torch.zeros(len(x), 1), {SITE: x}))


def test_an_example_with_nan_is_named():
    inputs, labels = stream(100)
    inputs[61] = torch.nan
    with pytest.raises(QIPFInputError, match="Example 61 of the loader"):
        sample(cut(inputs, labels, 50, 50), centers=1000)
