"""Fields with few centres against those of all examples, on perturbations that were left out.

    python research/distilling.py --run RUN --data DATA --networks kmnist10k_lenet mnist_lenet

Perturbed copies of held-out training images, as `LayeredQIPF` makes them. The families are left out
in two halves (`LEFT`): centres, mixture and error model are fitted without them, on every second
example, and ROC-AUC and PR-AUC of error detection are measured on them, on the other examples. The
metrics are chosen with all families, alike for all variants of equal dimension. The weights of the
mixture are those of all examples, as in the package, unless a variant says that they are fitted
anew. Distilled fields have 128 dimensions. Writes distilling.csv: differences from all examples as
centres, by network and variant.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from error_data import bench_of

from qipf.bench.methods import CleanData
from qipf.layered import distillation, distilled_centers
from qipf.layered.class_field import ClassField
from qipf.layered.distillation import clustered_field, distilled_field, labelled_rows
from qipf.layered.error_model import fit_error_model
from qipf.layered.families import fitting_families
from qipf.layered.holdout import INPUTS, sample_examples
from qipf.layered.mixture import likeliest_weights
from qipf.layered.mixture_fit import MOST_LAYERS, fit_mixture, tuning_posteriors
from qipf.layered.selection import chosen_fields
from qipf.layered.tuning import COPIED, Tuning, _add_copies, tuning_sets
from qipf.metrics.error_detection import evaluate
from qipf.network.batches import batches, few_rows
from qipf.network.features import LayerSite, chosen_sites, run_in_batches
from qipf.network.forward import evaluating

#: Families that are left out together.
LEFT = (("fade", "tone", "shift", "warp"), ("blur", "coarsen", "noise", "drop", "hole"))

Fields = dict[LayerSite, ClassField]

#: The field of all examples, tuning rows, a layer and a seed -> the field that is tried.
Variant = Callable[[ClassField, Tuning, LayerSite, int], ClassField]


def of_some(field: ClassField, count: int, seed: int = 0) -> ClassField:
    """A random part of the centres."""
    order = torch.randperm(len(field.labels), generator=torch.Generator().manual_seed(seed))
    kept = order[:count].sort().values
    return field.changed(
        embeddings=field.embeddings[kept],
        labels=field.labels[kept],
        examples=field.examples[kept],
        counts=None,
    )


def fitted(size: int, projection: float = 0.0, **constants: Any) -> Variant:
    """Distilled to a size, with other constants than those of the package.

    `projection` is the rate of the projection, which stays as it is by default.
    """
    rates = *distilled_centers.RATES[:3], projection

    def distilled(field: ClassField, tuning: Tuning, site: LayerSite, seed: int) -> ClassField:
        rows = labelled_rows(field, tuning, site)
        with ExitStack() as changed:
            for name, value in {"RATES": rates, **constants}.items():
                owner = distillation if hasattr(distillation, name) else distilled_centers
                changed.enter_context(patch.object(owner, name, value))
            return distilled_field(field, size, DIMENSION, *rows, seed)

    return distilled


#: Rate of the projection in the package.
LEARNED = distilled_centers.RATES[3]

#: Largest dimension of distilled fields, and of those of all examples if a variant names no other.
DIMENSION = 128

VARIANTS: dict[str, Variant] = {
    "all examples": lambda field, tuning, site, seed: field,
    "half of them": lambda field, tuning, site, seed: of_some(field, len(field.labels) // 2),
    "another half": lambda field, tuning, site, seed: of_some(field, len(field.labels) // 2, 1),
    "clusters, 1,500": lambda field, tuning, site, seed: clustered_field(
        field, 1500, torch.Generator().manual_seed(seed)
    ),
    "distilled, 500": fitted(500),
    "distilled, 1,000": fitted(1000),
    "distilled, 1,500": fitted(1500),
    "distilled, 2,000": fitted(2000),
    "distilled, 6,000": fitted(6000),
    "weights anew": fitted(1500),
    "classes alone": fitted(1500, BLENDS=0),
    "λ = 1": fitted(1500, OF_CLASS=1.0),
    "λ = 16": fitted(1500, OF_CLASS=16.0),
    "60 steps": fitted(1500, STEPS=60),
    "120 steps": fitted(1500, STEPS=120),
    "960 steps": fitted(1500, STEPS=960),
    "projection learned": fitted(1500, projection=LEARNED),
    "projection learned, 1,000": fitted(1000, projection=LEARNED),
    "projection learned, 120 steps": fitted(1500, projection=LEARNED, STEPS=120),
    "256 dimensions": lambda field, tuning, site, seed: field,
    "256 dimensions, projection learned": fitted(1500, projection=LEARNED),
}


def dimension_of(variant: str) -> int:
    """The largest dimension of the metrics of a variant."""
    first, _, rest = variant.partition(" ")
    return int(first) if rest.startswith("dimensions") else DIMENSION


def part_of(tuning: Tuning, names: list[str], half: int) -> Tuning:
    """Some of the sets, every second example."""
    sets = {}
    for name in names:
        logits, rows = tuning.sets[name]
        sets[name] = logits[half::2], {site: found[half::2] for site, found in rows.items()}
    return Tuning(sets, tuning.labels[half::2], tuning.copies, tuning.copied)


def areas(
    fields: Fields, weights: torch.Tensor | None, known: Tuning, left: Tuning
) -> np.ndarray:  # (2,)
    """Mean ROC-AUC and PR-AUC on sets that were left out; None for weights that are fitted."""
    posteriors = tuning_posteriors(fields, known, (1.0,))
    weights = likeliest_weights(posteriors.truth) if weights is None else weights
    weights = weights.to(posteriors.own)
    model = fit_error_model(posteriors.evidence(weights), posteriors.wrong, posteriors.sets > 0)
    assert model is not None
    found: dict[str, list[tuple[float, float]]] = {}
    other = tuning_posteriors(fields, left, (1.0,))
    scores = model(other.evidence(weights)).cpu().numpy()
    for number, name in enumerate(left.sets):
        rows = (other.sets == number).cpu().numpy()
        wrong = other.wrong.cpu().numpy()[rows]
        if wrong.any() and not wrong.all():
            values = evaluate(scores[rows], wrong)
            found.setdefault(name.split()[0], []).append((values["roc_auc"], values["pr_auc"]))
    return np.mean([np.mean(pairs, axis=0) for pairs in found.values()], axis=0)


def compared(name: str, options: argparse.Namespace) -> Mapping[str, np.ndarray]:
    """Mean areas of every variant, over both halves of the families."""
    bench = bench_of(name, options)
    net, data = bench.network, bench.dataset
    clean = CleanData(net, data.train_images, data.train_labels)
    first = few_rows(next(iter(batches(clean.batches(), net, "fit", "reading"))).inputs)
    with evaluating(net), torch.no_grad():
        sites = chosen_sites(net, lambda part: run_in_batches(net, part, ()), first)
        centers, held, classes, copied = sample_examples(
            batches(clean.batches(), net, "fit", "reading layers"),
            lambda inputs: run_in_batches(net, inputs, sites, first),
            60_000,
            1000,
            np.random.RandomState(options.seed),
            COPIED,
        )
        tuning = tuning_sets(net, held, sites, classes, options.seed)
        fields = {
            dimension: chosen_fields(centers, tuning, sites, classes, dimension)
            for dimension in sorted({dimension_of(variant) for variant in options.variants})
        }
        families = fitting_families(net, held[INPUTS][0])
        strongest = {one.split()[0]: float(one.split()[1]) for one in list(tuning.sets)[1:]}
        found: dict[str, list[np.ndarray]] = {}
        for out in LEFT:
            known = [one for one in tuning.sets if one.split()[0] not in out]
            seen = [(families[f], t) for f, t in strongest.items() if f not in out]
            _add_copies(tuning, net, copied, sites, seen, options.seed)
            left = part_of(tuning, [one for one in tuning.sets if one not in known], 1)
            half = part_of(tuning, known, 0)
            mixtures = {
                d: fit_mixture(every, half, most=MOST_LAYERS) for d, every in fields.items()
            }
            for variant in options.variants:
                kept, weights, _ = mixtures[dimension_of(variant)]
                own = None if variant == "weights anew" else weights
                for seed in range(options.fits):
                    small = {s: VARIANTS[variant](f, half, s, seed) for s, f in kept.items()}
                    found.setdefault(variant, []).append(areas(small, own, half, left))
                    print(name, variant, seed, found[variant][-1].round(4), flush=True)
    return {variant: np.mean(pairs, axis=0) for variant, pairs in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--networks", nargs="+", required=True)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--fits", type=int, default=1, help="seeds of the fits, whose mean is taken"
    )
    parser.add_argument("-o", "--out", type=Path, default=Path("research/results"))
    options = parser.parse_args()
    file, header = options.out / "distilling.csv", ["network", "variant", "roc_auc", "pr_auc"]
    rows: list[dict[str, str]] = []
    if file.exists():
        with file.open(newline="") as lines:
            rows = list(csv.DictReader(lines))
    for name in options.networks:
        means = compared(name, options)
        start = means[next(iter(VARIANTS))]  # differences are from all examples
        rows = [row for row in rows if row["network"] != name or row["variant"] not in means]
        for variant, mean in means.items():
            values = mean if mean is start else mean - start
            shown = [f"{value:.4f}" if mean is start else f"{value:+.4f}" for value in values]
            rows.append(dict(zip(header, (name, variant, *shown), strict=True)))
        with file.open("w", newline="") as lines:
            writer = csv.DictWriter(lines, header)
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
