"""The interface of methods: fit once on clean data, then score batches of predictions."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor

from qipf.bench.methods.network import ROWS, LayeredNetwork, Outputs, predict, unit_range
from qipf.errors import QIPFInputError
from qipf.validation.not_fitted import QIPFNotFittedError

if TYPE_CHECKING:
    from typing_extensions import Self

    from qipf.bench.training import Trainer

T = TypeVar("T")


class _Memo:
    """Results by key, computed once and shared by the methods."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Any] = {}

    def __call__(self, key: Hashable, compute: Callable[[], T]) -> T:
        if key not in self._known:
            self._known[key] = compute()
        return cast(T, self._known[key])


@dataclass(frozen=True, eq=False)
class CleanData:
    """What a method is fitted on: the trained network and its uncorrupted training data.

    `trainer` is needed by the methods that learn more networks (`svi`, `svi_ll`, `ensemble`);
    `dropout_rate` is what `mc_dropout` uses unless it is given its own.
    """

    network: LayeredNetwork
    images: Tensor  # (n, C, H, W) uint8, or floats in [0, 1]
    labels: Tensor  # (n,) int64
    trainer: "Trainer | None" = None
    dropout_rate: float = 0.1
    seed: int = 0
    memo: _Memo = field(default_factory=_Memo, repr=False)

    def __post_init__(self) -> None:
        if len(self.images) != len(self.labels) or len(self.images) == 0:
            raise QIPFInputError(
                "images and labels must be equally many, at least one; got "
                f"{len(self.images)} images and {len(self.labels)} labels."
            )

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs in [0, 1] and labels, as a loader gives them."""
        for images, labels in zip(self.images.split(ROWS), self.labels.split(ROWS), strict=True):
            yield unit_range(images), labels

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

    def trainer_for(self, method: str) -> "Trainer":
        """The trainer; an error if there is none."""
        if self.trainer is None:
            raise QIPFInputError(
                f"{method} trains networks of its own, but this CleanData has no trainer. "
                "Pass CleanData(..., trainer=...), for example a qipf.bench.training.Trainer."
            )
        return self.trainer


@dataclass(frozen=True, eq=False)
class Batch:
    """Predictions to score: images, with the network's logits and features on them."""

    images: Tensor  # (n, C, H, W)
    logits: Tensor  # (n, classes)
    features: Tensor  # (n, width)
    memo: _Memo = field(default_factory=_Memo, repr=False)

    @classmethod
    def of(cls, network: LayeredNetwork, images: Tensor) -> "Batch":
        """Run the network once on the images."""
        outputs = predict(network, images)
        return cls(images, outputs.logits, outputs.features)

    @cached_property
    def predicted(self) -> Tensor:  # (n,)
        """The class that the deterministic network predicts."""
        return self.logits.argmax(dim=1)

    def __len__(self) -> int:
        return len(self.logits)


class Method(ABC):
    """A method that scores predictions: `create(name).fit(clean).score(batch)`.

    Scores are float64, one per prediction, on the logits' device; higher is less trustworthy.
    """

    name: str
    #: Forward passes per prediction, without that of the deterministic network.
    forward_passes: int = 1

    def fit(self, clean: CleanData) -> "Self":
        """Fit on clean data; many methods have nothing to fit."""
        return self

    @abstractmethod
    def score(self, batch: Batch) -> Tensor:  # (n,)
        """Uncertainty of each prediction; higher is less trustworthy."""

    def facts(self, batch: Batch, labels: Tensor) -> dict[str, float]:
        """Further results for a batch, such as an estimated accuracy."""
        return {}

    def chosen(self) -> dict[str, Any]:
        """Parameters that `fit` chose on clean data, for the record of a result."""
        return {}

    def _learned(self, value: T | None) -> T:
        """`value`, which `fit` must have set."""
        if value is None:
            raise QIPFNotFittedError(f"{self.name} is not fitted yet. Call fit(clean) first.")
        return value


def check_positive(method: str, **counts: float) -> None:
    """Raise an error for options that are not positive."""
    for option, value in counts.items():
        if not value > 0:
            raise QIPFInputError(f"{method}: {option} must be positive; got {value}.")


def to_double(tensor: Tensor) -> Tensor:
    """Float64: saturated probabilities would tie in float32."""
    return tensor.to(torch.float64)
