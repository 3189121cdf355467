"""LayeredQIPF: fields of the classes over a network's layers, and the doubt they cast."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from qipf.errors import QIPFInputError, QIPFNotFittedError, QIPFWarning
from qipf.forward import device_of, evaluating, logits_of
from qipf.layered.choosing import chosen_field
from qipf.layered.class_field import ClassField
from qipf.layered.disturbing import disturbed, families, strengths
from qipf.layered.gathering import LABELS, Kept, Rows, gathered
from qipf.layered.mixture import gap, likeliest_weights, mixed
from qipf.layered.taps import Tap, checked_taps, chosen_taps, joined, tapped
from qipf.progress import progress

#: Inputs that pass through the network at once when it is fitted.
ROWS = 1000

#: With fewer tuning examples than this nothing is weighed: the softmax speaks alone.
FEWEST = 20

#: The network's own opinion, by name among the layers'.
SOFTMAX = "softmax"


@dataclass(frozen=True)
class LayeredPrediction:
    """What the network says of a batch, and how far to trust it."""

    logits: Tensor  # (n, classes)
    labels: Tensor  # (n,) the class of the largest logit
    uncertainty: Tensor  # (n,) log-odds against that class; higher = less to be trusted
    probabilities: Tensor  # (n, classes) of the network and its layers together


class LayeredQIPF:
    r"""How far a network's layers agree with its prediction, in one forward pass.

    Every layer has a field for each class, over the training data's own outputs of that layer;
    their shares of the whole field are the layer's opinion on the class. The opinions of all
    layers and the network's softmax are mixed with weights that make the truth likeliest on
    training inputs kept apart and on their disturbed copies, which the network has not seen. The
    uncertainty of a prediction is the log-odds of that mixture against the predicted class:

    .. math:: \bar p = \alpha_0\,\mathrm{softmax} + \sum_l \alpha_l\, q_l, \qquad
              \text{uncertainty} = \log(1 - \bar p_k) - \log \bar p_k

    Parameters
    ----------
    net : a trained network that returns logits (n, classes) for one tensor of inputs.
    layers : ``"auto"`` takes what at most eight dense or convolutional layers read, evenly over
        the network's depth; or the names of layers whose outputs to use.
    max_centers : training examples in the fields, at most.
    max_dimension : a layer's rows are narrowed to so many numbers.
    max_tuning : training examples kept apart, at most, to choose widths and weights by.
    random_state : seed of the samples and the disturbances.

    Attributes
    ----------
    layers_ : the places in the network that are read.
    fields_ : the layers' fields.
    weights_ : weights of the softmax, first, and the layers in the mixture; they sum to one.
    center_indices_ : which examples of the loader, counted from 0, the centres are.

    Examples
    --------
    >>> random = torch.Generator().manual_seed(0)
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> inputs = torch.randn(400, 4, generator=random)
    >>> model = LayeredQIPF(net).fit([(inputs, net(inputs).argmax(1))])
    >>> model(inputs[:5]).uncertainty.shape
    torch.Size([5])
    """

    def __init__(
        self,
        net: nn.Module,
        layers: str | Sequence[str] = "auto",
        *,
        max_centers: int = 6000,
        max_dimension: int = 64,
        max_tuning: int = 1000,
        random_state: int = 0,
    ) -> None:
        if not isinstance(net, nn.Module):
            raise QIPFInputError(f"net must be a torch.nn.Module, got {type(net).__name__}.")
        for name, value in (
            ("max_centers", max_centers),
            ("max_dimension", max_dimension),
            ("max_tuning", max_tuning),
        ):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise QIPFInputError(f"{name} must be an integer of at least 1, got {value!r}.")
        if layers != "auto":
            checked_taps(net, layers)
        self.net, self.layers = net, layers
        self.max_centers, self.max_dimension, self.max_tuning = (
            max_centers,
            max_dimension,
            max_tuning,
        )
        self.random_state = random_state
        self.layers_: tuple[Tap, ...] = ()
        self.fields_: tuple[ClassField, ...] = ()
        self.weights_: Tensor | None = None  # (1 + layers,)
        self.center_indices_: np.ndarray | None = None

    # ------------------------------------------------------------------ fitting

    def fit(self, loader: Iterable[Any]) -> LayeredQIPF:
        """Stream labelled training data, ``(inputs, labels)`` a batch, and build the fields.

        Memory is bounded by the samples that are kept, whatever the loader's length.
        """
        random = np.random.RandomState(self.random_state)
        taps: tuple[Tap, ...] = () if self.layers == "auto" else checked_taps(self.net, self.layers)

        def read(inputs: Tensor) -> tuple[Tensor, Rows]:
            nonlocal taps
            if not taps:
                taps = chosen_taps(self.net, lambda: self._logits(inputs[:2]))
            return self._read(inputs, taps)

        with evaluating(self.net), torch.no_grad():
            centers, held, classes = gathered(
                loader, read, self.max_centers, self.max_tuning, random
            )
            tuning = self._tuning(held, taps, classes)
            fields = self._chosen(centers, tuning, taps, classes)
            self.layers_, self.fields_ = tuple(fields), tuple(fields.values())
            self.weights_ = self._weighed(tuning)
        self.center_indices_ = centers.places
        return self

    def _tuning(self, held: Kept, taps: tuple[Tap, ...], classes: int) -> _Tuning:
        """The examples kept apart, clean and disturbed, as the network's layers see them."""
        if len(held.numbers) < FEWEST:
            return _Tuning({}, torch.empty(0, dtype=torch.long))
        device = device_of(self.net)
        inputs, labels = held.values["inputs"], held.values[LABELS].to(device)
        found = _Tuning({"clean": self._read(inputs, taps)}, labels)
        if not inputs.is_floating_point():
            warnings.warn(
                f"The inputs are {inputs.dtype}, which cannot be disturbed, so the weights rest on "
                "clean training data alone, on which a network flatters itself. Pass floating "
                "point inputs if you can.",
                QIPFWarning,
                stacklevel=4,
            )
            return found
        seed = self.random_state
        few = inputs[: max(FEWEST, len(inputs) // 2)]

        def accuracy(shown: Tensor) -> float:
            return float((self._logits(shown).argmax(1) == labels[: len(shown)]).double().mean())

        for name, disturb in progress(families(inputs).items(), "disturbing"):
            for t in strengths(accuracy, few, disturb, 1 / classes, seed):
                shown = disturbed(inputs, disturb, t, seed + 1)
                found.sets[f"{name} {t:.3f}"] = self._read(shown, taps)
        return found

    def _chosen(
        self, centers: Kept, tuning: _Tuning, taps: tuple[Tap, ...], classes: int
    ) -> dict[Tap, ClassField]:
        device = device_of(self.net)
        labels = centers.values[LABELS].to(device)
        fields: dict[Tap, ClassField] = {}
        for tap in progress(taps, "choosing fields"):
            rows = centers.values[tap].to(device)
            if bool((rows == rows[0]).all()):
                warnings.warn(
                    f"{tap} gives every training input the same numbers and is left out.",
                    QIPFWarning,
                    stacklevel=4,
                )
                continue
            others = {name: found[1][tap] for name, found in tuning.sets.items()}
            fields[tap] = chosen_field(
                rows, labels, others, tuning.labels, classes, self.max_dimension
            )
        return fields

    def _weighed(self, tuning: _Tuning) -> Tensor:  # (1 + layers,)
        alone = torch.zeros(1 + len(self.fields_), dtype=torch.float64)
        alone[0] = 1.0
        if not tuning.sets:
            self._fall_back(f"fewer than {FEWEST} examples were left to weigh the layers by")
            return alone
        opinions = {name: self._opinions(*found)[0] for name, found in tuning.sets.items()}
        truth = tuning.labels[:, None, None]
        told = [o.gather(2, truth.expand(-1, o.shape[1], 1))[..., 0] for o in opinions.values()]
        weights = likeliest_weights(torch.cat(told)).cpu()
        gains = [
            _gain(opinion, weights, found[0].argmax(1), tuning.labels)
            for opinion, found in zip(opinions.values(), tuning.sets.values(), strict=True)
        ]
        told_apart = [gain for gain in gains if gain is not None]
        if not told_apart:
            self._fall_back("the network makes no errors to learn from, even on disturbed inputs")
            return alone
        if sum(told_apart) < 0:
            self._fall_back("its layers tell the network's errors no better than its softmax does")
            return alone
        return weights

    @staticmethod
    def _fall_back(reason: str) -> None:
        warnings.warn(
            f"The layers are not used: {reason}. The uncertainty is that of the softmax alone.",
            QIPFWarning,
            stacklevel=5,
        )

    # ------------------------------------------------------------------ scoring

    def __call__(self, inputs: Tensor) -> LayeredPrediction:
        """Run the network and judge each prediction."""
        logits, opinions, _ = self._judged(inputs)
        probabilities = mixed(opinions, self._weights(logits.device))
        labels = logits.argmax(1)
        return LayeredPrediction(logits, labels, gap(probabilities, labels), probabilities)

    def uncertainty(self, inputs: Tensor) -> Tensor:  # (n,)
        """How little each prediction is to be trusted. Higher = less."""
        return self(inputs).uncertainty

    def log_density(self, inputs: Tensor) -> Tensor:  # (n, layers)
        """The height of each layer's whole field, log ρ ≤ 0: how familiar the input is there."""
        return self._judged(inputs)[2]

    def opinions(self, inputs: Tensor) -> Tensor:  # (n, 1 + layers, classes)
        """What the softmax, first, and every layer think of the class."""
        return self._judged(inputs)[1]

    def _judged(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self._require_fitted()
        with evaluating(self.net), torch.no_grad():
            logits, rows = self._read(inputs, self.layers_)
            self._place(logits.device)
            return (logits, *self._opinions(logits, rows))

    def _opinions(self, logits: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """What the softmax and the layers think, and how high the layers' fields are."""
        judged = [field(rows[tap]) for tap, field in self._layers()]
        parts = [torch.softmax(logits.double(), 1), *(found.posterior for found in judged)]
        heights = [found.log_density[:, None] for found in judged]
        none = logits.new_zeros(len(logits), 0)
        return torch.stack([p.double() for p in parts], 1), torch.cat([none, *heights], 1).double()

    def _layers(self) -> Iterator[tuple[Tap, ClassField]]:
        return zip(self.layers_, self.fields_, strict=True)

    def _weights(self, device: torch.device) -> Tensor:
        assert self.weights_ is not None
        return self.weights_.to(device)

    def _place(self, device: torch.device) -> None:
        """Move the fields to where the network is now."""
        if any(field.units.device != device for field in self.fields_):
            self.fields_ = tuple(field.to(device) for field in self.fields_)

    def _require_fitted(self) -> None:
        if self.weights_ is None:
            raise QIPFNotFittedError(
                "This LayeredQIPF is not fitted yet. Call fit(train_loader) first."
            )

    # ------------------------------------------------------------------ the network

    def _logits(self, inputs: Tensor) -> Tensor:
        device = device_of(self.net)
        parts = [logits_of(self.net(part.to(device))) for part in inputs.split(ROWS)]
        return torch.cat(parts)

    def _read(self, inputs: Tensor, taps: tuple[Tap, ...]) -> tuple[Tensor, Rows]:
        """Logits and the rows at the taps."""
        if not isinstance(inputs, Tensor) or inputs.ndim < 2:
            raise QIPFInputError("inputs must be a tensor with one row an example.")
        if len(inputs) == 0:
            logits = self._logits(inputs)
            return logits, {t: logits.new_zeros(0, self._width(t)) for t in taps}
        device = device_of(self.net)
        parts = []
        for part in inputs.split(ROWS):
            with tapped(self.net, taps) as read:
                logits = logits_of(self.net(part.to(device)))
            parts.append((logits, dict(read)))
        return torch.cat([logits for logits, _ in parts]), joined([rows for _, rows in parts])

    def _width(self, tap: Tap) -> int:
        return len(self.fields_[self.layers_.index(tap)].metric.mean)


@dataclass
class _Tuning:
    """Logits and rows of the examples kept apart, by set, and their classes."""

    sets: dict[str, tuple[Tensor, Rows]]
    labels: Tensor


def _gain(opinions: Tensor, weights: Tensor, predicted: Tensor, labels: Tensor) -> float | None:
    """By how much the mixture detects errors better than the softmax; None if there are none."""
    wrong = (predicted != labels).cpu().numpy()
    if wrong.all() or not wrong.any():
        return None
    whole = gap(mixed(opinions, weights.to(opinions.device)), predicted).cpu().numpy()
    alone = gap(opinions[:, 0], predicted).cpu().numpy()
    return float(roc_auc_score(wrong, whole) - roc_auc_score(wrong, alone))


__all__ = ["LayeredPrediction", "LayeredQIPF"]
