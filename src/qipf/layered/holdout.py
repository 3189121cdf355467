"""Samples of a loader: rows for the fields, and held-out inputs, clean, perturbed and joined."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from qipf.errors import QIPFInputError, warn
from qipf.export.program import Example
from qipf.field.reservoir import Reservoir
from qipf.layered.effort import FULL, Effort
from qipf.layered.families import STRIDE, Family, Hooks, fitting_families, fitting_outliers
from qipf.layered.kept_inputs import KeptInputs
from qipf.layered.outliers import of_other_classes
from qipf.layered.perturbations import KEPT, strengths
from qipf.network.batches import Batch
from qipf.network.features import LayerSite, Rows, hooked, run_in_batches
from qipf.progress import progress
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
            f"The loader holds {start} examples; LayeredQIPF needs at least a few dozen."
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
            if change:
                given = f"A copy of example {first} of the loader ({change})"
                remedy = "Limit the values in the network where it does so: fit perturbs inputs."
            raise QIPFInputError(
                f"{given} makes the network, or one of its layers, give NaN or infinity. {remedy}"
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
            "(inputs, labels), or use qipf.wrap(net), which needs none."
        )
    shape = tuple(np.shape(labels))
    if len(shape) > 1 and shape != (len(first), 1):
        raise QIPFInputError(
            f"{name} must have shape ({len(first)},), one class per input, got {shape}. For "
            "several labels per input use qipf.wrap(net, task='multilabel')."
        )
    flat = labels.reshape(-1) if isinstance(labels, Tensor) else np.asarray(labels).reshape(-1)
    return checked_labels(flat, len(first), None, name).cpu()


#: Examples that are copied for distilled fields, families that perturb each, and strengths.
COPIED, FAMILIES_EACH, LEVELS = 4000, 3, 8

#: Fewest held-out examples from which weights are learned.
FEWEST = 20


@dataclass
class Tuning:
    """Logits and rows of the held-out examples, by set, and their classes.

    Copies are perturbed examples that distilled fields are fitted at, and are not held out.
    Outliers are logits and rows of pseudo-outliers, by kind, not aligned with the labels.
    """

    sets: dict[str, tuple[Tensor, Rows]]
    labels: Tensor  # (n,) the same for every set
    copies: Rows = field(default_factory=dict)
    copied: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))  # places
    outliers: dict[str, tuple[Tensor, Rows]] = field(default_factory=dict)


def tuning_sets(
    net: nn.Module,
    held: Examples,
    sites: Sequence[LayerSite],
    classes: int,
    seed: int,
    copied: Examples | None = None,
    effort: Effort = FULL,
) -> Tuning:
    """The examples as they are, and perturbed by every family for inputs of their shape.

    Those that are `copied` are perturbed by some of the families each. Pseudo-outliers of every
    kind are made of the same examples.
    """
    if len(held[LABELS]) < FEWEST:
        return Tuning({}, torch.empty(0, dtype=torch.long))
    groups: list[Example] = held[INPUTS]
    logits, rows = _run(net, groups, sites)
    require_numbers(logits, rows, held[PLACES])
    labels = held[LABELS].to(logits.device)
    found = Tuning({"clean": (logits, rows)}, labels)
    fitting = fitting_families(net, groups[0])
    if not fitting:
        types = {str(part.dtype) for part in groups[0].tensors.values()}
        warn(
            f"The inputs are {', '.join(types)} and cannot be perturbed, so the weights are "
            "learned from clean training data alone, on which networks are overconfident. Pass "
            "floating point inputs if you can, or tokens that an nn.Embedding reads."
        )
        return found
    few = _leading(groups, max(FEWEST, int(effort.judged * len(labels))))

    clean = logits[: sum(group.rows for group in few)]

    def accuracy(family: Family, t: float) -> float:
        found = _run(net, few, (), family, t, seed)[0] if t else clean
        predicted = found.argmax(1)
        return float((predicted == labels[: len(predicted)]).double().mean())

    strongest: dict[str, float] = {}
    for name, family in progress(fitting.items(), "perturbing"):
        found_at = strengths(partial(accuracy, family), 1 / classes, halvings=effort.halvings)
        for t in progress(found_at, f"perturbing: {name}", len(KEPT)):
            logits, rows = _run(net, groups, sites, family, t, seed + 1)
            require_numbers(logits, rows, held[PLACES], name)
            found.sets[f"{name} {t:.3f}"] = (logits, rows)
        strongest[name] = t
    _add_outliers(found, net, held, sites, seed)
    if copied is not None and len(copied[PLACES]):
        _add_copies(
            found, net, copied, sites, [(fitting[n], t) for n, t in strongest.items()], seed
        )
    return found


def _add_outliers(
    found: Tuning, net: nn.Module, held: Examples, sites: Sequence[LayerSite], seed: int
) -> None:
    """Pseudo-outliers of all examples for which there is one of another class in their group."""
    random = torch.Generator().manual_seed(seed)
    pairs: list[tuple[Example, Example]] = []
    chosen: list[Tensor] = []
    start = 0
    for group in held[INPUTS]:
        places = torch.arange(start, start + group.rows)
        start += group.rows
        labels = held[LABELS][places]
        others = of_other_classes(labels, random)
        differ = (labels != labels[others]).nonzero()[:, 0]
        if len(differ):
            pairs.append((group.take(differ), group.take(others[differ])))
            chosen.append(places[differ])
    if not pairs:
        return
    kinds = fitting_outliers(net, held[INPUTS][0])
    for name, kind in progress(kinds.items(), "making pseudo-outliers"):
        made: list[Example] = []
        kept: list[Tensor] = []
        for number, (pair, own) in enumerate(zip(pairs, chosen, strict=True)):
            joined = kind(*pair, seed + number * STRIDE)
            new = ~(_equal(joined, pair[0]) | _equal(joined, pair[1]))
            if bool(new.any()):
                made.append(joined.take(new))
                kept.append(own[new])
        if made:
            logits, rows = _run(net, made, sites)
            require_numbers(logits, rows, held[PLACES][torch.cat(kept)], name)
            found.outliers[name] = (logits, rows)


def _equal(one: Example, other: Example) -> Tensor:  # (n,)
    """Where all tensors of two batches are equal."""
    pairs = zip(one.tensors.values(), other.tensors.values(), strict=True)
    own = [(a == b)[..., None].cpu() for a, b in pairs if a.ndim and len(a) == one.rows]
    equal = [part.flatten(1).all(1) for part in own]
    return torch.stack(equal).all(0)


def _add_copies(
    found: Tuning,
    net: nn.Module,
    copied: Examples,
    sites: Sequence[LayerSite],
    families: list[tuple[Family, float]],  # and their largest strengths
    seed: int,
) -> None:
    """Every example perturbed by `FAMILIES_EACH` of the families, at `LEVELS` strengths in all."""
    parts: list[Rows] = []
    places: list[Tensor] = []
    step = max(1, len(families) // FAMILIES_EACH)
    start = 0
    for group in copied[INPUTS]:
        own = copied[PLACES][start : start + group.rows]
        start += group.rows
        numbers = torch.arange(group.rows)
        for number, (family, strongest) in enumerate(progress(families, "copying")):
            for level in range(LEVELS):
                chosen = numbers % step == number % step
                chosen &= (numbers // step + number) % LEVELS == level
                index = chosen.nonzero()[:, 0]
                if not len(index):
                    continue
                t = min(1.0, strongest * (level + 0.5) / (LEVELS - 0.5))
                which = seed + 2 + (number * LEVELS + level) * STRIDE
                logits, rows = _run(net, [group.take(index)], sites, family, t, which)
                require_numbers(logits, rows, own[index], "perturbed")
                parts.append(rows)
                places.append(own[index])
    found.copies = {site: torch.cat([rows[site] for rows in parts]) for site in sites}
    found.copied = torch.cat(places)


def _run(
    net: nn.Module,
    groups: Sequence[Example],
    sites: Sequence[LayerSite],
    family: Family | None = None,
    t: float = 0.0,
    seed: int = 0,
) -> tuple[Tensor, Rows]:
    """Logits and rows of all groups, perturbed if a family is given."""
    parts = []
    for number, group in enumerate(groups):
        hooks: Hooks = {}
        if family is not None:
            group, hooks = family(group, t, seed + number * STRIDE)
        with hooked(net, hooks):
            parts.append(run_in_batches(net, group, sites))
    rows = {site: torch.cat([found[site] for _, found in parts]) for site in sites}
    return torch.cat([logits for logits, _ in parts]), rows


def _leading(groups: Sequence[Example], count: int) -> list[Example]:
    """The first rows of the groups."""
    few: list[Example] = []
    for group in groups:
        if count > 0:
            few.append(group.take(slice(count)))
            count -= group.rows
    return few
