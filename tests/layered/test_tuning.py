"""Tuning sets: what perturbs the examples, how strongly, pseudo-outliers and copies."""

import pytest
import torch
from torch import nn

from qipf import QIPFWarning
from qipf.export.program import Example
from qipf.layered import outliers, perturbations, tuning
from qipf.layered.holdout import INPUTS, LABELS, PLACES
from qipf.layered.tuning import FEWEST, tuning_sets
from qipf.network.features import LayerSite


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
        tuning, "strengths", lambda accuracy, chance, halvings: chances.append(chance) or [0.5]
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

    monkeypatch.setattr(tuning, "strengths", strengths)
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

    plain = tuning._run
    monkeypatch.setattr(tuning, "strengths", strengths)
    monkeypatch.setattr(tuning, "_run", recorded)
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


def test_too_few_examples_give_no_sets():
    found = tuning_sets(
        small(), held(torch.rand(FEWEST - 1, 36), torch.zeros(FEWEST - 1)), (), 3, 0
    )
    assert (found.sets, len(found.labels)) == ({}, 0)
    table = torch.rand(FEWEST, 36, generator=torch.Generator().manual_seed(0))
    enough = tuning_sets(small(), held(table, torch.zeros(FEWEST).long()), (), 3, 0)
    assert len(enough.sets) > 1
    assert len(enough.labels) == FEWEST


@torch.no_grad()
def test_copies_are_perturbed_examples_at_their_places():
    net, sites = small(), (LayerSite("3", "input"),)
    images = torch.rand(60, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    labels = net(images).argmax(1)
    examples = held(images, labels)
    found = tuning_sets(net, held(images, labels), sites, 3, 0, copied=examples)
    rows = found.copies[sites[0]]
    assert len(rows) == len(found.copied) == 60 * tuning.FAMILIES_EACH
    assert torch.equal(found.copied.unique(), examples[PLACES].sort().values)
    clean = net[:3](images)[found.copied - int(examples[PLACES].min())]
    assert not torch.allclose(rows, clean)
    plain = tuning_sets(net, held(images, labels), sites, 3, 0)
    assert not plain.copies
    assert all(torch.equal(plain.sets[n][0], found.sets[n][0]) for n in found.sets)


@torch.no_grad()
def test_copies_are_perturbed_at_even_strengths_up_to_the_largest(monkeypatch):
    seen = []
    plain = tuning._run

    def recorded(net, groups, sites, family=None, t=0.0, seed=0):
        seen.append((family, t))
        return plain(net, groups, sites, family, t, seed)

    monkeypatch.setattr(tuning, "_run", recorded)
    net, sites = small(), (LayerSite("3", "input"),)
    images = torch.rand(60, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    found = tuning.Tuning({}, torch.empty(0, dtype=torch.long))
    families = list(tuning.fitting_families(net, Example((images,), {})).values())[:3]
    strongest = (0.5, 0.99, 1.0)
    given = list(zip(families, strongest, strict=True))
    tuning._add_copies(found, net, held(images, torch.zeros(60).long()), sites, given, 0)
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
