"""What stays of a stream: a sample that does not depend on how the stream came."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qipf import QIPFInputError
from qipf.layered import holdout as gathering
from qipf.layered.holdout import INPUTS, LABELS, ONE_IN, SLACK, Kept, gathered
from qipf.network.features import LayerSite

TAP = LayerSite("layer")


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
        return torch.zeros(len(inputs), 3), {TAP: inputs * 10}


def gather(batches, centers=30, tuning=10, network=None, seed=0):
    return gathered(batches, network or Network(), centers, tuning, np.random.RandomState(seed))


def cut(inputs, labels, *lengths):
    return list(zip(inputs.split(list(lengths)), labels.split(list(lengths)), strict=True))


def content(kept):
    return (kept.places.tolist(), {name: value.tolist() for name, value in kept.values.items()})


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=12), st.integers(1, 300))
def test_how_the_stream_is_cut_does_not_matter(lengths, capacity):
    inputs, labels = stream(sum(lengths) + 50)
    whole = gather([(inputs, labels)], centers=capacity)
    parts = gather(cut(inputs, labels, *lengths, 50), centers=capacity)
    assert content(parts[0]) == content(whole[0])
    assert content(parts[1]) == content(whole[1])


def test_places_rows_and_labels_belong_together():
    centers, held, classes = gather(cut(*stream(), 100, 100))
    assert (len(centers), len(held), classes) == (30, 10, 3)
    for kept in (centers, held):
        assert torch.equal(kept.values[LABELS], torch.from_numpy(kept.places) % 3)
        assert (np.diff(kept.numbers) > 0).all()
    assert torch.equal(centers.values[TAP][:, 0], 10.0 * torch.from_numpy(centers.places))
    assert torch.equal(held.values[INPUTS][:, 0], 1.0 * torch.from_numpy(held.places))
    assert not set(centers.places) & set(held.places)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 150), st.integers(1, 200), st.integers(1, 60), st.integers(0, 99))
def test_a_fifth_at_most_is_for_tuning_and_never_a_centre(count, centers, tuning, seed):
    fields, held, _ = gather([stream(count)], centers, tuning, seed=seed)
    assert len(held) == min(tuning, count // ONE_IN)
    assert len(fields) == min(centers, count - len(held))
    assert len({*fields.places, *held.places}) == len(fields) + len(held)
    for kept in (fields, held):
        assert all(len(value) == len(kept) for value in kept.values.values())
        assert (np.diff(kept.numbers) > 0).all()


def test_centres_times_classes_are_bounded(monkeypatch):
    whole, *_ = gather([stream()], centers=1000)
    monkeypatch.setattr(gathering, "LARGEST_TABLE", 3 * 20 + 2)
    few, held, _ = gather([stream()], centers=1000)
    assert (len(few), len(held)) == (20, 10)
    assert few.places.tolist() == whole.places[:20].tolist()


def test_a_short_stream_stays_whole():
    centers, held, _ = gather([stream(40)], centers=1000, tuning=1000)
    assert sorted([*centers.places, *held.places]) == list(range(40))


def test_only_what_may_stay_is_run_through_the_network():
    network = Network()
    centers, held, _ = gather(cut(*stream(5000), *[100] * 50), network=network)
    assert len(network.seen) == len(set(network.seen))
    assert set(centers.places) <= set(network.seen)
    # 40 of n stay: about 40·log(5000/40) ever did, and not many more than that were looked at
    assert len(network.seen) < 400
    assert len(held) == 10


def test_both_samples_are_uniform():
    counts = np.zeros((2, 100))
    for seed in range(300):
        centers, held, _ = gather([stream(100)], centers=20, tuning=15, seed=seed)
        counts[0, centers.places] += 1
        counts[1, held.places] += 1
    assert counts.sum(1).tolist() == [300 * 20, 300 * 15]
    # each is kept with that probability: five deviations of 300 draws
    for found, chance in zip(counts / 300, (0.2, 0.15), strict=True):
        assert (np.abs(found - chance) < 5 * (chance * (1 - chance) / 300) ** 0.5).all()


def test_memory_is_bounded_by_the_capacity_and_some_slack():
    kept, largest = Kept(10), 0
    random = np.random.RandomState(0)
    for start in range(0, 3000, 7):
        numbers = random.random_sample(7)
        index = kept.welcome(numbers)
        kept.add(numbers[index], np.arange(start, start + 7)[index], {"x": torch.zeros(len(index))})
        largest = max(largest, len(kept))
    kept.settle()
    assert largest <= SLACK * 10
    assert len(kept) == len(kept.values["x"]) == 10


def test_a_cut_keeps_what_is_at_those_places():
    kept = Kept(10)
    kept.add(np.arange(6) / 10, np.arange(60, 66), {"x": torch.arange(6), "y": torch.eye(6)})
    kept.settle()
    kept.cut(np.array([0, 3, 4]))
    assert len(kept) == 3
    assert kept.numbers.tolist() == [0.0, 0.3, 0.4]
    assert kept.places.tolist() == [60, 63, 64]
    assert kept.values["x"].tolist() == [0, 3, 4]
    assert torch.equal(kept.values["y"], torch.eye(6)[[0, 3, 4]])
    kept.cut(np.arange(0))
    assert (len(kept), kept.values["y"].shape) == (0, (0, 6))


def test_nothing_stays_of_nothing():
    kept = Kept(5)
    kept.settle()
    assert (len(kept), kept.values) == (0, {})


INPUT, LABEL = stream(4)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (
            INPUT,
            "Batch 0 has no labels. The layers' fields are made by class: yield (inputs, labels), "
            "or use qipf.wrap(net), which needs none.",
        ),
        (
            ((INPUT, INPUT), LABEL),
            "Batch 0 is not (inputs, labels) with one tensor of inputs, (n, ...). Layers of "
            "networks with several inputs can be judged one by one: qipf.wrap(net, layer=...).",
        ),
        (
            {"x": INPUT, "labels": LABEL},
            "Batch 0 is not (inputs, labels) with one tensor of inputs, (n, ...). Layers of "
            "networks with several inputs can be judged one by one: qipf.wrap(net, layer=...).",
        ),
        (
            (INPUT[:, 0], LABEL),
            "Batch 0 is not (inputs, labels) with one tensor of inputs, (n, ...). Layers of "
            "networks with several inputs can be judged one by one: qipf.wrap(net, layer=...).",
        ),
        (
            (INPUT, LABEL[:2]),
            "Labels of batch 0 have shape (2,) and type torch.int64; (4,) whole numbers are "
            "needed, one class an input.",
        ),
        (
            (INPUT, torch.eye(4)),
            "Labels of batch 0 have shape (4, 4) and type torch.float32; (4,) whole numbers are "
            "needed, one class an input.",
        ),
        (
            (INPUT, ["a", "b", "c", "d"]),
            "Labels of batch 0 are not numbers (too many dimensions 'str'). Pass the index of "
            "each true class.",
        ),
    ],
)
def test_batches_that_cannot_be_used(batch, message):
    with pytest.raises(QIPFInputError, match=f"^{re.escape(message)}$"):
        gather([batch])


def test_labels_beyond_the_classes_are_found_even_where_nothing_is_kept():
    inputs, labels = stream(500)
    labels[499] = 7
    message = "Labels must be classes 0..2, got values from 0 to 7."
    with pytest.raises(QIPFInputError, match=f"^{re.escape(message)}$"):
        gather(cut(inputs, labels, 250, 250), centers=5, tuning=5)


def test_an_empty_loader():
    message = "The loader holds 0 examples; LayeredQIPF needs at least a few dozen."
    with pytest.raises(QIPFInputError, match=f"^{re.escape(message)}$"):
        gather([])
    with pytest.raises(QIPFInputError, match=f"^{re.escape(message)}$"):
        gather([(INPUT[:0], LABEL[:0])])
    with pytest.raises(QIPFInputError, match="^The loader holds 1 examples; "):
        gather([(INPUT[:1], LABEL[:1])])


def test_what_is_no_loader():
    with pytest.raises(QIPFInputError, match="^fit needs an iterable of batches"):
        gather(5)


def test_one_class_is_none():
    message = "The network gives 1 number an input; logits of at least two classes are needed."
    with pytest.raises(QIPFInputError, match=f"^{re.escape(message)}$"):
        gather([stream()], network=lambda x: (torch.zeros(len(x), 1), {TAP: x}))


def test_an_example_that_is_no_number_is_named():
    inputs, labels = stream(100)
    inputs[61] = torch.nan
    message = (
        "Example 61 of the loader makes the network, or one of its layers, give NaN or infinity. "
        "Drop or repair it first."
    )
    with pytest.raises(QIPFInputError, match=f"^{re.escape(message)}$"):
        gather(cut(inputs, labels, 50, 50), centers=1000)
