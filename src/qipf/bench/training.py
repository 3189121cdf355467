"""One training loop: Adam, cross-entropy, a one-cycle rate, and a checkpoint after each epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from qipf.bench.batches import Batches, Plan
from qipf.bench.checkpoints import Checkpoint, fingerprint
from qipf.bench.learning import Learner, Replayed, Single, Stacked, Steps, one_cycle
from qipf.bench.methods.network import LayeredNetwork, fresh_copy, predict
from qipf.bench.methods.protocol import CleanData
from qipf.bench.methods.randomness import mixed_seed, seeded
from qipf.bench.networks import Recipe
from qipf.errors import QIPFError, QIPFInputError
from qipf.progress import progress_bar

__all__ = ["Epoch", "Trainer", "clean_data", "predict", "train", "train_ensemble"]

N = TypeVar("N", bound=nn.Module)

#: How often the bar's accuracy is refreshed within an epoch.
REFRESHES = 10


@dataclass(frozen=True)
class Epoch:
    """What is known after an epoch: means over its steps, while the weights were moving."""

    number: int
    accuracy: float
    loss: float


Report = Callable[[Epoch], None]


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
    report: Report | None = None,
    cuda_graph: bool = True,
) -> N:
    """Train `network` in place, move it to `device`, leave it in evaluation mode, return it.

    Parameters
    ----------
    images : (n, …) uint8, or floats; all of them stay on the device.
    labels : (n,) classes as integers.
    recipe : epochs, batch size, peak learning rate, augmentation.
    seed : the order of the examples, their augmentation and the dropout follow from it.
    checkpoint : a file written after each epoch. A training that finds its own goes on from
        there, on the CPU with exactly the result of an undisturbed one.
    penalty : is added to the cross-entropy at each step.
    report : is called after each epoch.
    cuda_graph : on a GPU, record the step once and replay it.

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
    learner = Single(network, penalty)
    _fit(learner, images, labels, recipe, [seed], device, checkpoint, report, cuda_graph)
    return network.eval()


def train_ensemble(
    make_network: Callable[[], N],
    count: int,
    images: Tensor,
    labels: Tensor,
    recipe: Recipe,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    checkpoint: Path | str | None = None,
    together: bool | Literal["auto"] = "auto",
    cuda_graph: bool = True,
) -> list[N]:
    """`count` networks, each from its own random start and with its own order of the examples.

    Member k starts and trains from `member_seed(seed, k)`. `together` trains all at once with
    their weights stacked, else one after the other; ``"auto"`` stacks on a GPU, except under
    recipes in bfloat16, which stacks do not take and which are faster in turn. Both give
    networks of the same kind; without dropout they agree up to rounding. Trained in turn, each
    member has its own checkpoint beside the one named.
    """
    if count < 1:
        raise QIPFInputError(f"count must be at least 1; got {count}.")
    if together not in (True, False, "auto"):
        raise QIPFInputError(f"together must be True, False or 'auto'; got {together!r}.")
    device = torch.device(device)
    _check_examples(images, labels, recipe)
    seeds = [member_seed(seed, k) for k in range(count)]
    networks = [_started(make_network, member) for member in seeds]
    if together == "auto":
        together = device.type == "cuda" and not recipe.bfloat16
    if together:
        for network in networks:
            network.to(device)
        stack = Stacked(networks)
        _fit(stack, images, labels, recipe, seeds, device, checkpoint, None, cuda_graph)
        stack.unstack()
        return [network.eval() for network in networks]
    return [
        train(
            network,
            images,
            labels,
            recipe,
            seed=member,
            device=device,
            checkpoint=None if checkpoint is None else _beside(Path(checkpoint), k),
            cuda_graph=cuda_graph,
        )
        for k, (network, member) in enumerate(zip(networks, seeds, strict=True))
    ]


def member_seed(seed: int, member: int) -> int:
    """The seed of one member of an ensemble."""
    return mixed_seed(seed, 1 + member)


@dataclass(frozen=True)
class Trainer:
    """Trains the further networks that some methods need, as the deterministic one was.

    `folder` keeps a checkpoint of each, by name; a finished one is read instead of trained.
    """

    recipe: Recipe
    seed: int = 0
    device: torch.device | str = "cpu"
    folder: Path | None = None

    def train(
        self,
        network: nn.Module,
        inputs: Tensor,
        labels: Tensor,
        *,
        name: str,
        epochs: int | None = None,
        augment: bool | None = None,
        penalty: Callable[[], Tensor] | None = None,
    ) -> nn.Module:
        """Train in place on cross-entropy plus `penalty`."""
        recipe = replace(
            self.recipe,
            epochs=self.recipe.epochs if epochs is None else epochs,
            augment=self.recipe.augment if augment is None else augment,
        )
        return train(
            network,
            inputs,
            labels,
            recipe,
            seed=self.seed,
            device=self.device,
            checkpoint=self._checkpoint(name),
            penalty=penalty,
        )

    def train_ensemble(
        self, network: LayeredNetwork, count: int, inputs: Tensor, labels: Tensor
    ) -> Sequence[LayeredNetwork]:
        """`count` networks like this one, each from its own random start."""
        return train_ensemble(
            lambda: fresh_copy(network),
            count,
            inputs,
            labels,
            self.recipe,
            seed=self.seed,
            device=self.device,
            checkpoint=self._checkpoint(f"ensemble{count}"),
        )

    def _checkpoint(self, name: str) -> Path | None:
        return None if self.folder is None else self.folder / f"{name}.pt"


def clean_data(
    network: LayeredNetwork,
    images: Tensor,
    labels: Tensor,
    recipe: Recipe,
    *,
    seed: int = 0,
    folder: Path | None = None,
) -> CleanData:
    """What the methods are fitted on, with a trainer that follows the network's own recipe."""
    trainer = Trainer(recipe, seed, network.device, folder)
    return CleanData(network, images, labels, trainer, recipe.dropout_rate, seed)


def _started(make_network: Callable[[], N], seed: int) -> N:
    with seeded("cpu", seed):
        return make_network()


def _beside(checkpoint: Path, member: int) -> Path:
    return checkpoint.with_name(f"{checkpoint.stem}-{member}{checkpoint.suffix}")


def _check_examples(images: Tensor, labels: Tensor, recipe: Recipe) -> None:
    if len(images) != len(labels) or len(labels) == 0:
        raise QIPFInputError(
            "images and labels must be equally many, at least one; got "
            f"{len(images)} images and {len(labels)} labels."
        )
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise QIPFInputError(
            f"images must be uint8 or floating point; got {images.dtype}. "
            "Convert them with images.to(torch.uint8) or images.float()."
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


def _fit(
    learner: Learner,
    images: Tensor,
    labels: Tensor,
    recipe: Recipe,
    seeds: list[int],
    device: torch.device,
    checkpoint: Path | str | None,
    report: Report | None,
    cuda_graph: bool,
) -> None:
    plan = Plan(seeds, len(labels), recipe.augment, device)
    batches = Batches(images, labels, plan, recipe.batch_size)
    rates = one_cycle(recipe.epochs * batches.steps, recipe.learning_rate)
    steps = Steps(learner, batches, rates, recipe.bfloat16 and isinstance(learner, Single))
    file = None
    if checkpoint is not None:
        start = fingerprint([*learner.state().values(), labels])
        file = Checkpoint(Path(checkpoint), {**asdict(recipe), "seeds": seeds, "start": start})
    done = _resume(steps, file)
    step = Replayed(steps) if cuda_graph and device.type == "cuda" else steps
    with progress_bar("training", total=recipe.epochs * batches.steps, unit="step") as bar:
        bar.update(done * batches.steps)
        for epoch in range(done, recipe.epochs):
            # seeded anew each epoch: a resumed training draws the same dropout
            with seeded(device, seeds[0], epoch):
                summary = _one_epoch(steps, step, epoch, bar)
            if file is not None:
                file.save(epoch + 1, learner=learner.state(), adam=steps.adam.state_dict())
            if report is not None:
                report(summary)
    steps.finish()


def _resume(steps: Steps, file: Checkpoint | None) -> int:
    """Load what was saved; the number of epochs already done."""
    saved = None if file is None else file.load()
    if saved is None:
        return 0
    done = int(saved["epochs_done"])
    state = steps.learner.state()
    with torch.no_grad():
        for name, tensor in state.items():
            tensor.copy_(saved["learner"][name])
    steps.resume(done * steps.batches.steps, saved["adam"])
    return done


def _one_epoch(steps: Steps, step: Callable[[], None], epoch: int, bar: Any) -> Epoch:
    steps.batches.plan.draw(epoch)
    steps.restart_counts()
    count = steps.batches.steps
    pause = max(1, count // REFRESHES)
    for number in range(1, count + 1):
        step()
        if number % pause == 0 or number == count:  # reading the counts waits for the device
            accuracy, loss = steps.accuracy_and_loss(number)
            bar.update(number - (number - 1) // pause * pause)
            bar.set_postfix_str(f"epoch {epoch + 1}, accuracy {accuracy:.1%}, loss {loss:.3f}")
            if not math.isfinite(loss):
                raise QIPFError(
                    f"Training diverged in epoch {epoch + 1}: the loss is {loss}. "
                    "Lower the recipe's learning_rate, or look for NaN in the images."
                )
    return Epoch(epoch + 1, accuracy, loss)
