"""Samples of a loader: rows for the fields, and the inputs of held-out and of copied examples."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from qipf.display import counted
from qipf.errors import QIPFInputError
from qipf.export.program import Example
from qipf.field.reservoir import Reservoir
from qipf.layered.kept_inputs import KeptInputs
from qipf.network.batches import READ_ONCE, Batch
from qipf.network.features import Rows
from qipf.validation.labels import checked_labels

#: At most one example in this many is kept for tuning; it is never a centre.
ONE_IN = 5

#: Names of what is kept of an example, beside its rows: which of the loader's it is, and the rest.
PLACES, INPUTS, LABELS = "places", "inputs", "labels"

#: Values of equal length, by these names or by layer site: tensors, but inputs are a list of
#: batches, each with tensors of one shape.
Examples = dict[Any, Any]


#: Most bytes of inputs that are kept to be copied.
COPIED_BYTES = 2**28


class Samples(NamedTuple):
    """Examples of a loader."""

    centers: Examples  # rows of the layers
    held: Examples  # inputs of others
    classes: int
    copied: Examples  # inputs of some of the centres


def sample_examples(
    batched: Iterable[Batch],
    read: Callable[[Example], tuple[Tensor, Rows]],  # inputs -> logits, rows
    centers: int,
    tuning: int,
    random: np.random.RandomState,
    copied: int = 0,
) -> Samples:
    """Rows of at most `centers` examples, inputs of at most `tuning` others, number of classes.

    Both are uniform samples in random order; examples of the second are removed from the first.
    Only examples that may stay are run through the network. The samples do not depend on how the
    stream is cut into batches. Inputs of at most `copied` centres are kept too.
    """
    fields, tuned = Reservoir(centers + tuning), Reservoir(tuning)
    kept = KeptInputs()  # of the second sample
    widths: Rows = {}
    classes = start = 0
    for batch in batched:
        inputs, labels = batch.inputs, _checked_labels(batch)
        n = inputs.rows
        numbers = random.random_sample((n, 2))
        places = torch.arange(start, start + n)
        if n and not start and copied:
            largest = sum(part.nbytes for part in inputs.tensors.values()) // n
            tuned = Reservoir(tuning + min(copied, COPIED_BYTES // max(1, largest)))
        start += n
        for reservoir, drawn in ((tuned, numbers[:, 1]), (fields, numbers[:, 0])):
            index = reservoir.candidates(drawn)
            if not len(index):
                continue
            chosen = torch.from_numpy(index)
            values: Examples = {PLACES: places[chosen], LABELS: labels[chosen]}
            if reservoir is tuned:
                kept.add(places[chosen].tolist(), inputs.take(chosen))
            else:
                logits, rows = read(inputs.take(chosen))
                require_widths(rows, widths, batch.number)
                widths = {site: own[:0] for site, own in rows.items()}
                require_numbers(logits, rows, values[PLACES])
                classes = logits.shape[1]
                values |= rows
            evicted = reservoir.add(drawn[index], values)
            if reservoir is tuned:
                kept.remove(evicted[PLACES].tolist())
        if n:
            checked_labels(labels, n, classes, f"labels of batch {batch.number}")
    if start < 2:
        raise QIPFInputError(
            f"The loader holds {counted(start, 'example')}; LayeredQIPF needs at least a few dozen."
            + ("" if start else f" {READ_ONCE}")
        )
    count, values = min(tuning, start // ONE_IN), tuned.values
    held = by_shape({name: value[:count] for name, value in values.items()}, kept)
    sample = fields.values
    others = (~torch.isin(sample[PLACES], held[PLACES])).nonzero()[:, 0]
    others = others[:centers]
    sample = {name: value[others] for name, value in sample.items()}
    also = count + torch.isin(values[PLACES][count:], sample[PLACES]).nonzero()[:copied, 0]
    extra = by_shape({name: value[also] for name, value in values.items()}, kept)
    return Samples(sample, held, classes, extra)


def by_shape(examples: Examples, inputs: KeptInputs) -> Examples:
    """The examples with their inputs, in batches of equal shapes, in that order.

    Texts have as many tokens as the longest of their batch, so shapes can differ.
    """
    groups: dict[Any, list[int]] = {}
    for number, place in enumerate(examples[PLACES].tolist()):
        groups.setdefault(inputs.shapes(place), []).append(number)
    order = torch.tensor([number for group in groups.values() for number in group]).long()
    found: Examples = {name: value[order] for name, value in examples.items()}
    places = examples[PLACES].tolist()
    found[INPUTS] = [
        inputs.joined([places[number] for number in group]) for group in groups.values()
    ]
    return found


def require_numbers(logits: Tensor, rows: Rows, places: Tensor, change: str = "") -> None:
    """Raise if the network or a layer gives NaN or infinity for one of these examples.

    `change` says how the inputs differ from the loader's.
    """
    for found in (logits, *rows.values()):
        good = torch.isfinite(found).all(1)
        if not bool(good.all()):
            first = int(places[int((~good).nonzero()[0])])
            given = f"Example {first} of the loader"
            remedy = "Drop or repair it first."
            if not bool(good.any()) and len(good) > 1:
                given += f" and all {len(good)} of its batch"
                remedy = "Look for NaN in these inputs, or in the network's weights."
            if change:
                given = f"A copy of example {first} of the loader ({change})"
                remedy = "Limit the values in the network where it does so: fit perturbs inputs."
            raise QIPFInputError(
                f"{given}: the network, or one of its layers, gives NaN or infinity. {remedy}"
            )


def require_widths(rows: Rows, known: Rows, number: int) -> None:
    """Raise if rows of a layer are not as wide as those of the batches before."""
    for site, own in rows.items():
        if site in known and own.shape[1:] != known[site].shape[1:]:
            raise QIPFInputError(
                f"{site} gives {own.shape[1]} numbers for an input of batch {number}, and "
                f"{known[site].shape[1]} for those before: inputs must have one size. Resize them."
            )


def _checked_labels(batch: Batch) -> Tensor:  # (n,)
    first = next(iter(batch.inputs.tensors.values()), None)
    if first is None or first.ndim < 2:
        raise QIPFInputError(
            f"Batch {batch.number} has no tensor of inputs with one row per example, (n, ...)."
        )
    name, labels = f"labels of batch {batch.number}", batch.labels
    if labels is None:
        raise QIPFInputError(
            f"Batch {batch.number} has no labels. The layers' fields are made by class: yield "
            "(inputs, labels), or a dict with the labels as 'labels', or use qipf.wrap(net), which "
            "needs none."
        )
    shape = tuple(np.shape(labels))
    if len(shape) > 1 and shape != (len(first), 1):
        raise QIPFInputError(
            f"{name} must have shape ({len(first)},), one class per input, got {shape}. For "
            "several labels per input use qipf.wrap(net, task='multilabel')."
        )
    flat = labels.reshape(-1) if isinstance(labels, Tensor) else np.asarray(labels).reshape(-1)
    return checked_labels(flat, len(first), None, name).cpu()
