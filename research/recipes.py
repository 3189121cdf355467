"""Which recipe of layers, metric, centres and mixture detects errors best under shift.

    python research/recipes.py --run runs/paper --data DATA -o OUT [--networks … --seed 0]

Chosen by: errors on disturbed training images of a family that neither the mixture's weights nor
the centres have seen (each family left out in turn), ROC-AUC and PR-AUC averaged. The benchmark's
corruptions are evaluated into a file of their own, for the report. Writes OUT/chosen-by.jsonl and
OUT/report-only.jsonl, one line a network and recipe.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from perturbing import FAMILIES, disturbed, strengths
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor, nn
from torch.nn import functional

from qipf.bench.corruptions import corrupt
from qipf.bench.scoring import Contender, Setting
from qipf.bench.suites import CLEAN, find
from qipf.methods.layered import evaluating, unit_range

#: Widest that a pooled layer may be before its metric.
WIDEST = 512
FACTORS = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0)
SHRINKAGES = (0.02, 0.1, 0.3, 0.5, 0.8)
KEPT = (0.97, 0.9, 0.7, 0.5)

Rows = dict[str, Tensor]
Trials = tuple[dict[tuple[bool, float], "LayerField"], dict[tuple[bool, float, float, str], float]]


@dataclass(frozen=True)
class Recipe:
    """What is tried."""

    name: str
    dims: int = 128
    centers: int = 6000
    gain: str = "either"  # rows to unit length before the metric too: never, always, or either
    augmented: bool = False  # half of the centres disturbed
    only_last: bool = False
    weights: str = "em"  # or "equal", "clean"
    score: str = "gap"  # or "entropy"
    kept: tuple[float, ...] = KEPT  # shares of accuracy kept in what is learned from
    chosen_on: str = "all"  # width and shrinkage by the likelihood on: all, or clean


RECIPES = (
    Recipe("base"),
    Recipe("kept .97", kept=(0.97,)),
    Recipe("kept .97 .9", kept=(0.97, 0.9)),
    Recipe("kept .97 .9 .7", kept=(0.97, 0.9, 0.7)),
    Recipe("kept .9 .7 .5", kept=(0.9, 0.7, 0.5)),
    Recipe("dims32", dims=32),
    Recipe("dims64", dims=64),
    Recipe("full", dims=10_000),
    Recipe("centers2000", centers=2000),
    Recipe("centers10000", centers=10_000),
    Recipe("gain kept", gain="never"),
    Recipe("gain-free", gain="always"),
    Recipe("augmented", augmented=True),
    Recipe("last layer", only_last=True),
    Recipe("equal weights", weights="equal"),
    Recipe("clean weights", weights="clean"),
    Recipe("entropy", score="entropy"),
    Recipe("clean width", chosen_on="clean"),
    Recipe("clean width and weights", chosen_on="clean", weights="clean"),
)
GAINS = {"never": (False,), "always": (True,), "either": (False, True)}


def pooled(output: Tensor) -> Tensor:
    """A layer's output as a row: maps averaged over the finest grid that stays narrow."""
    if output.ndim == 2:
        return (
            output if output.shape[1] <= WIDEST else functional.adaptive_avg_pool1d(output, WIDEST)
        )
    channels, size = output.shape[1], min(output.shape[2:])
    grids = [g for g in (8, 7, 6, 5, 4, 3, 2, 1) if g <= size and channels * g * g <= WIDEST]
    return functional.adaptive_avg_pool2d(output, grids[0] if grids else 1).flatten(1)


def rows_of(network: nn.Module, images: Tensor, size: int = 2000) -> Rows:
    """What every dense or convolutional layer but the first reads, and the logits."""
    taps = [m for m in network.modules() if isinstance(m, (nn.Conv2d, nn.Linear))][1:]
    read: dict[str, list[Tensor]] = {}
    hooks = [
        tap.register_forward_pre_hook(
            lambda _, x, name=f"layer{i}": read.setdefault(name, []).append(pooled(x[0]))
        )
        for i, tap in enumerate(taps)
    ]
    device = next(network.parameters()).device
    with evaluating(network):
        for part in images.split(size):
            read.setdefault("logits", []).append(network(unit_range(part.to(device))))
    for hook in hooks:
        hook.remove()
    return {name: torch.cat(parts) for name, parts in read.items()}


class Scatter:
    """A layer's mean and how its rows scatter within their classes."""

    def __init__(self, rows: Tensor, labels: Tensor, gain_free: bool) -> None:
        self._gain_free = gain_free
        self.rows = self.ungained(rows).double()
        self.mean = self.rows.mean(0)
        means = torch.stack([self.rows[labels == c].mean(0) for c in range(10)])
        offsets = self.rows - means[labels]
        self.values, self.vectors = torch.linalg.eigh(offsets.T @ offsets / len(rows))

    def ungained(self, rows: Tensor) -> Tensor:
        """Rows as the metric takes them."""
        return functional.normalize(rows, dim=1) if self._gain_free else rows


class Metric:
    """Centre, whiten within classes with shrinkage, keep what separates most, scale to one."""

    def __init__(self, scatter: Scatter, rho: float, dims: int) -> None:
        self._scatter = scatter
        values = (1 - rho) * scatter.values + rho * scatter.values.mean()
        whiten = scatter.vectors / values.sqrt()
        if dims < len(values):
            seen = (scatter.rows - scatter.mean) @ whiten
            _, directions = torch.linalg.eigh(seen.T @ seen)
            whiten = whiten @ directions[:, -dims:]
        self._whiten, self._mean = whiten.float(), scatter.mean.float()
        self.dims = whiten.shape[1]

    def __call__(self, rows: Tensor) -> Tensor:
        rows = self._scatter.ungained(rows)
        return functional.normalize((rows - self._mean) @ self._whiten, dim=1)


class LayerField:
    """Kernel posterior of the classes over one layer."""

    def __init__(self, metric: Metric, rows: Tensor, labels: Tensor, more: Tensor | None) -> None:
        self.metric = metric
        units = metric(rows)
        d, n = metric.dims, len(rows)
        self.width = float(units.std(0).mean()) * (4 / ((d + 2) * n)) ** (1 / (d + 4))
        self._centers = units if more is None else torch.cat([units, metric(more)])
        labels = labels if more is None else torch.cat([labels, labels])
        self._classes = functional.one_hot(labels, 10).float()

    def posteriors(self, rows: Tensor, factors: Sequence[float]) -> list[Tensor]:  # (n, 10) each
        """q_c = f_c / Σ f, at least 1e-30, for each factor on the width."""
        parts: list[list[Tensor]] = [[] for _ in factors]
        for part in self.metric(rows).split(8000):
            cosines = part @ self._centers.T
            for found, factor in zip(parts, factors, strict=True):
                scores = cosines / (factor * self.width) ** 2
                found.append(torch.softmax(scores, 1) @ self._classes)
        return [torch.cat(found).clamp_min(1e-30) for found in parts]


def em(likelihoods: Tensor, steps: int = 200) -> Tensor:  # (n, L) -> (L,)
    """Weights of a mixture that are likeliest for what was seen."""
    weights = torch.full_like(likelihoods[0], 1 / likelihoods.shape[1])
    for _ in range(steps):
        share = likelihoods * weights
        weights = (share / share.sum(1, keepdim=True)).mean(0)
    return weights


def score_of(recipe: Recipe, mixture: Tensor, predicted: Tensor) -> Tensor:
    """The gap at the network's own class, or the entropy."""
    if recipe.score == "entropy":
        return torch.special.entr(mixture).sum(1)
    own = mixture.gather(1, predicted[:, None])[:, 0]
    rest = mixture.scatter(1, predicted[:, None], 0.0).sum(1)
    return rest.clamp_min(1e-30).log() - own.clamp_min(1e-30).log()


@dataclass
class Study:
    """All rows of one network."""

    centers: Rows
    center_labels: Tensor
    disturbed_centers: dict[str, Rows]
    tuning: dict[str, Rows]  # clean, and family/share
    tuning_labels: Tensor
    test: dict[str, Rows]
    test_labels: Tensor
    known: dict[tuple[object, ...], Trials] = field(default_factory=dict)
    metrics: dict[tuple[object, ...], dict[float, Metric]] = field(default_factory=dict)

    def learned(self, recipe: Recipe, seen: Sequence[str]) -> Learned:
        """Fields and weights from clean data and the families named."""
        return Learned(self, recipe, seen)

    def trials(self, layer: str, recipe: Recipe, seen: Sequence[str]) -> Trials:
        """The fields of a layer, and how likely they make the labels of each tuning set."""
        copies = tuple(seen) if recipe.augmented else None
        key = (layer, recipe.dims, recipe.centers, recipe.gain, copies)
        if key not in self.known:
            self.known[key] = self._tried(layer, recipe, copies)
        return self.known[key]

    def _tried(self, layer: str, recipe: Recipe, copies: Sequence[str] | None) -> Trials:
        n = recipe.centers
        rows, labels = self.centers[layer][:n], self.center_labels[:n]
        more = None
        if copies is not None:
            kinds = [k for k in self.disturbed_centers if k.split("/")[0] in copies]
            index = torch.arange(len(rows), device=rows.device)
            every = torch.stack([self.disturbed_centers[k][layer][:n] for k in kinds])
            more = every[index % len(kinds), index]
        fields, told = {}, {}
        for gain_free in GAINS[recipe.gain]:
            key = (layer, recipe.dims, n, gain_free)
            if key not in self.metrics:
                scatter = Scatter(rows, labels, gain_free)
                self.metrics[key] = {rho: Metric(scatter, rho, recipe.dims) for rho in SHRINKAGES}
            for rho, metric in self.metrics[key].items():
                field = LayerField(metric, rows, labels, more)
                fields[gain_free, rho] = field
                for name, shown in self.tuning.items():
                    found = field.posteriors(shown[layer], FACTORS)
                    for factor, q in zip(FACTORS, found, strict=True):
                        own = q.gather(1, self.tuning_labels[:, None])
                        told[gain_free, rho, factor, name] = float(own.log().clamp_min(-12).mean())
        return fields, told


class Learned:
    """A recipe, fitted."""

    def __init__(self, study: Study, recipe: Recipe, seen: Sequence[str]) -> None:
        self._recipe = recipe
        layers = [name for name in study.centers if name != "logits"]
        self._layers = layers[-1:] if recipe.only_last else layers
        labels = study.tuning_labels
        learned_from = [f"{family}/{share}" for family in seen for share in recipe.kept]
        all_sets = ["clean", *learned_from]
        for_width = ["clean"] if recipe.chosen_on == "clean" else all_sets
        for_weights = ["clean"] if recipe.weights == "clean" else all_sets
        self._fields, self.chosen = {}, {}
        for layer in self._layers:
            fields, told = study.trials(layer, recipe, seen)
            gain_free, rho, factor = max(
                ((*key, f) for key in fields for f in FACTORS),
                key=lambda trial: sum(told[(*trial, name)] for name in for_width),
            )
            self._fields[layer] = (fields[gain_free, rho], factor)
            self.chosen[layer] = {"factor": factor, "rho": rho, "gain_free": gain_free}
        if recipe.weights == "equal":
            self.weights = torch.full((len(self._layers) + 1,), 1 / (len(self._layers) + 1))
            self.weights = self.weights.to(labels.device)
        else:
            parts = [self._parts(study.tuning[s]) for s in for_weights]
            told = [
                p.gather(2, labels[:, None, None].expand(-1, p.shape[1], 1))[..., 0] for p in parts
            ]
            self.weights = em(torch.cat(told).clamp_min(1e-30))

    def _parts(self, rows: Rows) -> Tensor:  # (n, L + 1, 10)
        parts = [rows["logits"].softmax(1)]
        parts += [
            field.posteriors(rows[layer], [f])[0] for layer, (field, f) in self._fields.items()
        ]
        return torch.stack(parts, 1)

    def score(self, rows: Rows) -> Tensor:
        mixture = torch.einsum("nlc,l->nc", self._parts(rows).double(), self.weights.double())
        return score_of(self._recipe, mixture, rows["logits"].argmax(1))


def detection(score: Tensor, wrong: Tensor) -> tuple[float, float]:
    """ROC-AUC and PR-AUC."""
    flags, values = wrong.cpu().numpy(), score.double().cpu().numpy()
    if flags.all() or not flags.any():
        return float("nan"), float("nan")
    return float(roc_auc_score(flags, values)), float(average_precision_score(flags, values))


def study_of(contender: Contender, centers: int, tuning: int, test: int) -> Study:
    """Run the network on all images that the recipes are tried on."""
    data, network = contender.dataset, contender.network
    device = network.device
    order = torch.randperm(len(data.train_labels), generator=torch.Generator().manual_seed(1))
    held = order[: min(tuning, len(order) // 4)]
    kept = order[len(held) :][:centers]
    images = unit_range(data.train_images[held]).to(device)
    labels = data.train_labels[held].to(device)

    def accuracy(shown: Tensor) -> float:
        with evaluating(network):
            return float((network(shown).argmax(1) == labels[: len(shown)]).double().mean())

    levels = {f: strengths(accuracy, images[:600], f, KEPT) for f in FAMILIES}
    print(
        contender.spec.name, {f: [round(t, 3) for t in ts] for f, ts in levels.items()}, flush=True
    )
    rows = {"clean": rows_of(network, images)}
    for family, found in levels.items():
        for share, t in zip(KEPT, found, strict=True):
            rows[f"{family}/{share}"] = rows_of(network, disturbed(images, family, t, 2))
    base = unit_range(data.train_images[kept]).to(device)
    copies = {
        f"{family}/{share}": rows_of(network, disturbed(base, family, t, 3))
        for family, found in levels.items()
        for share, t in zip(KEPT, found, strict=True)
    }
    shown = unit_range(data.test_images[:test]).to(device)
    suite = contender.setting.suite
    spoilt = {
        f"{c}/{level}": rows_of(network, shown if c == CLEAN else corrupt(shown, c, level))
        for c, level in dict.fromkeys((t.corruption, t.level) for t in suite.tasks())
    }
    return Study(
        rows_of(network, base),
        data.train_labels[kept].to(device),
        copies,
        rows,
        labels,
        spoilt,
        data.test_labels[:test].to(device),
    )


def left_out(study: Study, recipe: Recipe | None) -> dict[str, list[float]]:
    """Detection in each family, learned from the others; entropy's where there is no recipe."""
    found = {}
    for family in FAMILIES:
        learned = None
        if recipe is not None:
            learned = study.learned(recipe, [f for f in FAMILIES if f != family])
        told = []
        for name, rows in study.tuning.items():
            if name.split("/")[0] == family:
                told.append(detection(*_judged(learned, rows, study.tuning_labels)))
        found[family] = np.nanmean(told, axis=0).tolist()
    return found


def reported(study: Study, recipe: Recipe | None) -> dict[str, object]:
    """Detection under each corruption of the benchmark, learned from all families."""
    learned = None if recipe is None else study.learned(recipe, list(FAMILIES))
    told: dict[str, list[tuple[float, float]]] = {}
    for name, rows in study.test.items():
        told.setdefault(name.split("/")[0], []).append(
            detection(*_judged(learned, rows, study.test_labels))
        )
    cells: dict[str, object] = {c: np.nanmean(v, axis=0).tolist() for c, v in told.items()}
    if learned is not None:
        cells |= {"weights": learned.weights.tolist(), "chosen": learned.chosen}
    return cells


def _judged(learned: Learned | None, rows: Rows, labels: Tensor) -> tuple[Tensor, Tensor]:
    wrong = rows["logits"].argmax(1) != labels
    if learned is None:
        return torch.special.entr(rows["logits"].double().softmax(1)).sum(1), wrong
    return learned.score(rows), wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--networks", nargs="+")
    parser.add_argument("--recipes", nargs="+")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--centers", type=int, default=10_000)
    parser.add_argument("--tuning", type=int, default=1500)
    parser.add_argument("--test", type=int, default=2000)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    suite = replace(find("paper"), seed=options.seed)
    options.output.mkdir(parents=True, exist_ok=True)
    chosen_by = (options.output / "chosen-by.jsonl").open("a")
    report_only = (options.output / "report-only.jsonl").open("a")
    for network in options.networks or [n.name for n in suite.networks]:
        setting = Setting(suite, options.run, options.device, options.data)
        study = study_of(Contender(setting, network), options.centers, options.tuning, options.test)
        for recipe in (None, *RECIPES):
            name = "softmax entropy" if recipe is None else recipe.name
            if options.recipes and name not in options.recipes:
                continue
            head = {"network": network, "seed": options.seed, "recipe": name}
            found = left_out(study, recipe)
            mean = np.nanmean(list(found.values()), axis=0)
            print(f"{network} {name}: {mean[0]:.4f} {mean[1]:.4f}", flush=True)
            if recipe is not None:
                head["options"] = asdict(recipe)
            chosen_by.write(json.dumps({**head, "mean": mean.tolist(), **found}) + "\n")
            report_only.write(json.dumps({**head, **reported(study, recipe)}) + "\n")
            chosen_by.flush()
            report_only.flush()


if __name__ == "__main__":
    main()
