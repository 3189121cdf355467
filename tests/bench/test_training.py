from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import torch

from qipf.bench import training
from qipf.bench.datasets import load
from qipf.bench.methods.randomness import seeded
from qipf.bench.networks import VGG3, DigitsMLP, Recipe, build
from qipf.bench.training import (
    Epoch,
    Trainer,
    clean_data,
    member_seed,
    predict,
    train,
    train_ensemble,
)
from qipf.errors import QIPFError, QIPFInputError


def small_data(count: int = 48) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 1, 8, 8), generator=generator).to(torch.uint8)
    return images, torch.randint(0, 3, (count,), generator=generator)


def small_vgg(seed: int = 0) -> VGG3:
    with seeded("cpu", seed):
        return VGG3(1, 3, 8)


#: Everything that draws: order, augmentation, and VGG-3's dropout.
RECIPE = Recipe(epochs=3, batch_size=16, augment=True)


#: Draws the order only.
PLAIN = Recipe(epochs=3, batch_size=16)


def same_state(first: torch.nn.Module, second: torch.nn.Module) -> bool:
    other = second.state_dict()
    return all(torch.equal(tensor, other[name]) for name, tensor in first.state_dict().items())


def test_the_digits_network_learns():
    digits = load("digits")
    network, recipe = build("mlp", 1, 10, 8, seed=0)
    seen: list[Epoch] = []
    train(network, digits.train_images, digits.train_labels, recipe, report=seen.append)
    predicted = predict(network, digits.test_images).logits.argmax(1)
    assert (predicted == digits.test_labels).double().mean() > 0.95
    assert [epoch.number for epoch in seen] == list(range(1, recipe.epochs + 1))
    assert seen[-1].accuracy > 0.99 > seen[0].accuracy
    assert seen[-1].loss < 0.1 < seen[0].loss
    assert not network.training
    assert all(p.grad is None for p in network.parameters())


def test_the_seed_decides_and_global_draws_stay_as_they_were():
    torch.manual_seed(9)
    before = torch.get_rng_state()
    first = train(small_vgg(), *small_data(), RECIPE, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(5)  # what others draw must not matter
    assert same_state(train(small_vgg(), *small_data(), RECIPE, seed=1), first)
    assert not same_state(train(small_vgg(), *small_data(), RECIPE, seed=2), first)


def test_dropout_differs_from_epoch_to_epoch():
    masks: list[torch.Tensor] = []
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.5), torch.nn.Linear(64, 3))
    network[2].register_forward_pre_hook(lambda _, inputs: masks.append(inputs[0] > 0))
    train(network, torch.ones(16, 1, 8, 8), small_data(16)[1], PLAIN)
    assert len(masks) == 3
    assert not torch.equal(masks[0], masks[1])


class PowerCutError(Exception):
    pass


@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_resumed_training_ends_exactly_as_an_undisturbed_one(after, tmp_path):
    undisturbed = train(small_vgg(), *small_data(), RECIPE, seed=1)
    path = tmp_path / "vgg.pt"

    def cut(epoch: Epoch) -> None:
        if epoch.number == after:
            raise PowerCutError

    with pytest.raises(PowerCutError):
        train(small_vgg(), *small_data(), RECIPE, seed=1, checkpoint=path, report=cut)
    epochs: list[Epoch] = []
    resumed = train(
        small_vgg(), *small_data(), RECIPE, seed=1, checkpoint=path, report=epochs.append
    )
    assert [epoch.number for epoch in epochs] == list(range(after + 1, 4))
    assert same_state(resumed, undisturbed)
    # a finished training is read, not repeated
    assert same_state(train(small_vgg(), *small_data(), RECIPE, seed=1, checkpoint=path), resumed)


def test_a_training_cut_within_an_epoch_resumes_from_its_beginning(tmp_path, monkeypatch):
    undisturbed = train(small_vgg(), *small_data(), RECIPE, seed=1)
    calls = 0
    real = training.Steps.__call__

    def failing(self):
        nonlocal calls
        calls += 1
        if calls == 5:  # of three steps an epoch
            raise PowerCutError
        real(self)

    monkeypatch.setattr(training.Steps, "__call__", failing)
    path = tmp_path / "vgg.pt"
    with pytest.raises(PowerCutError):
        train(small_vgg(), *small_data(), RECIPE, seed=1, checkpoint=path)
    resumed = train(small_vgg(), *small_data(), RECIPE, seed=1, checkpoint=path)
    assert calls == 5 + 6
    assert same_state(resumed, undisturbed)


def test_a_checkpoint_of_another_start_is_refused(tmp_path):
    path = tmp_path / "vgg.pt"
    train(small_vgg(), *small_data(), RECIPE, checkpoint=path)
    with pytest.raises(QIPFInputError, match=r"belongs to a training with other settings \(start"):
        train(small_vgg(seed=1), *small_data(), RECIPE, checkpoint=path)
    with pytest.raises(QIPFInputError, match=r"other settings \(epochs was 3, is 4\)"):
        train(small_vgg(), *small_data(), dataclasses.replace(RECIPE, epochs=4), checkpoint=path)


def make() -> DigitsMLP:
    return DigitsMLP(1, 3, 8)


def test_an_ensemble_of_one_is_a_plain_training():
    (alone,) = train_ensemble(make, 1, *small_data(), PLAIN, seed=4, together=False)
    with seeded("cpu", member_seed(4, 0)):
        network = make()
    assert same_state(train(network, *small_data(), PLAIN, seed=member_seed(4, 0)), alone)
    (together,) = train_ensemble(make, 1, *small_data(), PLAIN, seed=4, together=True)
    reference = alone.state_dict()
    for name, tensor in together.state_dict().items():
        torch.testing.assert_close(tensor, reference[name], rtol=1e-4, atol=1e-5)


def test_together_and_in_turn_give_the_same_networks():
    in_turn, together = (
        train_ensemble(make, 3, *small_data(), PLAIN, seed=4, together=way) for way in (False, True)
    )
    for first, second in zip(in_turn, together, strict=True):
        assert not first.training
        assert not second.training
        torch.testing.assert_close(first.head.weight, second.head.weight, rtol=1e-3, atol=1e-5)
    assert not torch.allclose(in_turn[0].head.weight, in_turn[1].head.weight)


def test_together_learns_the_digits_with_batch_norm_and_dropout():
    digits = load("digits")
    images, labels = digits.train_images[:400], digits.train_labels[:400]
    recipe = Recipe(epochs=4, batch_size=40, learning_rate=4e-3)
    networks = train_ensemble(lambda: VGG3(1, 10, 8), 2, images, labels, recipe, together=True)
    for network in networks:
        predicted = predict(network, digits.test_images).logits.argmax(1)
        assert (predicted == digits.test_labels).double().mean() > 0.8


@pytest.mark.parametrize("together", [False, True])
def test_an_ensemble_resumes(together, tmp_path, monkeypatch):
    path = tmp_path / "ensemble.pt"
    options = {"seed": 4, "together": together}
    undisturbed = train_ensemble(make, 2, *small_data(), PLAIN, **options)
    calls = 0
    real = training.Steps.__call__

    def failing(self):
        nonlocal calls
        calls += 1
        if calls == 8:
            raise PowerCutError
        real(self)

    monkeypatch.setattr(training.Steps, "__call__", failing)
    with pytest.raises(PowerCutError):
        train_ensemble(make, 2, *small_data(), PLAIN, **options, checkpoint=path)
    resumed = train_ensemble(make, 2, *small_data(), PLAIN, **options, checkpoint=path)
    assert all(map(same_state, resumed, undisturbed))
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == (["ensemble.pt"] if together else ["ensemble-0.pt", "ensemble-1.pt"])


def test_on_the_cpu_networks_train_in_turn_unless_asked(tmp_path):
    train_ensemble(make, 2, *small_data(), PLAIN, checkpoint=tmp_path / "e.pt")
    assert (tmp_path / "e-0.pt").exists()


def test_the_trainer_keeps_named_checkpoints_and_the_recipe(tmp_path: Path):
    images, labels = small_data()
    network = small_vgg()
    clean = clean_data(network, images, labels, RECIPE, seed=2, folder=tmp_path)
    assert clean.dropout_rate == RECIPE.dropout_rate
    assert clean.seed == 2
    trainer = Trainer(RECIPE, 2, network.device, tmp_path)
    assert clean.trainer == trainer
    trained = trainer.train(small_vgg(), images, labels, name="more", epochs=2, augment=False)
    recipe = dataclasses.replace(RECIPE, epochs=2, augment=False)
    assert same_state(trained, train(small_vgg(), images, labels, recipe, seed=2))
    members = trainer.train_ensemble(network, 2, images, labels)
    assert len(members) == 2
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == ["ensemble2-0.pt", "ensemble2-1.pt", "more.pt"]


def test_fewer_examples_than_a_batch_train_as_one_batch():
    images, labels = small_data(5)
    train(make(), images, labels, Recipe(epochs=2, batch_size=64))


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.zeros(2, 1, 8, 8), torch.zeros(3).long(), "got 2 images and 3 labels."),
        (torch.zeros(0, 1, 8, 8), torch.zeros(0).long(), "got 0 images and 0 labels."),
        (torch.zeros(2, 1, 8, 8).int(), torch.zeros(2).long(), "floating point; got torch.int32."),
        (torch.zeros(2, 1, 8, 8), torch.zeros(2), "got shape (2,) of torch.float32. Convert them"),
        (torch.zeros(2, 64), torch.zeros(2).long(), "of shape (n, C, H, W); got (2, 64). Pass a"),
    ],
)
def test_unusable_examples_are_refused(images, labels, message):
    with pytest.raises(QIPFInputError, match=re.escape(message)):
        train(make(), images, labels, RECIPE)


def test_unusable_ensembles_are_refused():
    with pytest.raises(QIPFInputError, match="count must be at least 1; got 0"):
        train_ensemble(make, 0, *small_data(), PLAIN)
    with pytest.raises(QIPFInputError, match="together must be True, False or 'auto'; got 'yes'"):
        train_ensemble(make, 2, *small_data(), PLAIN, together="yes")


def test_divergence_is_told():
    images, labels = small_data()
    images = images.float()
    images[3, 0, 0, 0] = float("nan")
    message = "Training diverged in epoch 1: the loss is nan. Lower the recipe's learning_rate, or"
    with pytest.raises(QIPFError, match=message):
        train(make(), images, labels, PLAIN)
