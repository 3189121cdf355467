"""Held-out examples, clean and perturbed."""

import pytest
import torch
from torch import nn

from qipf import QIPFWarning
from qipf.layered import perturbations
from qipf.layered.holdout import INPUTS, LABELS, PLACES
from qipf.layered.tuning import FEWEST, tuning_sets
from qipf.network.features import LayerSite


def held(inputs, labels):
    return {PLACES: torch.arange(len(labels)), INPUTS: inputs, LABELS: labels}


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


def test_integers_are_not_perturbed():
    class Embedding(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.table, self.inner, self.head = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, tokens):
            return self.head(self.inner(self.table(tokens).mean(1)))

    tokens = torch.randint(9, (40, 5), generator=torch.Generator().manual_seed(0))
    with pytest.warns(QIPFWarning, match="cannot be perturbed"), torch.no_grad():
        found = tuning_sets(
            Embedding(), held(tokens, tokens[:, 0] % 3), (LayerSite("inner"),), 3, 0
        )
    assert list(found.sets) == ["clean"]


def test_too_few_examples_give_no_sets():
    found = tuning_sets(
        small(), held(torch.rand(FEWEST - 1, 36), torch.zeros(FEWEST - 1)), (), 3, 0
    )
    assert (found.sets, len(found.labels)) == ({}, 0)
