"""LayeredQIPF: fields of the classes over a network's layers, and the doubt they cast."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from qipf.errors import QIPFInputError, unknown_name
from qipf.field.engines.base import full_precision
from qipf.layered.class_field import ClassField
from qipf.layered.explanation import Explanation, explained
from qipf.layered.holdout import sample_examples
from qipf.layered.mixture import log_odds_of_error, mixed
from qipf.layered.mixture_weights import LEAST, weighed
from qipf.layered.posteriors import posteriors_of
from qipf.layered.selection import chosen_fields
from qipf.layered.tuning import tuning_sets
from qipf.network.batches import few_rows, mapped
from qipf.network.features import LayerSite, Rows, chosen_sites, named_sites
from qipf.network.forward import NoProbabilities, device_of, evaluating, fingerprint
from qipf.network.reading import in_parts, passed
from qipf.validation.arrays import require_finite
from qipf.validation.not_fitted import QIPFNotFittedError

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from qipf.export import OnnxFile


#: Examples whose rows are kept, at most, when no other number is given.
MOST_EXAMPLES = 60_000

#: How centres come from examples.
REDUCTIONS = ("random", "coreset")

#: Seeds are below this: the next one seeds the perturbations.
LARGEST_SEED = 2**32 - 1


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
    their shares of the whole field are the layer's posterior on the class. The posteriors of all
    layers and the network's softmax are mixed with weights that make the truth likeliest on
    training inputs kept apart and on their perturbed copies, which the network has not seen. The
    uncertainty of a prediction is the log-odds of that mixture against the predicted class:

    .. math:: \bar p = \alpha_0\,\mathrm{softmax} + \sum_l \alpha_l\, q_l, \qquad
              \text{uncertainty} = \log(1 - \bar p_k) - \log \bar p_k

    Parameters
    ----------
    net : a trained network that returns logits (n, classes) for one tensor of inputs.
    layers : ``"auto"`` tries what at most eight dense or convolutional layers read, evenly over
        the network's depth, and keeps those that count; or the names of layers whose outputs to
        use.
    max_centers : centres of a layer's field, at most; fewer where centres times classes would
        exceed 16 million. Time, memory and files grow with them.
    reduction : ``"random"`` makes so many training examples the centres, ``"coreset"`` weighted
        centres that stand for up to 60,000 examples, at least one for each class.
    max_dimension : a layer's rows are narrowed to so many numbers.
    max_tuning : training examples kept apart, at most, to choose widths and weights by.
    random_state : seed of the samples and the perturbations.

    Attributes
    ----------
    layers_ : the places in the network that are read.
    fields_ : the layers' fields; ``fields_[0].examples`` tells which examples of the loader,
        counted from 0, the first field's centres are, or, in a coreset, are nearest to.
    weights_ : weights of the softmax, first, and the layers in the mixture; they sum to one.

    Examples
    --------
    >>> _ = torch.manual_seed(0)
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> inputs = torch.randn(400, 4)
    >>> model = LayeredQIPF(net).fit([(inputs, inputs[:, :3].argmax(1))])
    >>> model(inputs[:5]).uncertainty.shape
    torch.Size([5])
    """

    def __init__(
        self,
        net: nn.Module,
        layers: str | Sequence[str] = "auto",
        *,
        max_centers: int = MOST_EXAMPLES,
        reduction: str = "random",
        max_dimension: int = 128,
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
            if not _whole(value) or value < 1:
                raise QIPFInputError(f"{name} must be an integer of at least 1, got {value!r}.")
        if not _whole(random_state) or not 0 <= random_state < LARGEST_SEED:
            raise QIPFInputError(
                f"random_state must be an integer from 0 to {LARGEST_SEED - 1}, got "
                f"{random_state!r}."
            )
        if not isinstance(reduction, str) or reduction not in REDUCTIONS:
            raise unknown_name("reduction", reduction, REDUCTIONS)
        if not isinstance(layers, str) or layers != "auto":
            named_sites(net, layers)
        self.net, self.layers = net, layers
        self.max_centers, self.reduction = int(max_centers), reduction
        self.max_dimension = int(max_dimension)
        self.max_tuning, self.random_state = int(max_tuning), int(random_state)
        self.layers_: tuple[LayerSite, ...] = ()
        self.fields_: tuple[ClassField, ...] = ()
        self.weights_: Tensor | None = None  # (1 + layers,)
        self._fitted_with: str | None = None  # fingerprint of the network
        #: a few inputs, for what traces the network
        self._example: tuple[tuple[Any, ...], dict[str, Any]] | None = None

    def fit(self, loader: Iterable[Any]) -> LayeredQIPF:
        """Stream labelled training data, ``(inputs, labels)`` a batch, and build the fields.

        Memory is bounded by the samples that are kept, whatever the loader's length.
        """
        random = np.random.RandomState(self.random_state)
        sites: tuple[LayerSite, ...] = ()
        example: Tensor | None = None

        def read(inputs: Tensor) -> tuple[Tensor, Rows]:
            nonlocal sites, example
            if example is None:
                example = few_rows(inputs)
                self._watch(example)
                sites = self._sites(example)
            return in_parts(self.net, inputs, sites)

        condensed = self.max_centers if self.reduction == "coreset" else None
        examples = self.max_centers if condensed is None else max(condensed, MOST_EXAMPLES)
        named = not isinstance(self.layers, str)
        with evaluating(self.net), torch.no_grad():
            centers, held, classes = sample_examples(
                loader, read, examples, self.max_tuning, random
            )
            tuning = tuning_sets(self.net, held, sites, classes, self.random_state)
            with full_precision(device_of(self.net)):
                fields = chosen_fields(
                    centers, tuning, sites, classes, self.max_dimension, condensed
                )
                fields, weights = weighed(fields, tuning, 0.0 if named else LEAST)
        self.layers_, self.fields_ = tuple(fields), tuple(fields.values())
        self.weights_ = weights
        self._fitted_with = fingerprint(self.net)
        self._example = ((example,), {})
        return self

    def _watch(self, inputs: Tensor) -> None:
        """Refuse a network that ends in a softmax: its posterior would be flattened by another."""
        with NoProbabilities(True) as watch:
            watch.refuse(passed(self.net, inputs.to(device_of(self.net)), ())[0])

    def _sites(self, inputs: Tensor) -> tuple[LayerSite, ...]:
        if isinstance(self.layers, str):
            return chosen_sites(self.net, lambda: in_parts(self.net, inputs, ()))
        return named_sites(self.net, self.layers)

    # ------------------------------------------------------------------ scoring

    def __call__(self, inputs: Tensor) -> LayeredPrediction:
        """Run the network and judge each prediction."""
        logits, _, posteriors, _ = self._judged(inputs)
        probabilities = mixed(posteriors, self._weights(logits.device))
        labels = logits.argmax(1)
        return LayeredPrediction(
            logits, labels, log_odds_of_error(probabilities, labels), probabilities
        )

    def uncertainty(self, inputs: Tensor) -> Tensor:  # (n,)
        """How little each prediction is to be trusted. Higher = less."""
        return self(inputs).uncertainty

    def log_density(self, inputs: Tensor) -> Tensor:  # (n, layers)
        """The height of each layer's whole field, log ρ ≤ 0: how familiar the input is there."""
        return self._judged(inputs)[3]

    def posteriors(self, inputs: Tensor) -> Tensor:  # (n, 1 + layers, classes)
        """What the softmax, first, and every layer think of the class."""
        return self._judged(inputs)[2]

    def explain(self, inputs: Tensor, nearest: int = 3) -> list[Explanation]:
        """Why each prediction is doubted or trusted; ``print(model.explain(inputs)[0])``.

        Every `Explanation` has the posteriors of the softmax and the layers, their shares of the
        doubt, and the `nearest` training examples of the predicted class and of its rival in the
        layer that doubts most, by their places in the loader's order.
        """
        if not _whole(nearest) or nearest < 1:
            raise QIPFInputError(f"nearest must be an integer of at least 1, got {nearest!r}.")
        logits, rows, posteriors, _ = self._judged(inputs)
        weights = self._weights(logits.device)
        return explained(logits, rows, posteriors, weights, self._fields(), int(nearest))

    def _judged(self, inputs: Tensor) -> tuple[Tensor, Rows, Tensor, Tensor]:
        """Logits, rows, posteriors and the fields' heights."""
        self._require_fitted()
        if not isinstance(inputs, Tensor) or inputs.ndim < 2:
            came = type(inputs).__name__
            came = f"shape {tuple(inputs.shape)}" if isinstance(inputs, Tensor) else came
            raise QIPFInputError(
                f"inputs must be a tensor with one row an example, (n, ...), got {came}."
            )
        with evaluating(self.net), torch.no_grad():
            logits, rows = in_parts(self.net, inputs, self.layers_)
            self._check(logits, rows)
            self._place(logits.device)
            with full_precision(logits.device):
                return (logits, rows, *posteriors_of(logits, rows, self._fields()))

    def _check(self, logits: Tensor, rows: Rows) -> None:
        """Refuse what is no number, and what another network gave."""
        require_finite(logits, "The network's output for these inputs")
        for site, field in self._fields().items():
            require_finite(rows[site], f"{site} for these inputs")
            wide, classes = rows[site].shape[1], logits.shape[1]
            if (wide, classes) != (len(field.metric.mean), field.classes):
                raise QIPFInputError(
                    f"{site} gives {wide} numbers and the network {classes} logits; its field was "
                    f"fitted with {len(field.metric.mean)} and {field.classes}. Fit it again."
                )

    def _fields(self) -> dict[LayerSite, ClassField]:
        return dict(zip(self.layers_, self.fields_, strict=True))

    def _weights(self, device: torch.device) -> Tensor:
        assert self.weights_ is not None  # it is fitted
        return self.weights_.to(device)

    def _place(self, device: torch.device) -> None:
        """Move the fields to where the network is now."""
        if any(field.embeddings.device != device for field in self.fields_):
            self.fields_ = tuple(field.to(device) for field in self.fields_)

    def _placed(
        self, inputs: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Inputs and keyword inputs where the network is."""
        device = device_of(self.net)
        return mapped((inputs, options), lambda tensor: tensor.to(device))

    def _require_fitted(self) -> None:
        if self.weights_ is None:
            raise QIPFNotFittedError(
                "This LayeredQIPF is not fitted yet. Call fit(train_loader) first."
            )

    # ------------------------------------------------------------------ export

    def export_onnx(
        self, path: Path | str, example: Tensor | None = None, *, check: bool = True
    ) -> OnnxFile:
        """Write the network, its layers' fields and the uncertainty as one ONNX file.

        Parameters
        ----------
        path : the file, ``.onnx``. It appears whole and checked, or not at all.
        example : a batch of the network's inputs; by default, a few that `fit` has seen.
        check : run the file in ONNX Runtime, if that is installed, and compare with PyTorch.

        The outputs are ``logits``, ``uncertainty`` and ``probabilities``, for a batch of any
        length; see docs/layers.md.
        """
        from qipf.export import export_layers_onnx

        return export_layers_onnx(self, path, example, check=check)

    def export(self, example: Tensor | None = None) -> ExportedProgram:
        """The same graph as a `torch.export` program; ``program.module()(inputs)`` gives a dict."""
        from qipf.export import export_layers

        return export_layers(self, example)


def _whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


__all__ = ["LayeredPrediction", "LayeredQIPF"]
