"""The samples of a loader do not depend on its batches, are uniform and do not overlap."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from qipf import QIPFInputError
from qipf.export.program import Example
from qipf.layered import holdout
from qipf.layered.holdout import INPUTS, LABELS, ONE_IN, PLACES, by_shape, sample_examples
from qipf.layered.kept_inputs import KeptInputs
from qipf.network.batches import batches
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

    def __call__(self, example):
        (inputs,) = example.inputs
        self.seen += inputs[:, 0].long().tolist()
        return torch.zeros(len(inputs), 3), {SITE: inputs * 10}


def sample(loader, centers=30, tuning=10, network=None, seed=0):
    random = np.random.RandomState(seed)
    batched = batches(loader, nn.Identity(), "fit", "reading")
    return sample_examples(batched, network or Network(), centers, tuning, random)


def cut(inputs, labels, *lengths):
    return list(zip(inputs.split(list(lengths)), labels.split(list(lengths)), strict=True))


def places(examples):
    return examples[PLACES].tolist()


def shown(examples):
    """All inputs, if they are kept."""
    return torch.cat([torch.zeros(0, 2), *(part.inputs[0] for part in examples.get(INPUTS, []))])


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=12), st.integers(1, 300))
def test_how_the_stream_is_cut_does_not_matter(lengths, capacity):
    inputs, labels = stream(sum(lengths) + 50)
    whole = sample([(inputs, labels)], centers=capacity)
    parts = sample(cut(inputs, labels, *lengths, 50), centers=capacity)
    for found, expected in zip(parts[:2], whole[:2], strict=True):
        assert found.keys() == expected.keys()
        assert torch.equal(shown(found), shown(expected))
        assert all(torch.equal(found[name], expected[name]) for name in expected if name != INPUTS)


def test_places_rows_and_labels_belong_together():
    centers, held, classes, _ = sample(cut(*stream(), 100, 100))
    assert (len(places(centers)), len(places(held)), classes) == (30, 10, 3)
    for examples in (centers, held):
        assert torch.equal(examples[LABELS], examples[PLACES] % 3)
    assert torch.equal(centers[SITE][:, 0], 10.0 * centers[PLACES])
    assert torch.equal(shown(held)[:, 0], 1.0 * held[PLACES])


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 150), st.integers(1, 200), st.integers(1, 60), st.integers(0, 99))
def test_a_fifth_at_most_is_for_tuning_and_never_a_centre(count, centers, tuning, seed):
    fields, held, *_ = sample([stream(count)], centers, tuning, seed=seed)
    tuned = min(tuning, count // ONE_IN)
    assert {len(held[PLACES]), len(held[LABELS]), len(shown(held))} == {tuned}
    assert {len(value) for value in fields.values()} == {min(centers, count - tuned)}
    both = places(fields) + places(held)
    assert len(set(both)) == len(both)
    if len(both) == count:
        assert sorted(both) == list(range(count))


def test_the_samples_are_those_of_the_smallest_numbers():
    """Two numbers an example: the first for the fields, the second for tuning."""
    numbers = np.random.RandomState(3).random_sample((200, 2))
    centers, held, *_ = sample(cut(*stream(), 90, 110), seed=3)
    tuned = np.argsort(numbers[:, 1])[:10].tolist()
    assert places(held) == tuned
    others = [place for place in np.argsort(numbers[:, 0]).tolist() if place not in tuned]
    assert places(centers) == others[:30]


def test_only_what_may_stay_is_run_through_the_network():
    network = Network()
    centers, held, *_ = sample(cut(*stream(5000), *[100] * 50), network=network)
    assert len(network.seen) == len(set(network.seen))
    assert set(places(centers)) <= set(network.seen)
    # 40 of n stay: about 40·log(5000/40) ever did, and not many more than that were run
    assert len(network.seen) < 400
    assert len(places(held)) == 10


@pytest.mark.slow
def test_both_samples_are_uniform():
    counts = np.zeros((2, 100))
    for seed in range(300):
        centers, held, *_ = sample([stream(100)], centers=20, tuning=15, seed=seed)
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
        ({"input": INPUT}, "Batch 0 has no labels"),
        ((INPUT[:, 0], LABEL), r"Batch 0 has no tensor of inputs .* \(n, \.\.\.\)"),
        (("text", LABEL), r"Batch 0 has no tensor of inputs"),
        ((INPUT.numpy(), LABEL), "takes tensors, got a NumPy array as input"),
        ((INPUT, LABEL[:2]), r"labels of batch 0 must have shape \(4,\), .* got \(2,\)"),
        ((INPUT, torch.eye(4)), r"labels .* shape \(4,\), .* \(4, 4\)\. .*task='multilabel'"),
        ((INPUT, ["a", "b", "c", "d"]), "labels of batch 0 must hold numbers, got dtype <U1"),
    ],
)
def test_batches_that_cannot_be_used(batch, message):
    with pytest.raises(QIPFInputError, match=message):
        sample([batch])


def test_labels_beyond_the_classes_are_found_even_where_nothing_is_kept():
    inputs, labels = stream(500)
    labels[499] = 7
    with pytest.raises(QIPFInputError, match=r"classes 0\.\.2, got 7 in "):
        sample(cut(inputs, labels, 250, 250), centers=5, tuning=5)
    labels[499] = -1
    with pytest.raises(QIPFInputError, match="got -1 in "):
        sample(cut(inputs, labels, 250, 250), centers=5, tuning=5)


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (
            [],
            "The loader holds 0 examples; LayeredQIPF needs at least a few dozen. A generator can "
            "be read only once: make a new one, or pass a list of its batches.$",
        ),
        ([(INPUT[:0], LABEL[:0])], "holds 0 examples"),
        ([(INPUT[:1], LABEL[:1])], "holds 1 example; LayeredQIPF needs at least a few dozen.$"),
        (5, "an iterable of batches"),
    ],
)
def test_loaders_that_cannot_be_used(loader, message):
    with pytest.raises(QIPFInputError, match=message):
        sample(loader)


def test_an_example_with_nan_is_named():
    inputs, labels = stream(100)
    inputs[61] = torch.nan
    with pytest.raises(QIPFInputError, match="Example 61 of the loader"):
        sample(cut(inputs, labels, 50, 50), centers=1000)


def test_inputs_of_different_lengths_are_kept_in_groups():
    rows = [torch.full((1, 2 + number % 3), float(number)) for number in range(12)]
    inputs = KeptInputs()
    for number, row in enumerate(rows):
        inputs.add([number], Example((), {"x": row}))
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    found = by_shape({PLACES: order, LABELS: order % 5}, inputs)
    assert [group.tensors["x"].shape[1] for group in found[INPUTS]] != [2, 2, 2]
    assert sorted(len(group.tensors["x"]) for group in found[INPUTS]) == [4, 4, 4]
    shown = [int(row[0]) for group in found[INPUTS] for row in group.tensors["x"]]
    assert shown == found[PLACES].tolist()
    assert torch.equal(found[LABELS], found[PLACES] % 5)


def test_some_centres_keep_their_inputs_to_be_copied():
    random = np.random.RandomState(0)
    batched = batches(cut(*stream(), 100, 100), nn.Identity(), "fit", "reading")
    plain = sample(cut(*stream(), 100, 100))
    found = sample_examples(batched, Network(), 30, 10, random, copied=60)
    for name in (PLACES, LABELS, SITE):
        assert torch.equal(found.centers[name], plain.centers[name])
    assert torch.equal(found.held[PLACES], plain.held[PLACES])
    places = found.copied[PLACES]
    assert 0 < len(places) <= 60
    assert torch.isin(places, found.centers[PLACES]).all()
    assert shown(found.copied)[:, 0].long().tolist() == places.tolist()
    assert len(plain.copied[PLACES]) == 0


def test_no_more_are_copied_than_asked_for():
    """Few examples leave places of the tuning sample to others."""
    batched = batches([stream(20)], nn.Identity(), "fit", "reading")
    found = sample_examples(batched, Network(), 30, 10, np.random.RandomState(0), copied=3)
    assert (len(found.held[PLACES]), len(found.copied[PLACES])) == (20 // ONE_IN, 3)


def test_large_inputs_are_not_kept(monkeypatch):
    monkeypatch.setattr(holdout, "COPIED_BYTES", 8 * 5)
    batched = batches([stream()], nn.Identity(), "fit", "reading")
    found = sample_examples(batched, Network(), 500, 10, np.random.RandomState(0), copied=60)
    assert len(found.copied[PLACES]) <= 5
