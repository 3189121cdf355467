"""The samples of a loader do not depend on its batches, are uniform and do not overlap."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from qipf import QIPFInputError, QIPFWarning
from qipf.export.program import Example
from qipf.layered import holdout, outliers, perturbations
from qipf.layered.holdout import (
    FEWEST,
    INPUTS,
    LABELS,
    ONE_IN,
    PLACES,
    by_shape,
    sample_examples,
    tuning_sets,
)
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
        ((INPUT, ["a", "b", "c", "d"]), "labels of batch 0 must hold .* not numbers"),
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
        ([], "holds 0 examples"),
        ([(INPUT[:0], LABEL[:0])], "holds 0 examples"),
        ([(INPUT[:1], LABEL[:1])], "holds 1 examples"),
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


def held(inputs, labels):
    example = inputs if isinstance(inputs, Example) else Example((inputs,), {})
    return {PLACES: torch.arange(len(labels)), INPUTS: [example], LABELS: labels}


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 6), nn.ReLU(), nn.Linear(6, 3)).eval()


@torch.no_grad()
def test_images_are_perturbed_by_every_family_and_tables_by_those_that_fit():
    net, sites = small(), (LayerSite("3", "input"),)
    images = torch.rand(60, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    labels = net(images).argmax(1)
    found = tuning_sets(net, held(images, labels), sites, 3, seed=0)
    assert {name.split()[0] for name in found.sets} == {"clean", *perturbations.FOR_IMAGES}
    assert torch.equal(found.labels, labels)
    logits, rows = found.sets["clean"]
    torch.testing.assert_close(logits, net(images))
    torch.testing.assert_close(rows[sites[0]], net[:3](images))
    assert all(len(logits) == 60 for logits, _ in found.sets.values())
    table = tuning_sets(net, held(images.flatten(1), labels), sites, 3, seed=0)
    assert {name.split()[0] for name in table.sets} == {"clean", *perturbations.FOR_ALL}


def test_strengths_are_relative_to_the_chance_of_so_many_classes(monkeypatch):
    chances = []
    monkeypatch.setattr(
        holdout, "strengths", lambda accuracy, chance, halvings: chances.append(chance) or [0.5]
    )
    images = torch.rand(60, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    net = small()
    tuning_sets(net, held(images, net(images).argmax(1)), (LayerSite("3", "input"),), 3, seed=0)
    assert chances == [1 / 3] * len(perturbations.FOR_IMAGES)


def test_the_accuracy_of_clean_inputs_needs_no_further_pass(monkeypatch):
    seen = []

    def strengths(accuracy, chance, halvings):
        passed = len(seen)
        seen.append(accuracy(0.0))
        assert len(seen) == passed + 1
        return [0.5]

    monkeypatch.setattr(holdout, "strengths", strengths)
    images = torch.rand(60, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    net = small()
    labels = net(images).argmax(1)
    labels[:6] = (labels[:6] + 1) % 3
    net.register_forward_hook(lambda *_: seen.append("pass"))
    tuning_sets(net, held(images, labels), (LayerSite("3", "input"),), 3, seed=0)
    assert seen.count(0.8) == len(perturbations.FOR_IMAGES)  # of the first 30, six are wrong


def test_strengths_are_found_with_other_random_numbers_than_the_sets(monkeypatch):
    seen = []

    def strengths(accuracy, chance, halvings):
        accuracy(0.5)
        return [0.5]

    def recorded(net, groups, sites, family=None, t=0.0, seed=0):
        if family is not None:
            seen.append(seed)
        return plain(net, groups, sites, family, t, seed)

    plain = holdout._run
    monkeypatch.setattr(holdout, "strengths", strengths)
    monkeypatch.setattr(holdout, "_run", recorded)
    images = torch.rand(60, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    net = small()
    tuning_sets(net, held(images, net(images).argmax(1)), (LayerSite("3", "input"),), 3, seed=7)
    assert seen == [7, 8] * len(perturbations.FOR_IMAGES)


class Embedding(nn.Module):
    """Tokens read by an embedding layer, or as numbers."""

    def __init__(self, embeds=True):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.inner, self.head = nn.Embedding(9, 5), nn.Linear(5, 4), nn.Linear(4, 3)
        self.embeds = embeds

    def forward(self, tokens):
        shown = self.table(tokens).mean(1) if self.embeds else tokens.float()
        return self.head(self.inner(shown))


TOKENS = torch.randint(9, (40, 5), generator=torch.Generator().manual_seed(0))


def test_integers_that_nothing_embeds_are_not_perturbed():
    with pytest.warns(QIPFWarning, match="cannot be perturbed"), torch.no_grad():
        found = tuning_sets(
            Embedding(embeds=False), held(TOKENS, TOKENS[:, 0] % 3), (LayerSite("inner"),), 3, 0
        )
    assert list(found.sets) == ["clean"]


@torch.no_grad()
def test_tokens_are_perturbed_and_so_is_their_embedding():
    net = Embedding()
    labels = net(TOKENS).argmax(1)
    found = tuning_sets(net, held(TOKENS, labels), (LayerSite("inner"),), 3, 0)
    families = {"clean", *perturbations.FOR_TOKENS, *perturbations.FOR_EMBEDDINGS}
    assert {name.rsplit(maxsplit=1)[0] for name in found.sets} == families
    torch.testing.assert_close(found.sets["clean"][0], net(TOKENS))
    for name, (logits, _) in found.sets.items():
        swapped = name.startswith("swap")  # a mean does not depend on the order
        assert torch.allclose(logits, net(TOKENS), atol=1e-5) == (name == "clean" or swapped)
    assert not net.table._forward_hooks


@torch.no_grad()
def test_pseudo_outliers_of_examples_with_a_partner_of_another_class():
    net, sites = small(), (LayerSite("3", "input"),)
    images = torch.rand(60, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(60) % 3
    found = tuning_sets(net, held(images, labels), sites, 3, seed=0)
    assert set(found.outliers) == set(outliers.FOR_IMAGES)
    for logits, rows in found.outliers.values():
        torch.testing.assert_close(logits, net[3](rows[sites[0]]))
        assert 50 < len(logits) <= 60  # tiles in their own order are left out
        if len(logits) == 60:
            assert not torch.allclose(logits, net(images))
    again = tuning_sets(net, held(images, labels), sites, 3, seed=0)
    for name, (logits, _) in found.outliers.items():
        assert torch.equal(logits, again.outliers[name][0])
    mostly = torch.cat([torch.zeros(50), torch.ones(10)]).long()
    few = tuning_sets(net, held(images, mostly), sites, 3, seed=0)
    assert max(len(logits) for logits, _ in few.outliers.values()) == 20
    none = tuning_sets(net, held(images, torch.zeros(60).long()), sites, 3, seed=0)
    assert none.outliers == {}
    table = tuning_sets(net, held(images.flatten(1), labels), sites, 3, seed=0)
    assert set(table.outliers) == set(outliers.FOR_ALL)


@torch.no_grad()
def test_pseudo_outliers_of_tokens_in_groups_of_their_own_length():
    net = Embedding()
    labels = TOKENS[:, 0] % 3
    examples = held(TOKENS, labels)
    examples[INPUTS] = [Example((TOKENS[:25],), {}), Example((TOKENS[25:39, :3],), {}),
                        Example((TOKENS[39:, :2],), {})]  # fmt: skip
    found = tuning_sets(net, examples, (LayerSite("inner"),), 3, 0)
    assert set(found.outliers) == set(outliers.FOR_TOKENS)
    for logits, _ in found.outliers.values():
        assert 30 < len(logits) <= 39  # the last one has no partner


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


def test_too_few_examples_give_no_sets():
    found = tuning_sets(
        small(), held(torch.rand(FEWEST - 1, 36), torch.zeros(FEWEST - 1)), (), 3, 0
    )
    assert (found.sets, len(found.labels)) == ({}, 0)
    table = torch.rand(FEWEST, 36, generator=torch.Generator().manual_seed(0))
    enough = tuning_sets(small(), held(table, torch.zeros(FEWEST).long()), (), 3, 0)
    assert len(enough.sets) > 1
    assert len(enough.labels) == FEWEST


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


@torch.no_grad()
def test_copies_are_perturbed_examples_at_their_places():
    net, sites = small(), (LayerSite("3", "input"),)
    images = torch.rand(60, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    labels = net(images).argmax(1)
    examples = held(images, labels)
    found = tuning_sets(net, held(images, labels), sites, 3, 0, copied=examples)
    rows = found.copies[sites[0]]
    assert len(rows) == len(found.copied) == 60 * holdout.FAMILIES_EACH
    assert torch.equal(found.copied.unique(), examples[PLACES].sort().values)
    clean = net[:3](images)[found.copied - int(examples[PLACES].min())]
    assert not torch.allclose(rows, clean)
    plain = tuning_sets(net, held(images, labels), sites, 3, 0)
    assert not plain.copies
    assert all(torch.equal(plain.sets[n][0], found.sets[n][0]) for n in found.sets)


@torch.no_grad()
def test_copies_are_perturbed_at_even_strengths_up_to_the_largest(monkeypatch):
    seen = []
    plain = holdout._run

    def recorded(net, groups, sites, family=None, t=0.0, seed=0):
        seen.append((family, t))
        return plain(net, groups, sites, family, t, seed)

    monkeypatch.setattr(holdout, "_run", recorded)
    net, sites = small(), (LayerSite("3", "input"),)
    images = torch.rand(60, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    found = holdout.Tuning({}, torch.empty(0, dtype=torch.long))
    families = list(holdout.fitting_families(net, Example((images,), {})).values())[:3]
    strongest = (0.5, 0.99, 1.0)
    given = list(zip(families, strongest, strict=True))
    holdout._add_copies(found, net, held(images, torch.zeros(60).long()), sites, given, 0)
    for family, most in given:
        strengths = [t for own, t in seen if own is family]
        assert strengths == pytest.approx([most * (k + 0.5) / 7.5 for k in range(8)])


def test_pseudo_outliers_are_no_training_inputs():
    """Of one feature all are; of two features about half."""
    for width in (1, 2):
        table = torch.randn(200, width, generator=torch.Generator().manual_seed(width))
        net = nn.Sequential(nn.Linear(width, 4), nn.Tanh(), nn.Linear(4, 2))
        examples = held(table, torch.arange(200) % 2)
        found = tuning_sets(net, examples, (LayerSite("0"),), 2, 0).outliers
        if width == 1:
            assert not found
        else:
            ((logits, _),) = found.values()
            assert 70 < len(logits) < 130
            inputs = {tuple(row) for row in net(table).tolist()}
            assert not inputs & {tuple(row) for row in logits.tolist()}
