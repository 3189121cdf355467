"""Logits and features that are given as arrays: checked, and perturbed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qipf.errors import QIPFInputError
from qipf.layered.perturbations import perturbed, strengths
from qipf.layered.tuning import FEWEST
from qipf.network.features import LayerSite, Rows
from qipf.network.pooling import pooled_features
from qipf.validation.arrays import number_tensor, require_finite, usable_rows
from qipf.validation.labels import are_probabilities, class_logits

#: Side of a layer site whose rows are given.
GIVEN = "features"

#: Least class probability where probabilities are given instead of logits; a forest gives zeros.
LEAST_PROBABILITY = 1e-3

#: Largest logit: sums and differences stay within float32.
LARGEST = 1e30

#: Names of other arrays of a file, and of an exported graph.
RESERVED = frozenset({"logits", "labels", "uncertainty", "probabilities", "accepted"})

#: Features by layer: arrays or tensors (n, d), or maps (n, channels, ...), of any framework.
Features = Mapping[str, Any]


@dataclass(frozen=True)
class Predictions:
    """Logits, and the features of every layer as they are given and as one row each."""

    logits: Tensor  # (n, classes)
    given: dict[LayerSite, Tensor]  # (n, ...)
    rows: Rows  # (n, d)
    one_logit: bool = False  # the logits were given as z, of class 1 against class 0
    missing: Tensor | None = None  # (n,) predictions with NaN or inf, if these are let through

    def __len__(self) -> int:
        return len(self.logits)

    def __getitem__(self, index: Any) -> "Predictions":
        return self.mapped(lambda values: values[index])

    def mapped(self, change: Callable[[Tensor], Tensor]) -> "Predictions":
        """The predictions with every tensor changed."""
        given, rows = (
            {site: change(value) for site, value in part.items()}
            for part in (self.given, self.rows)
        )
        logits = change(self.logits)
        return Predictions(logits, given, rows, self.one_logit)

    @property
    def widths(self) -> list[int]:
        """Numbers of logits, and of a row of each layer."""
        return [part.shape[1] for part in (self.logits, *self.rows.values())]


def checked_predictions(
    features: Features,
    logits: Any,
    *,
    like: Predictions | None = None,
    wanted: tuple[LayerSite, ...] | None = None,
    name: str = "",
    propagate: bool = False,
) -> Predictions:
    """Logits and features as tensors on one device, after checks.

    `like` are predictions with the same layers, of the same widths, whose device is used; `wanted`
    are the layers that are needed, others are left out. `name` is what errors call the arrays.
    NaN and infinity raise, unless `propagate` is set; see `qipf.validation.arrays.usable_rows`.
    """
    if not isinstance(features, Mapping) or not all(isinstance(key, str) for key in features):
        raise QIPFInputError(
            f"{name}features must be a dict of arrays by layer, with strings as names, got "
            f"{type(features).__name__}."
        )
    reserved = RESERVED & set(features)
    if reserved:
        raise QIPFInputError(
            f"{name}features has a layer named {min(reserved)!r}, which is the name of something "
            "else. Rename it."
        )
    values = _tensor(logits, f"{name}logits")
    if values.ndim != 2 or values.shape[1] < 1:
        raise QIPFInputError(
            f"{name}logits must have shape (n, classes), got {tuple(values.shape)}."
        )
    one_logit = values.shape[1] == 1
    values = class_logits(values)
    if not propagate:
        require_finite(values, f"{name}logits")
        if bool((values.abs() > LARGEST).any()):
            raise QIPFInputError(f"{name}logits has numbers beyond ±{LARGEST:g}. Scale them down.")
    sites = wanted if like is None else tuple(like.given)
    names = list(features) if sites is None else [site.layer for site in sites]
    absent = [layer for layer in names if layer not in features]
    if absent or (not names and wanted is None):
        raise QIPFInputError(
            f"{name}features lacks {', '.join(map(repr, absent)) or 'layers'}; it has "
            f"{', '.join(map(repr, features)) or 'none'}. Pass the features of every layer."
        )
    given, rows = {}, {}
    for layer in names:
        found = _tensor(features[layer], f"{name}features[{layer!r}]").to(values.device)
        if found.ndim < 2 or found.shape[0] != values.shape[0] or 0 in found.shape[1:]:
            raise QIPFInputError(
                f"{name}features[{layer!r}] must have one row per prediction, "
                f"({values.shape[0]}, ...), got {tuple(found.shape)}."
            )
        site = LayerSite(layer, GIVEN)
        given[site], rows[site] = found, pooled_features(found)
        if not propagate:
            require_finite(rows[site], f"{name}features[{layer!r}]")
    (values, *filled), missing = usable_rows([values, *rows.values()])
    rows = dict(zip(rows, filled, strict=True))
    if are_probabilities(values):
        values = values.clamp(min=LEAST_PROBABILITY).log()  # the softmax of these is the values
    found_here = Predictions(values, given, rows, one_logit, missing)
    if like is None:
        return found_here
    if found_here.widths != like.widths:
        raise QIPFInputError(
            f"{name}logits and features have {found_here.widths} numbers per prediction; the "
            f"training examples have {like.widths}."
        )
    return found_here.mapped(lambda part: part.to(like.logits.device))


def checked_copies(
    copies: Mapping[str, tuple[Features, Any]], like: Predictions, count: int, held_out: bool
) -> dict[str, Predictions]:
    """Perturbed copies of `count` examples each, which have the layers of `like`."""
    if not isinstance(copies, Mapping):
        raise QIPFInputError(
            "perturbed must be a dict of (features, logits) by the name of the perturbation, got "
            f"{type(copies).__name__}."
        )
    if "clean" in copies:
        raise QIPFInputError(
            "A perturbed copy is named 'clean', which is the name of the examples themselves. "
            "Rename it."
        )
    found = {}
    for name, copy in copies.items():
        found[name] = checked_predictions(*copy, like=like, name=f"perturbed[{name!r}] ")
        if len(found[name]) != count:
            raise QIPFInputError(
                f"perturbed[{name!r}] has {len(found[name])} examples; a copy of each of the "
                f"{count} {'held-out' if held_out else 'training'} examples is needed, in their "
                "order."
            )
    return found


def _tensor(value: Any, name: str) -> Tensor:
    """Real numbers as a tensor in float32 or float64."""
    found = number_tensor(value, name).detach()
    if found.is_complex() or found.dtype == torch.bool or found.layout is not torch.strided:
        raise QIPFInputError(f"{name} must be a dense array of real numbers, got {found.dtype}.")
    if found.dtype in (torch.float32, torch.float64):
        return found
    return found.float() if found.is_floating_point() else found.double()


def noisy_copies(
    clean: Predictions, labels: Tensor, others: Predictions, other_labels: Tensor, seed: int
) -> dict[str, Predictions]:
    r"""Copies whose features and logits are perturbed together.

    .. math:: x' = x + 4t\,(x_a - x_b)

    with x all features and logits of an example, and a, b two random `others` of one class: the
    differences are correlated as those between real inputs are. The strengths t are those at which
    the predictions keep given shares of their accuracy (`qipf.layered.perturbations.strengths`).
    Empty if no class has two of the others.
    """
    classes = clean.logits.shape[1]
    joint, pool = (_joined(part) for part in (clean, others))
    order = other_labels.argsort(stable=True)
    same = other_labels[order[1:]] == other_labels[order[:-1]]
    differences = pool[order[1:][same]] - pool[order[:-1][same]]
    if not len(differences):
        return {}

    def perturb(rows: Tensor, t: float, random: torch.Generator) -> Tensor:
        drawn = torch.randint(len(differences), (len(rows),), generator=random)
        return rows + 4 * t * differences[drawn.to(rows.device)]

    few = joint[: max(FEWEST, len(joint) // 2)]

    def accuracy(t: float) -> float:
        predicted = perturbed(few, perturb, t, seed)[:, :classes].argmax(1)
        return float((predicted == labels[: len(few)]).double().mean())

    found = {}
    for t in strengths(accuracy, 1 / classes):
        moved = perturbed(joint, perturb, t, seed + 1)
        logits, *rows = moved.split(clean.widths, 1)
        named = dict(zip(clean.rows, rows, strict=True))
        found[f"differences {t:.3f}"] = Predictions(logits, named, named)
    return found


def _joined(part: Predictions) -> Tensor:  # (n, classes + all widths)
    return torch.cat([part.logits.float(), *part.rows.values()], 1)
