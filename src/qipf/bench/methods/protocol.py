"""One small protocol: fit once on clean data, then score batches of predictions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, cast

import torch
from torch import Tensor, nn

from qipf.bench.methods.network import LayeredNetwork, Outputs, predict
from qipf.errors import QIPFInputError
from qipf.validation.not_fitted import QIPFNotFittedError

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")


class Trainer(Protocol):
    """How the methods that learn more networks have them trained."""

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
        """Train in place on cross-entropy plus `penalty`; `name` tells its checkpoint."""

    def train_ensemble(
        self, network: LayeredNetwork, count: int, inputs: Tensor, labels: Tensor
    ) -> Sequence[LayeredNetwork]:
        """`count` networks like this one, each from its own random start."""


class _Memo:
    """Remembers what was computed, so that methods share it."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Any] = {}

    def __call__(self, key: Hashable, compute: Callable[[], T]) -> T:
        if key not in self._known:
            self._known[key] = compute()
        return cast(T, self._known[key])


@dataclass(frozen=True, eq=False)
class CleanData:
    """All that a method may learn from: the trained network and its uncorrupted training data.

    `trainer` is needed by the methods that learn more networks (`svi`, `svi_ll`, `ensemble`);
    `dropout_rate` is what `mc_dropout` uses unless it is given its own.
    """

    network: LayeredNetwork
    images: Tensor  # (n, C, H, W) uint8, or floats in [0, 1]
    labels: Tensor  # (n,) int64
    trainer: Trainer | None = None
    dropout_rate: float = 0.1
    seed: int = 0
    memo: _Memo = field(default_factory=_Memo, repr=False)

    def __post_init__(self) -> None:
        if len(self.images) != len(self.labels) or len(self.images) == 0:
            raise QIPFInputError(
                "images and labels must be equally many, at least one; got "
                f"{len(self.images)} images and {len(self.labels)} labels."
            )

    @cached_property
    def outputs(self) -> Outputs:
        """The network's logits and features on the training data, computed once."""
        return predict(self.network, self.images)

    @property
    def logits(self) -> Tensor:  # (n, classes)
        """The network's logits on its training data."""
        return self.outputs.logits

    @property
    def features(self) -> Tensor:  # (n, width)
        """The network's penultimate activations on its training data."""
        return self.outputs.features

    def trainer_for(self, method: str) -> Trainer:
        """The trainer, or an error that says who needs it."""
        if self.trainer is None:
            raise QIPFInputError(
                f"{method} trains networks of its own, but this CleanData has no trainer. "
                "Pass CleanData(..., trainer=...), for example a qipf.bench.training.Trainer."
            )
        return self.trainer


@dataclass(frozen=True, eq=False)
class Batch:
    """Predictions to judge: images, with the network's logits and features on them."""

    images: Tensor  # (n, C, H, W)
    logits: Tensor  # (n, classes)
    features: Tensor  # (n, width)
    memo: _Memo = field(default_factory=_Memo, repr=False)

    @classmethod
    def of(cls, network: LayeredNetwork, images: Tensor) -> Batch:
        """Run the network once and keep what all methods share."""
        outputs = predict(network, images)
        return cls(images, outputs.logits, outputs.features)

    @cached_property
    def predicted(self) -> Tensor:  # (n,)
        """The class that the deterministic network predicts."""
        return self.logits.argmax(dim=1)

    def __len__(self) -> int:
        return len(self.logits)


class Method(ABC):
    """A way to score predictions: `create(name).fit(clean).score(batch)`.

    Scores are float64, one per prediction, on the logits' device, and rise with doubt.
    """

    name: str
    #: Passes through a network that one prediction costs, the deterministic one aside.
    forward_passes: int = 1
    #: The direction of the score, for whoever compares methods.
    rises_with_doubt: ClassVar[bool] = True

    def fit(self, clean: CleanData) -> Self:
        """Learn from clean data what the score needs; nothing, for many."""
        return self

    @abstractmethod
    def score(self, batch: Batch) -> Tensor:  # (n,)
        """How little each prediction is to be trusted."""

    def _learned(self, value: T | None) -> T:
        """What `fit` learned, or the error of a method used before it."""
        if value is None:
            raise QIPFNotFittedError(f"{self.name} is not fitted yet. Call fit(clean) first.")
        return value


def check_positive(method: str, **counts: float) -> None:
    """Refuse options that must be positive and are not."""
    for option, value in counts.items():
        if not value > 0:
            raise QIPFInputError(f"{method}: {option} must be positive; got {value}.")


def to_double(tensor: Tensor) -> Tensor:
    """Float64: saturated probabilities would tie in float32."""
    return tensor.to(torch.float64)
