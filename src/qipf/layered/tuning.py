"""Tuning sets of held-out examples: clean, perturbed, joined; and copies for distilled fields."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from qipf.errors import warn
from qipf.export.program import Example
from qipf.layered.effort import FULL, Effort
from qipf.layered.families import STRIDE, Family, Hooks, fitting_families, fitting_outliers
from qipf.layered.holdout import INPUTS, LABELS, PLACES, Examples, require_numbers
from qipf.layered.outliers import of_other_classes
from qipf.layered.perturbations import KEPT, strengths
from qipf.network.features import LayerSite, Rows, hooked, run_in_batches
from qipf.progress import progress

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
            "floating point inputs or images in bytes (n, C, H, W) if you can, or tokens that "
            "an nn.Embedding or nn.EmbeddingBag reads."
        )
        return found
    few = _leading(groups, max(FEWEST, int(effort.strength_share * len(labels))))

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
