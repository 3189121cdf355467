"""Held-out training inputs, clean and perturbed: logits and rows of the layers."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from qipf.errors import warn
from qipf.layered.holdout import INPUTS, LABELS, PLACES, Examples, require_numbers
from qipf.layered.perturbations import families, perturbed, strengths
from qipf.network.features import LayerSite, Rows, run_in_batches
from qipf.progress import progress

#: Fewest held-out examples from which weights are learned.
FEWEST = 20


@dataclass
class Tuning:
    """Logits and rows of the held-out examples, by set, and their classes."""

    sets: dict[str, tuple[Tensor, Rows]]
    labels: Tensor  # (n,) the same for every set


def tuning_sets(
    net: nn.Module, held: Examples, sites: Sequence[LayerSite], classes: int, seed: int
) -> Tuning:
    """The examples as they are, and perturbed by every family for inputs of their shape."""
    if len(held[LABELS]) < FEWEST:
        return Tuning({}, torch.empty(0, dtype=torch.long))
    inputs = held[INPUTS]
    logits, rows = run_in_batches(net, inputs, sites)
    require_numbers(logits, rows, held[PLACES])
    labels = held[LABELS].to(logits.device)
    found = Tuning({"clean": (logits, rows)}, labels)
    if not inputs.is_floating_point():
        warn(
            f"The inputs are {inputs.dtype}, which cannot be perturbed, so the weights are "
            "learned from clean training data alone, on which networks are overconfident. Pass "
            "floating point inputs if you can.",
        )
        return found
    few = inputs[: max(FEWEST, len(inputs) // 2)]

    def accuracy(shown: Tensor) -> float:
        predicted = run_in_batches(net, shown, ())[0].argmax(1)
        return float((predicted == labels[: len(shown)]).double().mean())

    for name, perturb in progress(families(inputs).items(), "perturbing"):
        for t in strengths(accuracy, few, perturb, 1 / classes, seed):
            logits, rows = run_in_batches(net, perturbed(inputs, perturb, t, seed + 1), sites)
            require_numbers(logits, rows, held[PLACES])
            found.sets[f"{name} {t:.3f}"] = (logits, rows)
    return found
