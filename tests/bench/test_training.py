from __future__ import annotations

import contextlib
import copy
import dataclasses
import re
import resource
from pathlib import Path

import pytest
import torch

from qipf.bench import training
from qipf.bench.datasets import load
from qipf.bench.methods.network import fresh_copy, predict, seeded
from qipf.bench.networks import VGG3, DigitsMLP, Recipe, build
from qipf.bench.training import Checkpoint, Trainer, fingerprint, member_seed, train
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
    recipe = dataclasses.replace(recipe, epochs=15)
    train(network, digits.train_images, digits.train_labels, recipe)
    predicted = predict(network, digits.test_images).logits.argmax(1)
    assert (predicted == digits.test_labels).double().mean() > 0.95
    assert not network.training
    assert all(p.grad is None for p in network.parameters())


def test_the_seed_determines_the_result_and_the_global_state_is_kept():
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


@pytest.mark.slow
@pytest.mark.parametrize("steps", [3, 4, 6, 9])  # of three an epoch
def test_a_resumed_training_ends_exactly_as_an_uninterrupted_one(steps, tmp_path, monkeypatch):
    uninterrupted = train(small_vgg(), *small_data(), RECIPE, seed=1)
    path = tmp_path / "vgg.pt"
    calls = 0
    real = training.Steps.__call__

    def failing(self):
        nonlocal calls
        if calls == steps:
            calls += 1
            raise PowerCutError
        real(self)
        calls += 1

    monkeypatch.setattr(training.Steps, "__call__", failing)
    resumed = None
    with contextlib.suppress(PowerCutError):
        resumed = train(small_vgg(), *small_data(), RECIPE, seed=1, checkpoint=path)
    assert (resumed is None) == (steps < 9)
    calls = steps + 1
    resumed = train(small_vgg(), *small_data(), RECIPE, seed=1, checkpoint=path)
    assert calls - (steps + 1) == 9 - steps // 3 * 3  # a finished training is not repeated
    assert same_state(resumed, uninterrupted)


def test_a_full_disk_keeps_the_last_checkpoint(tmp_path):
    checkpoint = Checkpoint(tmp_path / "c.pt", {})
    checkpoint.save(1, weights=torch.zeros(10_000))

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))  # as on a full disk
    try:
        with pytest.raises(QIPFError, match=r"Cannot write .*c\.pt: File too large\. Files that"):
            checkpoint.save(2, weights=torch.ones(10_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in tmp_path.iterdir()] == ["c.pt"]
    assert checkpoint.load()["epochs_done"] == 1


def test_a_checkpoint_of_another_start_is_refused(tmp_path):
    path = tmp_path / "vgg.pt"
    train(small_vgg(), *small_data(), RECIPE, checkpoint=path)
    with pytest.raises(QIPFInputError, match=r"belongs to a training with other settings \(start"):
        train(small_vgg(seed=1), *small_data(), RECIPE, checkpoint=path)
    with pytest.raises(QIPFInputError, match=r"other settings \(epochs was 3, is 4\)"):
        train(small_vgg(), *small_data(), dataclasses.replace(RECIPE, epochs=4), checkpoint=path)


def make() -> DigitsMLP:
    return DigitsMLP(1, 3, 8)


def test_the_trainer_keeps_named_checkpoints_and_the_recipe(tmp_path: Path):
    images, labels = small_data()
    network = make()
    trainer = Trainer(RECIPE, 2, "cpu", tmp_path)
    clean = trainer.clean_data(network, images, labels)
    assert clean.dropout_rate == RECIPE.dropout_rate
    assert clean.seed == 2
    assert clean.trainer == trainer
    start = copy.deepcopy(network)
    trained = trainer.train(network, images, labels, name="more", epochs=2, augment=False)
    recipe = dataclasses.replace(RECIPE, epochs=2, augment=False)
    assert same_state(trained, train(start, images, labels, recipe, seed=2))
    members = trainer.train_ensemble(network, 2, images, labels)
    for k, member in enumerate(members):
        with seeded("cpu", member_seed(2, k)):
            alone = fresh_copy(network)
        assert same_state(member, train(alone, images, labels, RECIPE, seed=member_seed(2, k)))
    assert not same_state(*members)
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
        (torch.zeros(2, 1, 8, 8).int(), torch.zeros(2).long(), "got torch.int32."),
        (torch.zeros(2, 1, 8, 8), torch.zeros(2), "got shape (2,) of torch.float32. Convert them"),
        (torch.zeros(2, 64), torch.zeros(2).long(), "of shape (n, C, H, W); got (2, 64). Pass a"),
    ],
)
def test_invalid_examples_are_errors(images, labels, message):
    with pytest.raises(QIPFInputError, match=re.escape(message)):
        train(make(), images, labels, RECIPE)


def test_divergence_is_an_error():
    images, labels = small_data()
    images = images.float()
    images[3, 0, 0, 0] = float("nan")
    message = "Training diverged in epoch 1: the loss is nan. Lower the recipe's learning_rate, or"
    with pytest.raises(QIPFError, match=message):
        train(make(), images, labels, PLAIN)


def test_networks_trained_in_a_stack_learn_what_each_learns_alone(tmp_path):
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(40, 1, 8, 8, generator=generator)
    labels = torch.randint(0, 10, (40,), generator=generator)
    recipe = Recipe(epochs=3, batch_size=8, learning_rate=0.01)
    networks = [DigitsMLP() for _ in range(3)]
    alone = [copy.deepcopy(network) for network in networks]
    training.train_stacked(
        networks, images, labels, recipe, [1, 2, 3], "cpu", tmp_path / "stack.pt"
    )
    for network, twin, seed in zip(networks, alone, [1, 2, 3], strict=True):
        assert not network.training
        train(twin, images, labels, recipe, seed=seed)
        for learned, expected in zip(network.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(learned, expected, rtol=1e-4, atol=1e-5)


def test_networks_of_a_finished_stack_are_read_one_by_one(tmp_path, monkeypatch):
    """What a GPU trained at once is read elsewhere, where networks are trained one by one."""
    images, labels = small_data()
    networks = [make(), make()]
    twins = [copy.deepcopy(network) for network in networks]
    files = [tmp_path / "a.pt", tmp_path / "b.pt"]
    recipe = dataclasses.replace(RECIPE, augment=False)
    stack = tmp_path / "stack.pt"
    training.train_stacked(networks, images, labels, recipe, [1, 2], "cpu", stack, files)
    assert sorted(tmp_path.iterdir()) == files
    monkeypatch.setattr(training, "_one_epoch", None)  # nothing is trained again
    for network, twin, seed, file in zip(networks, twins, [1, 2], files, strict=True):
        again = train(twin, images, labels, recipe, seed=seed, checkpoint=file)
        assert same_state(again, network)


def test_a_finished_checkpoint_holds_no_optimiser_state(tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(Checkpoint, "save", lambda self, done, **states: kept.append([*states]))
    recipe = dataclasses.replace(RECIPE, augment=False)
    train(make(), *small_data(), recipe, checkpoint=tmp_path / "net.pt")
    assert kept == [["learner", "adam"], ["learner", "adam"], ["learner"]]


def test_what_was_saved_last_is_loaded(tmp_path):
    checkpoint = Checkpoint(tmp_path / "deep" / "net.pt", {"epochs": 3, "seeds": [1]})
    assert checkpoint.load() is None
    checkpoint.save(1, learner={"w": torch.ones(2)})
    checkpoint.save(2, learner={"w": torch.zeros(2)})
    saved = checkpoint.load()
    assert saved["epochs_done"] == 2
    assert torch.equal(saved["learner"]["w"], torch.zeros(2))
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["net.pt"]


def test_an_interrupted_save_leaves_the_old_file(tmp_path, monkeypatch):
    checkpoint = Checkpoint(tmp_path / "net.pt", {})
    checkpoint.save(1, learner={})

    def interrupted(obj, file):
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(2, learner={})
    assert checkpoint.load()["epochs_done"] == 1


def test_other_settings_and_other_files_are_refused(tmp_path):
    path = tmp_path / "net.pt"
    Checkpoint(path, {"epochs": 3, "seeds": [1]}).save(1)
    message = (
        f"{path} belongs to a training with other settings (epochs was 3, is 4; seeds was [1], "
        "is [2]). Delete it, or name another checkpoint."
    )
    with pytest.raises(QIPFInputError, match=re.escape(message)):
        Checkpoint(path, {"epochs": 4, "seeds": [2]}).load()
    path.write_bytes(b"not a checkpoint")
    message = f"{path} is not a training checkpoint (UnpicklingError). Delete it to train from"
    with pytest.raises(QIPFInputError, match=re.escape(message)):
        Checkpoint(path, {}).load()


def test_fingerprints_tell_values_shapes_and_order_apart():
    a, b = torch.arange(4.0), torch.ones(4)
    prints = [fingerprint(t) for t in ([a], [b], [a.reshape(2, 2)], [a, b], [b, a], [a.double()])]
    assert len(set(prints)) == 6
    assert fingerprint([a.clone(), b]) == prints[3]


def test_networks_of_a_pool_are_trained_once_and_are_each_others_ensemble(tmp_path, monkeypatch):
    images, labels = small_data()
    recipe = dataclasses.replace(RECIPE, augment=False, pool=3)
    trained = []
    original = training.train

    def counted(network, *given, **options):
        trained.append(options["seed"])
        return original(network, *given, **options)

    monkeypatch.setattr(training, "train", counted)

    def network_of(seed: int):
        with seeded("cpu", seed):
            return make()

    def trainer(seed: int) -> Trainer:
        return Trainer(recipe, seed, "cpu", tmp_path / f"seed{seed}" / "mine", network_of)

    first = trainer(0).network(images, labels)
    others = trainer(0).train_ensemble(first, 2, images, labels)
    assert trained == [0, 1, 2]
    assert same_state(others[0], trainer(1).network(images, labels))
    of_second = trainer(1).train_ensemble(others[0], 2, images, labels)
    assert same_state(of_second[0], first)
    assert same_state(of_second[1], others[1])
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.pt"))
    assert files == [f"seed{k}/mine/network.pt" for k in range(3)]
    with pytest.raises(QIPFInputError, match="A pool of 3 networks has no ensemble of 3 beside"):
        trainer(0).train_ensemble(first, 3, images, labels)


def test_a_smaller_ensemble_takes_the_networks_of_a_larger_one(tmp_path):
    images, labels = small_data()
    trainer = Trainer(dataclasses.replace(RECIPE, epochs=1), 0, "cpu", tmp_path)
    larger = trainer.train_ensemble(make(), 2, images, labels)
    smaller = trainer.train_ensemble(make(), 1, images, labels)
    assert same_state(larger[0], smaller[0])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ensemble2-0.pt", "ensemble2-1.pt"]


def test_weight_decay_shrinks_matrices_and_a_penalty_replaces_it(tmp_path):
    images, labels = small_data()
    plain, decayed = (
        train(make_seeded(), images, labels, dataclasses.replace(RECIPE, weight_decay=w))
        for w in (0.0, 20.0)
    )
    sizes = [float(found.head.weight.detach().norm()) for found in (decayed, plain)]
    assert sizes[0] < 0.9 * sizes[1]
    trainer = Trainer(dataclasses.replace(RECIPE, weight_decay=20.0))
    penalised = trainer.train(
        make_seeded(), images, labels, name="p", penalty=lambda: torch.zeros(())
    )
    assert same_state(penalised, plain)


def make_seeded() -> DigitsMLP:
    with seeded("cpu", 0):
        return make()
