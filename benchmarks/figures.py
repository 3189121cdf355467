"""The numbers behind our Figures 3 and 4, to be held against what the paper says of its own.

    python benchmarks/figures.py RUN --data DATA > results/paper/figures.md

RUN is a folder of `qipf bench run --suite paper`, with its scores and networks. Figure 3 is MNIST
LeNet under rotation (its parts a to d at 270 degrees), Figure 4 VGG-3 under rotation and shear.
Single predictions are those of the network's lowest seed; curves are means over the seeds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from qipf.bench.suites import CLEAN, CLEAN_LEVEL, PAPER_METHODS
from qipf.metrics.error_detection import roc_auc
from qipf.report.charts import histogram_chart
from qipf.report.figures.field import ProjectedField, projected_field
from qipf.report.run.results import Run
from qipf.report.run.trained import TrainedNetwork
from qipf.report.tables import PAPER_METRICS, TITLES

NETWORK, CORRUPTION, LEVEL = "mnist_lenet", "rotation", 270.0
CURVES = (("mnist_lenet", "rotation"), ("cifar10_vgg3", "rotation"), ("cifar10_vgg3", "shear"))

#: The tail: where the field is less dense than at all but this share of clean test predictions.
TAIL = 0.05

#: Bars of the histograms of places, as in the figure.
BARS = 60


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)


def density(trained: TrainedNetwork) -> Iterator[str]:
    """Where the predictions lie in the field of all ten logits."""
    rotated, clean = trained.predict(CORRUPTION, LEVEL), trained.predict(CLEAN, CLEAN_LEVEL)
    wrong = rotated.predicted.numpy() != trained.labels
    logs = trained.field.log_density(rotated.logits.numpy())
    usual = trained.field.log_density(clean.logits.numpy())
    edge = np.quantile(usual, TAIL)
    yield table(
        ["predictions", "number", "median log density", f"in the tail (clean: {TAIL:.0%})"],
        [
            [name, f"{len(each):,}", f"{np.median(each):.2f}", f"{(each < edge).mean():.1%}"]
            for name, each in (
                ("clean", usual),
                (f"{CORRUPTION} {LEVEL:g}", logs),
                ("of these, right", logs[~wrong]),
                ("of these, wrong", logs[wrong]),
            )
        ],
    )
    modes = trained.field.modes(rotated.logits.numpy())
    scores = {"minus log density": -logs}
    scores |= {f"mode {p}": modes[:, k] for k, p in enumerate(trained.field.orders)}
    scores |= {"uncertainty, the modes' mean": modes.mean(1)}
    yield table(
        ["told from right to wrong by", "ROC-AUC"],
        [[name, f"{roc_auc(values, wrong):.3f}"] for name, values in scores.items()],
    )


def along_the_axis(drawn: ProjectedField) -> Iterator[str]:
    """Where the first mode stands at the peaks of right and wrong predictions, as drawn."""
    edges = np.linspace(drawn.places[0], drawn.places[-1], BARS + 1)
    first = drawn.modes[:, 0]
    inner = np.flatnonzero((first[1:-1] > first[:-2]) & (first[1:-1] >= first[2:])) + 1
    peaks = drawn.places[inner]
    rows = []
    for name, tested in (("right", drawn.right), ("wrong", drawn.wrong)):
        counts = np.histogram(tested, edges)[0]
        place = float((edges[:-1] + edges[1:])[counts.argmax()] / 2)
        level = float(np.interp(place, drawn.places, first))
        nearest = float(peaks[np.abs(peaks - place).argmin()])
        cells = [np.median(tested), place, nearest, level]
        rows.append([name, *(f"{cell:.2f}" for cell in cells)])
    yield table(
        ["test predictions", "median place", "fullest bar", "nearest peak of mode 1",
         "mode 1 at the fullest bar (share of its maximum)"],
        rows,
    )  # fmt: skip


def histograms(run: Run) -> Iterator[str]:
    """How far apart the fullest bars of right and wrong predictions are, and how much overlaps."""
    scores, wrong = run.scores(NETWORK, CORRUPTION)[LEVEL]
    rows = []
    for name in PAPER_METHODS:
        right, error = (np.asarray(s.y) for s in histogram_chart(scores[name], wrong, name).series)
        apart = abs(int(right.argmax()) - int(error.argmax())) / len(right)
        rows.append([name, f"{apart:.0%}", f"{np.minimum(right, error).sum():.1%}"])
    yield table(["method", "fullest bars apart (share of the axis)", "overlap"], rows)


def areas(run: Run) -> Iterator[str]:
    """Areas under the curves at the one level, and the correlation."""
    rows = []
    for name in PAPER_METHODS:
        curves = [run.curve(NETWORK, CORRUPTION, name, metric) for metric in PAPER_METRICS]
        rows.append([name, *(f"{c[LEVEL]:.3f}" for c in curves if c)])
    yield table(["method", *(TITLES[metric] for metric in PAPER_METRICS)], rows)


def severities(run: Run) -> Iterator[str]:
    """At how many levels qipf is the best of the paper's methods, and the means over the levels."""
    rows = []
    for network, corruption in CURVES:
        for metric in PAPER_METRICS:
            values = {}
            for name in PAPER_METHODS:
                at = run.curve(network, corruption, name, metric)
                values[name] = np.array([at[k] for k in run.levels(network, corruption)])
            best = np.max(list(values.values()), axis=0)
            means = {name: float(each.mean()) for name, each in values.items()}
            ranked = sorted(means, key=lambda name: -means[name])
            first = ranked[0] if ranked[0] != "qipf" else ranked[1]
            wins = int((values["qipf"] == best).sum())
            rows.append(
                [network, corruption, TITLES[metric], f"{wins} of {len(best)}",
                 f"{means['qipf']:.3f}", f"{ranked.index('qipf') + 1} of {len(ranked)}",
                 f"{first} {means[first]:.3f}"]
            )  # fmt: skip
    yield table(
        ["network", "corruption", "metric", "qipf best at levels", "qipf, mean", "its place",
         "best rival, mean"],
        rows,
    )  # fmt: skip


def report(run: Run, data: Path | None) -> Iterator[str]:
    trained = TrainedNetwork(run, NETWORK, data)
    at = f"{NETWORK}, {CORRUPTION} {LEVEL:g}, seed {run.seed(NETWORK)}"
    seeds = ", ".join(map(str, run.seeds))
    yield "# The numbers behind Figures 3 and 4\n\nWritten by `benchmarks/figures.py`.\n"
    for title, parts in (
        (f"Figure 3a: the field of the ten logits ({at})", density(trained)),
        (
            f"Figure 3a, as drawn: along the first principal axis ({at})",
            along_the_axis(projected_field(trained, CORRUPTION, LEVEL)),
        ),
        (f"Figure 3b: histograms of uncertainty ({at})", histograms(run)),
        (f"Figures 3c and 3d: {NETWORK}, {CORRUPTION} {LEVEL:g} (seeds {seeds})", areas(run)),
        (f"Figures 3e to 3g, and 4: over all levels (seeds {seeds})", severities(run)),
    ):
        yield f"\n## {title}\n"
        for part in parts:
            yield f"\n{part}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, nargs="+")
    parser.add_argument("--data", type=Path)
    options = parser.parse_args()
    sys.stdout.writelines(report(Run(*options.run), options.data))


if __name__ == "__main__":
    main()
