"""Means and counts that README and the site quote of the suites paper, modern and ood.

    python benchmarks/headline.py --figure docs/headline.png > results/headline.md

Reads results/paper, results/modern and results/ood (or the folder given by `--results`). A
network's number is the mean over levels, then seeds and corruptions; levels without errors count
nowhere. The peers of one pass are `qipf.bench.methods.ONE_PASS` without qipf_plus. The figure shows
the first table, with all peers.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Collection, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from qipf.bench.corruptions import UNRELATED
from qipf.bench.methods import ONE_PASS
from qipf.bench.results import read_results
from qipf.bench.suites import CLEAN
from qipf.plots.drawing import drawing

OURS, NOVELTY = "qipf_plus", "qipf_plus_novelty"
METRICS = {"roc_auc": "ROC-AUC", "pr_auc": "PR-AUC", "augrc": "AUGRC"}
LOW_IS_GOOD = "augrc"
RIVALS = ("stacked", "entropy", "ensemble_entropy", "ensemble_log_odds")

#: Methods of several passes through one network.
PASSES = ("mc_dropout", "mc_dropout_ll", "svi", "svi_ll", "tta")

TITLES = {
    "mnist_lenet": "LeNet\nMNIST",
    "kmnist10k_lenet": "LeNet\nK-MNIST10k",
    "cifar10_lenet": "LeNet\nCIFAR-10",
    "cifar10_vgg3": "VGG-3\nCIFAR-10",
    "cifar10_resnet18": "ResNet-18\nCIFAR-10",
    "cifar10_vit": "ViT\nCIFAR-10",
    "clinc_transformer": "transformer\nCLINC150",
}

#: Below chance while entropy is above by at least this much: such levels are listed.
ABOVE_CHANCE = 0.05

#: Limits of the accuracies of levels that are taken together.
BANDS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.01)

Cells = dict[str, dict[str, dict[tuple[str, float, int], dict[str, float]]]]


def cells_of(folders: list[Path]) -> Cells:
    """Metrics by network, method, and (corruption, level, seed)."""
    found: Cells = defaultdict(lambda: defaultdict(dict))
    for folder in folders:
        for record in read_results(folder):
            key = record["corruption"], float(record["level"]), record["seed"]
            found[record["network"]][record["method"]][key] = record
    return found


def mean(
    own: dict[tuple[str, float, int], dict[str, float]],
    metric: str,
    corruptions: Collection[str] | None = None,
) -> float:
    """Over levels and seeds, then corruptions; without the clean images unless they are asked."""
    by: dict[str, list[float]] = defaultdict(list)
    for (corruption, _, _), record in own.items():
        asked = corruption in corruptions if corruptions is not None else corruption != CLEAN
        if asked and record.get(metric) is not None:
            by[corruption].append(record[metric])
    return float(np.nanmean([np.nanmean(values) for values in by.values()])) if by else np.nan


def one_pass(methods: Collection[str]) -> list[str]:
    return [m for m in methods if m in ONE_PASS and m not in (OURS, NOVELTY)]


def best(values: dict[str, float], metric: str) -> str:
    sign = -1 if metric == LOW_IS_GOOD else 1
    return max(values, key=lambda name: sign * values[name] if values[name] == values[name] else -9)


def error_detection(cells: Cells, corruptions: Collection[str] | None) -> Iterator[str]:
    """One table for each metric, and how often qipf_plus is first."""
    for metric, title in METRICS.items():
        yield f"| {title} | {OURS} | best peer of one pass | " + " | ".join(RIVALS) + " |"
        yield "| --- |" + " --- |" * (2 + len(RIVALS))
        sign, ahead, rows = (-1 if metric == LOW_IS_GOOD else 1), defaultdict(int), []
        for network, methods in cells.items():
            values = {m: mean(own, metric, corruptions) for m, own in methods.items()}
            if np.isnan(values[OURS]):
                continue
            peers = {m: values[m] for m in one_pass(values)}
            peer = best(peers, metric)
            row = [values[OURS], peers[peer], *(values.get(m, np.nan) for m in RIVALS)]
            rows.append(row)
            for name, value in zip(("one pass", *RIVALS), row[1:], strict=True):
                ahead[name] += sign * (row[0] - value) > 0
            shown = [_number(row[0]), f"{_number(row[1])} {peer}", *map(_number, row[2:])]
            yield f"| {network} | " + " | ".join(shown) + " |"
        yield "| mean | " + " | ".join(map(_number, np.nanmean(rows, axis=0))) + " |"
        yield (
            f"| {OURS} is ahead in | | "
            + " | ".join(f"{ahead[name]} of {len(rows)}" for name in ("one pass", *RIVALS))
            + " |"
        )
        yield ""


def by_corruption(cells: Cells) -> Iterator[str]:
    """In how many pairs of a network and a corruption qipf_plus is ahead."""
    for metric, title in METRICS.items():
        sign, ahead, count = (-1 if metric == LOW_IS_GOOD else 1), defaultdict(int), 0
        behind = []
        for network, methods in cells.items():
            for corruption in dict.fromkeys(key[0] for key in methods[OURS] if key[0] != CLEAN):
                values = {m: sign * mean(own, metric, {corruption}) for m, own in methods.items()}
                peer = max(one_pass(values), key=lambda m: np.nan_to_num(values[m], nan=-9.0))
                count += 1
                ahead["one pass"] += values[OURS] > values[peer]
                for name in RIVALS:
                    ahead[name] += values[OURS] > values[name]
                if values[OURS] <= values[peer]:
                    gap = values[peer] - values[OURS]
                    behind.append(f"{network} {corruption} ({peer}, by {gap:.3f})")
        shares = "; ".join(f"ahead of {m} in {ahead[m]}" for m in RIVALS)
        yield (
            f"{title}: of {count} pairs of a network and a corruption, {OURS} is first of one pass "
            f"in {ahead['one pass']}; {shares}. Behind a peer of one pass: "
            f"{', '.join(behind) or 'nowhere'}.\n"
        )


def several_passes(cells: Cells) -> Iterator[str]:
    """Methods of several passes through one network, by entropy and by log-odds."""
    for metric in ("roc_auc", "pr_auc"):
        yield f"| {METRICS[metric]}: entropy, log-odds, {OURS} there | " + " | ".join(PASSES) + " |"
        yield "| --- |" + " --- |" * len(PASSES)
        ahead, count = dict.fromkeys(PASSES, 0), dict.fromkeys(PASSES, 0)
        for network, methods in cells.items():
            shown = []
            for name in PASSES:
                both = [methods.get(name + score, {}) for score in ("_entropy", "_log_odds")]
                common = both[0].keys() & both[1].keys() & methods[OURS].keys()
                ours, *values = (
                    mean({k: own[k] for k in common}, metric) for own in (methods[OURS], *both)
                )
                shown.append(", ".join(map(_number, [*values, ours])) if common else "")
                count[name] += bool(common)
                ahead[name] += ours > max(values)
            yield f"| {network} | " + " | ".join(shown) + " |"
        shares = " | ".join(f"{ahead[name]} of {count[name]}" for name in PASSES)
        yield f"| {OURS} is ahead of both in | {shares} |\n"


def by_accuracy(cells: Cells) -> Iterator[str]:
    """Where several networks know more: by what the one network gets right."""
    names = (OURS, "entropy", "ensemble_entropy", "ensemble_log_odds")
    yield "| accuracy at the level | networks, levels | " + " | ".join(names) + " |"
    yield "| --- |" + " --- |" * (1 + len(names))
    for low, high in pairwise(BANDS):
        rows, levels = [], 0
        for methods in cells.values():
            at = {k for k, r in methods[OURS].items() if low <= r["accuracy"] < high}
            at = {k for k in at if all(k in methods[m] for m in names)}
            levels += len(at)
            if at:
                rows.append(
                    [
                        [np.nanmean([methods[m][k][area] or np.nan for k in at]) for m in names]
                        for area in ("roc_auc", "pr_auc")
                    ]
                )
        roc, pr = np.mean(rows, axis=0)
        shown = " | ".join(f"{_number(a)} / {_number(b)}" for a, b in zip(roc, pr, strict=True))
        yield f"| {low:.0%} to {min(high, 1):.0%} | {len(rows)}, {levels} | {shown} |"
    yield ""


def clean_images(cells: Cells) -> Iterator[str]:
    yield "| clean test data | ROC-AUC qipf_plus | entropy | AUGRC qipf_plus | entropy |"
    yield "| --- | --- | --- | --- | --- |"
    for network, methods in cells.items():
        values = [
            mean(methods[m], k, {CLEAN}) for k in ("roc_auc", "augrc") for m in (OURS, "entropy")
        ]
        if not np.isnan(values).any():
            yield f"| {network} | " + " | ".join(map(_number, values)) + " |"
    yield ""


def correlations(cells: Cells) -> Iterator[str]:
    names = (OURS, "entropy", "ensemble_entropy", "ensemble_log_odds")
    yield "| point-biserial correlation | " + " | ".join(names) + " |"
    yield "| --- |" + " --- |" * len(names)
    rows = []
    for network, methods in cells.items():
        rows.append([mean(methods[m], "point_biserial") for m in names])
        yield f"| {network} | " + " | ".join(map(_number, rows[-1])) + " |"
    yield "| mean | " + " | ".join(map(_number, np.mean(rows, axis=0))) + " |\n"


def below_chance(cells: Cells) -> Iterator[str]:
    """Levels, in the mean of the seeds, below chance where entropy is above it."""
    found, levels = [], 0
    for network, methods in cells.items():
        for corruption, level in dict.fromkeys(key[:2] for key in methods[OURS]):
            ours, entropy = (
                np.mean(
                    [r["roc_auc"] for k, r in methods[m].items() if k[:2] == (corruption, level)]
                )
                for m in (OURS, "entropy")
            )
            levels += 1
            if ours < 0.5 <= entropy - ABOVE_CHANCE:
                found.append(
                    f"{network} {corruption} {level:g} ({ours:.2f}, entropy {entropy:.2f})"
                )
    shown = ": " + "; ".join(found) if found else ""
    yield (
        f"Levels where {OURS} is below chance and entropy at least {ABOVE_CHANCE} above it: "
        f"{len(found)} of {levels}{shown}.\n"
    )


def mixture(cells: Cells) -> Iterator[str]:
    """Accuracies of the network and of the layers' mixture, and of what p_error promises."""
    yield (
        "| accuracy in % | clean: network | mixture | corrupted: network | mixture | levels "
        "and seeds where the mixture is at least as good | mean p_error is off by | "
        "softmax is off by |"
    )
    yield "| --- |" + " --- |" * 7
    for network, methods in cells.items():
        own, softmax = methods[OURS], methods["softmax"]
        means = [
            100 * mean(own, name, corruptions)
            for corruptions in ({CLEAN}, None)
            for name in ("accuracy", "mixture_accuracy")
        ]
        as_good = sum(r["mixture_accuracy"] >= r["accuracy"] for r in own.values())
        off = [
            100 * np.mean([abs(r["estimated_accuracy"] - r["accuracy"]) for r in m.values()])
            for m in (own, softmax)
        ]
        shown = [f"{v:.1f}" for v in means] + [f"{as_good} of {len(own)}"]
        yield f"| {network} | " + " | ".join([*shown, *(f"{v:.1f}" for v in off)]) + " |"
    yield ""


def novelty(cells: Cells) -> Iterator[str]:
    """Out-of-distribution data sets: ROC-AUC of the novelty and of its strongest peers."""
    yield "| ROC-AUC | data | qipf_plus_novelty | best peer of one pass, in the mean | and here |"
    yield "| --- | --- | --- | --- | --- |"
    for network, methods in cells.items():
        sets = list(dict.fromkeys(key[0] for key in methods[NOVELTY]))
        means = {m: mean(methods[m], "roc_auc", sets) for m in one_pass(methods)}
        peer = best(means, "roc_auc")
        for data in [*sets, "mean"]:
            chosen = sets if data == "mean" else [data]
            own = {m: mean(methods[m], "roc_auc", chosen) for m in one_pass(methods)}
            top = best(own, "roc_auc")
            ours = mean(methods[NOVELTY], "roc_auc", chosen)
            yield (
                f"| {network} | {data} | {_number(ours)} | {_number(own[peer])} {peer} | "
                f"{_number(own[top])} {top} |"
            )
    yield ""


def draw(path: Path, cells: Cells) -> None:
    """ROC-AUC by network: qipf_plus, every peer of one pass, and the ensemble."""
    with drawing(path, width=8.0, height=3.6) as ((ax,),):
        for place, methods in enumerate(cells.values()):
            values = {m: mean(own, "roc_auc") for m, own in methods.items()}
            peers = [values[m] for m in one_pass(values)]
            styles = (
                ([values[OURS]], 0.0, "D", "#d55e00", 70, "qipf: LayeredQIPF"),
                ([values["entropy"]], -0.16, "o", "#0072b2", 40, "softmax entropy"),
                (peers, 0.0, "_", "#999999", 90, "other methods of one pass"),
                (
                    [values["ensemble_entropy"]],
                    0.16,
                    "^",
                    "#999999",
                    40,
                    "5 or 10 networks, entropy",
                ),
                ([values["ensemble_log_odds"]], 0.16, "^", "black", 40, "the same, log-odds"),
            )
            for shown, aside, marker, color, size, label in styles:
                ax.scatter(
                    [place + aside] * len(shown),
                    shown,
                    s=size,
                    marker=marker,
                    color=color,
                    label="" if place else label,
                    zorder=3 + (marker != "_"),
                )
        ax.set_xticks(range(len(cells)), [TITLES.get(name, name) for name in cells])
        ax.set(ylabel="ROC-AUC of wrong predictions", ylim=(0.4, 0.95), xlim=(-0.5, 6.5))
        ax.legend(loc="lower right", fontsize=8)


def _number(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.4f}".replace("0.", ".", 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    folder = options.results
    cells = cells_of([folder / "paper", folder / "modern"])
    if options.figure:
        draw(options.figure, cells)
    print("# What the results show\n\n`python benchmarks/headline.py`\n")
    print("## Errors under all corruptions\n")
    print("\n".join(error_detection(cells, None)))
    print("\n".join(by_corruption(cells)))
    print("## Several passes through one network\n")
    print(
        "On the levels and seeds that a method was scored on. Those of MNIST's LeNets were scored "
        "on the networks of the first training, and qipf_plus on those of the second, whose "
        "accuracies differ by up to .08 at a level.\n"
    )
    print("\n".join(several_passes(cells)))
    print("## Errors under corruptions that share nothing with the tuning perturbations\n")
    print("Of text only typing errors share nothing: tuning drops, swaps and replaces tokens.\n")
    print("\n".join(error_detection(cells, UNRELATED)))
    print("## Errors by the accuracy that the network has left, clean data included\n")
    print("ROC-AUC / PR-AUC, mean over levels and seeds, then networks.\n")
    print("\n".join(by_accuracy(cells)))
    print("## Clean data, correlations, chance\n")
    print("\n".join([*clean_images(cells), *correlations(cells), *below_chance(cells)]))
    print("## The mixture as a classifier, and probabilities of error\n")
    print("\n".join(mixture(cells)))
    print("## Inputs from elsewhere\n")
    print("\n".join(novelty(cells_of([folder / "ood"]))).rstrip())


if __name__ == "__main__":
    main()
