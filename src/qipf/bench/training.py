"""One training loop: Adam, cross-entropy, a one-cycle rate, and a checkpoint after each epoch."""

import hashlib
import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from qipf.bench.learning import Batches, BatchStack, Replayed, Stack, Steps, one_cycle
from qipf.bench.methods.network import LayeredNetwork, fresh_copy, mixed_seed, seeded
from qipf.bench.methods.protocol import CleanData
from qipf.bench.networks import Recipe
from qipf.errors import QIPFError, QIPFInputError
from qipf.io.atomic import atomic_write
from qipf.progress import progress_bar


def fingerprint(tensors: Iterable[Tensor]) -> str:
    """Digest of the content of tensors, in this order.

    >>> fingerprint([torch.zeros(2)]) == fingerprint([torch.zeros(3)])
    False
    """
    digest = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        array = tensor.detach().cpu().contiguous().numpy()
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class Checkpoint:
    """A training's state in a file, and the settings it belongs to."""

    path: Path
    settings: dict[str, Any]

    def save(self, epochs_done: int, **states: Any) -> None:
        """Replace the file atomically."""
        content = io.BytesIO()  # torch has its own errors for a full disk
        torch.save({"settings": self.settings, "epochs_done": epochs_done, **states}, content)
        with atomic_write(self.path) as file:
            file.write(content.getbuffer())

    def load(self) -> dict[str, Any] | None:
        """The last saved state; None if there is none."""
        if not self.path.exists():
            return None
        try:
            saved: dict[str, Any] = torch.load(self.path, map_location="cpu", weights_only=True)
            settings = saved["settings"]
        except Exception as error:
            raise QIPFInputError(
                f"{self.path} is not a training checkpoint ({type(error).__name__}). "
                "Delete it to train from the start."
            ) from error
        changes = "; ".join(
            f"{name} was {settings.get(name)!r}, is {self.settings.get(name)!r}"
            for name in sorted(settings.keys() | self.settings.keys())
            if settings.get(name) != self.settings.get(name)
        )
        if changes:
            raise QIPFInputError(
                f"{self.path} belongs to a training with other settings ({changes}). "
                "Delete it, or name another checkpoint."
            )
        return saved


N = TypeVar("N", bound=nn.Module)

#: How often the bar's accuracy is refreshed within an epoch.
REFRESHES = 10


def train(
    network: N,
    images: Tensor,
    labels: Tensor,
    recipe: Recipe,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    checkpoint: Path | str | None = None,
    penalty: Callable[[], Tensor] | None = None,
) -> N:
    """Train `network` in place on `device`; return it in evaluation mode.

    Parameters
    ----------
    images : (n, …) uint8, or floats; all of them stay on the device.
    labels : (n,) classes as integers.
    recipe : epochs, batch size, peak learning rate, augmentation.
    seed : of the order of the examples, their augmentation and the dropout.
    checkpoint : a file written after each epoch. If it exists, training resumes from it, on the
        CPU with exactly the result of an uninterrupted training.
    penalty : added to the cross-entropy at each step.

    >>> from qipf.bench.networks import DigitsMLP
    >>> images, labels = torch.rand(20, 1, 8, 8), torch.arange(20) % 10
    >>> network = train(DigitsMLP(), images, labels, Recipe(epochs=1))
    >>> network.training
    False
    """
    device = torch.device(device)
    _check_examples(images, labels, recipe)
    network.to(device)
    if recipe.bfloat16 and device.type == "cuda":
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    batches = _batches(images, labels, recipe, seed, device)
    _fit(network, batches, recipe, [seed], checkpoint, penalty)
    return network.eval()


def train_stacked(
    networks: Sequence[nn.Module],
    images: Tensor,
    labels: Tensor,
    recipe: Recipe,
    seeds: list[int],
    device: torch.device | str,
    checkpoint: Path | str | None = None,
    finished: Sequence[Path] = (),
) -> None:
    """Train networks of one architecture at once, in place; without dropout as one by one.

    On a GPU this is several times faster for small networks, whose kernels are short. In the end
    each network is written to its file of `finished`, as if `train` had trained it alone, and the
    checkpoint of the stack is deleted.
    """
    _check_examples(images, labels, recipe)
    device = torch.device(device)
    files = [
        Checkpoint(path, _settings(recipe, [seed], network, labels))
        for path, network, seed in zip(finished, networks, seeds, strict=bool(finished))
    ]
    stack = Stack([network.to(device).train() for network in networks])
    batches = BatchStack([_batches(images, labels, recipe, seed, device) for seed in seeds])
    _fit(stack, batches, replace(recipe, bfloat16=False), seeds, checkpoint, None)
    stack.unstack(networks)
    for network in networks:
        network.eval()
    for file, network in zip(files, networks, strict=bool(files)):
        file.save(recipe.epochs, learner=network.state_dict())
    if files and checkpoint is not None:
        Path(checkpoint).unlink(missing_ok=True)


def _batches(
    images: Tensor, labels: Tensor, recipe: Recipe, seed: int, device: torch.device
) -> Batches:
    return Batches(images, labels, recipe.batch_size, seed, recipe.augment, device, recipe.cutout)


def _settings(
    recipe: Recipe, seeds: list[int], network: nn.Module, labels: Tensor
) -> dict[str, Any]:
    """What a training's checkpoint must agree with, before the first step."""
    start = fingerprint([*network.state_dict().values(), labels])
    return {**recipe.settings(), "seeds": seeds, "start": start}


def _fit(
    network: nn.Module,
    batches: Batches | BatchStack,
    recipe: Recipe,
    seeds: list[int],
    checkpoint: Path | str | None,
    penalty: Callable[[], Tensor] | None,
) -> None:
    device, labels = batches.labels.device, batches.labels
    rates = one_cycle(recipe.epochs * batches.steps, recipe.learning_rate)
    steps = Steps(
        network, batches, rates, penalty, recipe.bfloat16, len(seeds), recipe.weight_decay
    )
    file = None
    if checkpoint is not None:
        file = Checkpoint(Path(checkpoint), _settings(recipe, seeds, network, labels))
    done = _resume(steps, file)
    step = Replayed(steps) if device.type == "cuda" else steps
    with progress_bar("training", total=recipe.epochs * batches.steps, unit="step") as bar:
        bar.update(done * batches.steps)
        for epoch in range(done, recipe.epochs):
            # seeded each epoch, so that a resumed training draws the same dropout
            with seeded(device, seeds[0], epoch):
                _one_epoch(steps, step, epoch, bar)
            if file is not None:
                states = {"learner": network.state_dict()}
                if epoch + 1 < recipe.epochs:  # two thirds of the file, and never needed again
                    states["adam"] = steps.adam.state_dict()
                file.save(epoch + 1, **states)
    steps.finish()


def member_seed(seed: int, member: int) -> int:
    """The seed of one member of an ensemble."""
    return mixed_seed(seed, 1 + member)


@dataclass(frozen=True)
class Trainer:
    """Trains the networks that some methods need, by the recipe of the deterministic one.

    `folder` holds a checkpoint of each, by name; a finished training is read from it. `build` makes
    the network of a seed, for recipes with a `pool`; the folders of other seeds are then
    ``seed3/NAME`` beside ``seed0/NAME``.
    """

    recipe: Recipe
    seed: int = 0
    device: torch.device | str = "cpu"
    folder: Path | None = None
    build: Callable[[int], LayeredNetwork] | None = None

    def clean_data(self, network: LayeredNetwork, images: Tensor, labels: Tensor) -> CleanData:
        """The data that methods are fitted on, with this trainer."""
        return CleanData(network, images, labels, self, self.recipe.dropout_rate, self.seed)

    def train(
        self,
        network: N,
        inputs: Tensor,
        labels: Tensor,
        *,
        name: str,
        epochs: int | None = None,
        augment: bool | None = None,
        penalty: Callable[[], Tensor] | None = None,
    ) -> N:
        """Train in place on cross-entropy plus `penalty`, which takes the place of weight decay."""
        augment = self.recipe.augment if augment is None else augment
        recipe = replace(
            self.recipe,
            epochs=self.recipe.epochs if epochs is None else epochs,
            augment=augment,
            cutout=self.recipe.cutout if augment else 0,
            weight_decay=self.recipe.weight_decay if penalty is None else 0.0,
        )
        return train(
            network,
            inputs,
            labels,
            recipe,
            seed=self.seed,
            device=self.device,
            checkpoint=None if self.folder is None else self.folder / f"{name}.pt",
            penalty=penalty,
        )

    def train_ensemble(
        self, network: LayeredNetwork, count: int, inputs: Tensor, labels: Tensor
    ) -> list[LayeredNetwork]:
        """Train `count` copies of a network, each from its own random initial weights.

        Member k uses the seed `member_seed(seed, k)`. On a GPU all are trained at once, except
        under recipes in bfloat16, which a stack does not take. Under recipes with a `pool` they are
        the networks of other seeds.
        """
        if self.recipe.pool:
            return self._pooled(count, inputs, labels)
        seeds = [member_seed(self.seed, k) for k in range(count)]
        members = []
        for seed in seeds:
            with seeded("cpu", seed):
                members.append(fresh_copy(network))
        names = [self._member_name(count, k) for k in range(count)]
        files = [] if self.folder is None else [self.folder / f"{name}.pt" for name in names]
        stacked = torch.device(self.device).type == "cuda" and not self.recipe.bfloat16
        if stacked and not (files and all(file.exists() for file in files)):
            file = None if self.folder is None else self.folder / f"ensemble{count}.pt"
            train_stacked(members, inputs, labels, self.recipe, seeds, self.device, file, files)
            return members
        return [
            replace(self, seed=seed).train(member, inputs, labels, name=name)
            for seed, member, name in zip(seeds, members, names, strict=True)
        ]

    def _member_name(self, count: int, member: int) -> str:
        """The member of this number in a larger or smaller ensemble is the same network."""
        known = [] if self.folder is None else sorted(self.folder.glob(f"ensemble*-{member}.pt"))
        return known[0].stem if known else f"ensemble{count}-{member}"

    def _pooled(self, count: int, inputs: Tensor, labels: Tensor) -> list[LayeredNetwork]:
        others = [seed for seed in range(self.recipe.pool) if seed != self.seed][:count]
        if self.build is None or len(others) < count:
            raise QIPFInputError(
                f"A pool of {self.recipe.pool} networks has no ensemble of {count} beside that of "
                f"seed {self.seed}. Give the recipe a larger pool, or the ensemble fewer networks."
            )
        return [self.of_seed(seed).network(inputs, labels) for seed in others]

    def of_seed(self, seed: int) -> "Trainer":
        """The trainer of another seed, in the folder of that seed."""
        folder = self.folder and self.folder.parent.parent / f"seed{seed}" / self.folder.name
        return replace(self, seed=seed, folder=folder)

    def network(self, inputs: Tensor, labels: Tensor) -> LayeredNetwork:
        """The deterministic network of this seed, trained now or read from its checkpoint."""
        assert self.build is not None  # the caller has checked
        return self.train(self.build(self.seed), inputs, labels, name="network")


def _check_examples(images: Tensor, labels: Tensor, recipe: Recipe) -> None:
    if len(images) != len(labels) or len(labels) == 0:
        raise QIPFInputError(
            "images and labels must be equally many, at least one; got "
            f"{len(images)} images and {len(labels)} labels."
        )
    if labels.ndim != 1 or labels.dtype != torch.int64:
        raise QIPFInputError(
            "labels must be one int64 class per image; got shape "
            f"{tuple(labels.shape)} of {labels.dtype}. Convert them with labels.long()."
        )
    if recipe.augment and images.ndim != 4:
        raise QIPFInputError(
            f"augment shifts images of shape (n, C, H, W); got {tuple(images.shape)}. "
            "Pass a recipe with augment=False."
        )


def _resume(steps: Steps, file: Checkpoint | None) -> int:
    """Load the checkpoint, if there is one; return the number of epochs done."""
    saved = None if file is None else file.load()
    if saved is None:
        return 0
    done = int(saved["epochs_done"])
    steps.network.load_state_dict(saved["learner"])
    if "adam" in saved:
        steps.resume(done * steps.batches.steps, saved["adam"])
    return done


def _one_epoch(steps: Steps, step: Callable[[], None], epoch: int, bar: Any) -> None:
    steps.batches.draw(epoch)
    steps.restart_counts()
    count = steps.batches.steps
    pause = max(1, count // REFRESHES)
    for number in range(1, count + 1):
        step()
        if number % pause == 0 or number == count:  # reading the counts waits for the device
            accuracy, loss = steps.accuracy_and_loss(number)
            bar.update(number - (number - 1) // pause * pause)
            text = f"epoch {epoch + 1}, accuracy {accuracy:.1%}, loss {loss:.3f}"
            bar.set_postfix_str(text, refresh=False)  # the next step shows it
            if not math.isfinite(loss):
                raise QIPFError(
                    f"Training diverged in epoch {epoch + 1}: the loss is {loss}. "
                    "Lower the recipe's learning_rate, or look for NaN in the images."
                )
