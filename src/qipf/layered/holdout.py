"""Samples of a loader: rows for the fields, and held-out inputs, clean and perturbed."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from qipf.errors import QIPFInputError, warn
from qipf.field.reservoir import Reservoir
from qipf.layered.perturbations import families, perturbed, strengths
from qipf.network.batches import Batch, batches
from qipf.network.features import LayerSite, Rows, run_in_batches
from qipf.progress import progress
from qipf.validation.labels import checked_labels

#: At most one example in this many is kept for tuning; it is never a centre.
ONE_IN = 5

#: Names of what is kept of an example, beside its rows: which of the loader's it is, and the rest.
PLACES, INPUTS, LABELS = "places", "inputs", "labels"

#: Tensors of equal length, by these names or by layer site.
Examples = dict[Any, Tensor]


def sample_examples(
    loader: Iterable[Any],
    read: Callable[[Tensor], tuple[Tensor, Rows]],  # inputs -> logits, rows
    centers: int,
    tuning: int,
    random: np.random.RandomState,
) -> tuple[Examples, Examples, int]:
    """Rows of at most `centers` examples, inputs of at most `tuning` others, number of classes.

    Both are uniform samples in random order; examples of the second are removed from the first.
    Only examples that may stay are run through the network. The samples do not depend on how the
    stream is cut into batches.
    """
    fields, tuned = Reservoir(centers + tuning), Reservoir(tuning)
    classes = start = 0
    seen: list[int] = []  # the lowest and the highest label of each batch
    for batch in batches(loader, "fit", "reading layers"):
        inputs, labels = _checked(batch)
        n = len(inputs)
        numbers = random.random_sample((n, 2))
        places = torch.arange(start, start + n)
        start += n
        seen += [int(labels.min()), int(labels.max())] if n else []
        for reservoir, drawn in ((tuned, numbers[:, 1]), (fields, numbers[:, 0])):
            index = reservoir.candidates(drawn)
            if not len(index):
                continue
            chosen = torch.from_numpy(index)
            values: Examples = {PLACES: places[chosen], LABELS: labels[chosen]}
            shown = inputs[chosen.to(inputs.device)]
            if reservoir is tuned:
                values[INPUTS] = shown
            else:
                logits, rows = read(shown)
                require_numbers(logits, rows, values[PLACES])
                classes = logits.shape[1]
                values |= rows
            reservoir.add(drawn[index], values)
    if start < 2:
        raise QIPFInputError(
            f"The loader holds {start} examples; LayeredQIPF needs at least a few dozen."
        )
    if classes < 2:
        raise QIPFInputError(
            f"The network gives {classes} number per input; logits of at least two classes are "
            "needed."
        )
    checked_labels(seen, len(seen), classes, "labels")
    held = {name: value[: start // ONE_IN] for name, value in tuned.values.items()}
    sample = fields.values
    others = (~torch.isin(sample[PLACES], held[PLACES])).nonzero()[:, 0]
    others = others[:centers]
    return {name: value[others] for name, value in sample.items()}, held, classes


def require_numbers(logits: Tensor, rows: Rows, places: Tensor) -> None:
    """Raise if the network or a layer gives NaN or infinity for one of these examples."""
    for found in (logits, *rows.values()):
        good = torch.isfinite(found).all(1)
        if not bool(good.all()):
            first = int(places[int((~good).nonzero()[0])])
            raise QIPFInputError(
                f"Example {first} of the loader makes the network, or one of its layers, give NaN "
                "or infinity. Drop or repair it first."
            )


def _checked(batch: Batch) -> tuple[Tensor, Tensor]:
    inputs = batch.inputs
    if batch.options or len(inputs) != 1 or not isinstance(inputs[0], Tensor) or inputs[0].ndim < 2:
        raise QIPFInputError(
            f"Batch {batch.number} is not (inputs, labels) with one tensor of inputs, (n, ...). "
            "Networks with several inputs can be scored by one layer: qipf.wrap(net, layer=...)."
        )
    if batch.labels is None:
        raise QIPFInputError(
            f"Batch {batch.number} has no labels. The layers' fields are made by class: yield "
            "(inputs, labels), or use qipf.wrap(net), which needs none."
        )
    name = f"labels of batch {batch.number}"
    return inputs[0], checked_labels(batch.labels, len(inputs[0]), None, name).cpu()


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
            "floating point inputs if you can."
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
