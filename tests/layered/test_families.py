"""Which families fit a network's inputs, and what they change."""

import pytest
import torch
from torch import nn

from qipf.export.program import Example
from qipf.layered.families import fitting_families, fitting_outliers, tokens_of
from qipf.layered.outliers import FOR_IMAGES as JOINED_IMAGES
from qipf.layered.outliers import FOR_TOKENS as JOINED_TOKENS
from qipf.layered.perturbations import FOR_ALL, FOR_EMBEDDINGS, FOR_IMAGES, FOR_TOKENS
from qipf.network.features import hooked


class Reader(nn.Module):
    """Tokens, their kinds, and perhaps an image."""

    def __init__(self, padding=None):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.kinds = nn.Embedding(20, 4, padding_idx=padding), nn.Embedding(2, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, input_ids, attention_mask=None, token_type_ids=None, image=None):
        rows = self.words(input_ids)
        if token_type_ids is not None:
            rows = rows + self.kinds(token_type_ids)
        weights = torch.ones(input_ids.shape) if attention_mask is None else attention_mask
        rows = (rows * weights[..., None]).sum(1) / weights.sum(1, keepdim=True)
        return (
            self.head(rows) if image is None else self.head(rows + image.mean((1, 2, 3))[:, None])
        )


def text(count=30, seed=0):
    random = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 20, (count, 8), generator=random)
    length = torch.randint(4, 9, (count, 1), generator=random)
    return torch.where(torch.arange(8) < length, ids, 0)


def test_the_tokens_are_what_the_largest_embedding_reads():
    ids = text()
    example = Example((), {"token_type_ids": torch.zeros_like(ids), "input_ids": ids})
    assert tokens_of(Reader(padding=0), example) == ("input_ids", "words", 0)
    positional = Example((ids, (ids > 0).long(), torch.zeros_like(ids)), {})
    assert tokens_of(Reader(), positional) == ("input_0", "words", None)
    assert tokens_of(nn.Linear(3, 3), Example((torch.zeros(5, 3),), {})) is None


def test_the_tokens_of_a_bag_and_bytes_of_images_are_perturbed():
    bag = nn.Sequential(nn.EmbeddingBag(20, 6), nn.Linear(6, 3))
    assert tokens_of(bag, Example((text(),), {})) == ("input", "0", None)
    expected = {*FOR_TOKENS, *FOR_EMBEDDINGS} - {"swap tokens"}
    assert set(fitting_families(bag, Example((text(),), {}))) == expected
    images = torch.randint(256, (9, 3, 8, 8), dtype=torch.uint8)
    example, net = Example((images,), {}), nn.Flatten()
    assert set(fitting_families(net, example)) == set(FOR_IMAGES)
    for family in fitting_families(net, example).values():
        (changed,), _ = family(example, 0.6, 1)[0]
        assert changed.dtype == torch.uint8
        assert not torch.equal(changed, images)
    for join in fitting_outliers(net, example).values():
        assert (
            join(example, example.take(torch.arange(8, -1, -1)), 1).inputs[0].dtype == torch.uint8
        )
    assert not fitting_families(net, Example((images[:, 0, 0],), {}))  # a table of categories


def test_an_embedding_may_read_more_than_the_tokens():
    class Masked(nn.Embedding):
        def forward(self, ids, mask):
            return super().forward(ids) * mask[..., None]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = Masked(20, 3)

        def forward(self, ids):
            return self.words(ids, torch.ones_like(ids)).mean(1)

    assert tokens_of(Net(), Example((text(),), {})).layer == "words"


@pytest.mark.parametrize(
    ("example", "expected"),
    [
        (Example((text(),), {}), {*FOR_TOKENS, *FOR_EMBEDDINGS}),
        (
            Example((text(),), {"image": torch.rand(30, 1, 5, 5)}),
            {*FOR_TOKENS, *FOR_EMBEDDINGS, *FOR_IMAGES},
        ),
    ],
)
def test_families_of_every_input(example, expected):
    assert set(fitting_families(Reader(), example)) == expected


def test_images_and_tables_are_perturbed_by_the_families_of_their_own():
    class Net(nn.Module):
        def forward(self, image, table):
            return image.mean((2, 3)) + table

    example = Example((torch.rand(9, 3, 5, 5), torch.rand(9, 3)), {})
    families = fitting_families(Net(), example)
    assert set(families) == set(FOR_IMAGES)
    for name, family in families.items():
        (image, table), _ = family(example, 0.6, 1)[0]
        assert not torch.equal(image, example.inputs[0])
        assert torch.equal(table, example.inputs[1]) == (name not in FOR_ALL)
    noisy = families["noise"](Example((torch.rand(9, 3), torch.rand(9, 3)), {}), 0.1, 1)[0]
    assert not torch.equal(*noisy.inputs)  # two inputs get different noise


def test_images_and_tables_are_joined_by_the_kinds_of_their_own():
    class Net(nn.Module):
        def forward(self, image, table):
            return image.mean((2, 3)) + table

    one = Example((torch.zeros(9, 3, 6, 6), torch.zeros(9, 3)), {})
    two = Example((torch.ones(9, 3, 6, 6), torch.ones(9, 3)), {})
    kinds = fitting_outliers(Net(), one)
    assert set(kinds) == {*JOINED_IMAGES, "features of two"}
    for name, kind in kinds.items():
        image, table = kind(one, two, 1).inputs
        assert bool(table.any()) == (name == "features of two")
        assert bool(image.any()) == (name in ("halves of two", "tiles of two"))
    assert fitting_outliers(Net(), Example((torch.zeros(9, 3).long(),), {})) == {}


@pytest.mark.parametrize("name", JOINED_TOKENS)
def test_padding_and_masks_of_joined_texts_stay(name):
    ids, other = text(), text(seed=1)
    batch = {"input_ids": ids, "attention_mask": (ids > 0).float()}
    others = {"input_ids": other, "attention_mask": (other > 0).float()}
    kind = fitting_outliers(Reader(), Example((), batch))[name]
    found = kind(Example((), batch), Example((), others), 3).options
    assert torch.equal(found["attention_mask"], batch["attention_mask"])
    assert torch.equal(found["input_ids"] > 0, ids > 0)
    assert not torch.equal(found["input_ids"], ids)
    (alone,) = fitting_outliers(Reader(padding=0), Example((ids,), {}))[name](
        Example((ids,), {}), Example((other,), {}), 3
    ).inputs
    assert torch.equal(alone, found["input_ids"])


@pytest.mark.parametrize("name", FOR_TOKENS)
def test_masks_follow_their_tokens(name):
    ids = text()
    batch = {"input_ids": ids, "attention_mask": (ids > 0).float()}
    family = fitting_families(Reader(), Example((), batch))[name]
    found, hooks = family(Example((), batch), 0.5, 3)
    assert not hooks
    changed, mask = found.options["input_ids"], found.options["attention_mask"]
    assert mask.dtype == torch.float32
    assert not torch.equal(changed, ids)
    dropped = name == "drop tokens"
    assert (int(mask.sum()) < int((ids > 0).sum())) == dropped
    assert torch.equal(mask.sum(1), (changed > 0).sum(1).float())
    # without a mask the embedding's padding is left alone
    family = fitting_families(Reader(padding=0), Example((ids,), {}))[name]
    (alone,), _ = family(Example((ids,), {}), 0.5, 3)[0]
    assert torch.equal(alone, changed)
    # and without padding every token may change
    family = fitting_families(Reader(), Example((ids,), {}))[name]
    (every,), _ = family(Example((ids,), {}), 0.5, 3)[0]
    assert not torch.equal(every, ids)


@torch.no_grad()
@pytest.mark.parametrize("name", FOR_EMBEDDINGS)
def test_the_embedding_is_perturbed_within_the_network(name):
    net, example = Reader(), Example((text(),), {})
    family = fitting_families(net, example)[name]
    outputs = []
    for t in (0.0, 0.2, 0.9):
        shown, hooks = family(example, t, 5)
        assert shown is example
        with hooked(net, hooks):
            outputs.append(net(*shown.inputs))
    torch.testing.assert_close(outputs[0], net(*example.inputs))
    near, far = ((output - outputs[0]).norm() for output in outputs[1:])
    assert 0 < near < far
    assert not net.words._forward_hooks
