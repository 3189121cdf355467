"""What the paper says of its Figures 2 to 4, held against ours, for each constant of the kernel.

    python benchmarks/figures.py RUN --data DATA > results/paper/figures.md

RUN is a folder of `qipf bench run --suite paper`, with its scores and networks. Figure 2 is the
sine wave, Figure 3 MNIST LeNet under rotation (its parts a to d at 270 degrees), Figure 4 VGG-3
under rotation and shear. Single predictions are those of the network's lowest seed; curves are
means over the seeds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from paper_tables import CONVENTIONS, RIVALS, table

from qipf.bench.suites import CLEAN, CLEAN_LEVEL
from qipf.metrics.error_detection import TITLES, roc_auc
from qipf.reporting.charts import histogram_chart
from qipf.reporting.figures.field import run_field
from qipf.reporting.figures.sine import BANDWIDTHS, ORDERS, SineField, sine_field
from qipf.reporting.run.results import Run
from qipf.reporting.run.trained import TrainedNetwork

NETWORK, CORRUPTION, LEVEL = "mnist_lenet", "rotation", 270.0

#: Constants of the kernel, and the rows of the tables with them.
KERNELS = {"peak": "qipf", "density": "qipf_normalized", "standard": "qipf_standardized"}

#: The metrics of the paper's figures, as its authors compute them.
METRICS = ("roc_auc", "pr_auc_trapezoid", "point_biserial")

#: The tail: where the field is less dense than at all but this share of clean test predictions.
TAIL = 0.05

#: Bars of the histograms of places, as in the figure.
BARS = 60

#: Two areas that differ by less are not "markedly" different.
MARKED = 0.01


class Verdict(NamedTuple):
    """Whether a sentence holds: yes, on average, in part or no; and the numbers."""

    holds: str
    numbers: str

    def __str__(self) -> str:
        return f"**{self.holds}**: {self.numbers}"


def yes(holds: bool) -> str:
    return "yes" if holds else "no"


# ---------------------------------------------------------------------------------- Figure 2


def maxima(values: np.ndarray) -> np.ndarray:
    """Indices of local maxima inside the line."""
    return np.flatnonzero((values[1:-1] > values[:-2]) & (values[1:-1] >= values[2:])) + 1


def peaks_near_the_mean(field: SineField, orders: Sequence[int]) -> list[int]:
    """Orders with a local maximum in |x| < 0.5 of at least a tenth of their height."""
    return [
        order
        for order, mode in zip(orders, field.modes.T, strict=True)
        if any(abs(field.places[i]) < 0.5 and mode[i] > 0.1 * mode.max() for i in maxima(mode))
    ]


def sine_sentences(kernel: str, orders: Sequence[int]) -> dict[str, Verdict]:
    """The sentences on the modes of the sine wave, with these orders and softening 0.1."""
    fields = {width: sine_field(width, kernel, orders) for width in BANDWIDTHS}
    tops = {w: [abs(float(f.places[m.argmax()])) for m in f.modes.T] for w, f in fields.items()}
    dense = {w: abs(float(f.places[f.density.argmax()])) for w, f in fields.items()}
    near = [abs(tops[w][0] - dense[w]) < 1.1 * w for w in BANDWIDTHS]
    outward = [bool((np.diff(tops[w]) > 0).all()) for w in BANDWIDTHS]
    middle = {w: peaks_near_the_mean(f, orders) for w, f in fields.items()}
    highest = {w: f.modes.max(0) * (1 - 1e-9) for w, f in fields.items()}
    edge = {w: int((f.modes[-1] >= highest[w]).sum()) for w, f in fields.items()}

    def at(values: Mapping[float, object]) -> str:
        return "; ".join(f"width {w:g}: {values[w]}" for w in BANDWIDTHS)

    lowest = {w: f"{tops[w][0]:.2f}, density's peak {dense[w]:.2f}" for w in BANDWIDTHS}
    all_tops = {w: " ".join(f"{top:.2f}" for top in tops[w]) for w in BANDWIDTHS}
    orders_there = {w: ", ".join(map(str, middle[w])) or "none" for w in BANDWIDTHS}
    return {
        "lower orders peak in the vicinity of the density's peaks": Verdict(
            yes(all(near)), f"lowest order peaks at ± ({at(lowest)})"
        ),
        "higher orders peak successively further out in the tails": Verdict(
            yes(all(outward)) if any(outward) == all(outward) else "in part",
            f"peaks at ± ({at(all_tops)})",
        ),
        "for the narrower kernels some middle orders also peak near the mean": Verdict(
            yes(bool(middle[0.15]) and bool(middle[0.3])), f"orders that do: {at(orders_there)}"
        ),
        "with the widest kernel no mode peaks near the mean": Verdict(
            yes(not middle[0.5]), f"orders that do at width 0.5: {orders_there[0.5]}"
        ),
        "far outside, the modes say less than the potential, which grows on": Verdict(
            yes(not any(edge.values())),
            f"modes that are highest at the end of the line ({at(edge)}) of {len(orders)}",
        ),
    }


def sine_field_sentences() -> list[list[object]]:
    """The sentences on density and potential, which are the same under every constant."""
    rows: list[list[object]] = []
    fields = {width: sine_field(width) for width in BANDWIDTHS}
    middle = len(fields[0.15].places) // 2
    share = {w: f.density[middle] / f.density.max() for w, f in fields.items()}
    two = all(len(maxima(fields[w].density)) == 2 for w in (0.15, 0.3))
    text = "density at 0 as a share of its maximum: " + ", ".join(
        f"{share[w]:.2f} (width {w:g})" for w in BANDWIDTHS
    )
    rows.append(["the density has two peaks where the samples are densest", yes(two), text])
    rows.append(
        ["the widest kernel lumps both peaks into one cluster", yes(share[0.5] > 0.97), text]
    )
    lows, valley, rising = [], [], []
    for width in (0.15, 0.3):
        field = fields[width]
        right = field.places > 0
        lowest = field.places[right][field.potential[right].argmin()]
        dense = field.places[right][field.density[right].argmax()]
        lows.append(f"lowest at {lowest:.2f}, densest at {dense:.2f} (width {width:g})")
        valley.append(field.potential[middle] > field.potential[right].min())
    for field in fields.values():
        rising.append(bool((np.diff(field.potential[field.places >= 1]) > 0).all()))
    rows.append(
        ["the potential is lowest at the two peaks and higher between them", yes(all(valley)),
         "; ".join(lows)]
    )  # fmt: skip
    rows.append(
        ["the potential grows from the tails outwards: it knows what lies outside the samples",
         yes(all(rising)), "rises at every place beyond 1, all three widths"]
    )  # fmt: skip
    return rows


# ---------------------------------------------------------------------------------- Figure 3a


class Places(NamedTuple):
    """Log densities and modes of rotated predictions in the field of one kernel."""

    clean: np.ndarray  # (n,) log densities of clean test predictions
    rotated: np.ndarray  # (n,)
    modes: np.ndarray  # (n, orders)
    wrong: np.ndarray  # (n,)

    @property
    def tail(self) -> np.ndarray:  # (n,)
        """Which rotated predictions lie in the tail."""
        return self.rotated < np.quantile(self.clean, TAIL)

    def areas(self) -> dict[str, float]:
        """ROC-AUC of error detection by density, by each mode and by their mean."""
        scores = {"minus log density": -self.rotated}
        scores |= {f"mode {k + 1}": mode for k, mode in enumerate(self.modes.T)}
        scores |= {"their mean": self.modes.mean(1)}
        return {name: roc_auc(values, self.wrong) for name, values in scores.items()}


def places(trained: TrainedNetwork, method: str) -> Places:
    rotated, clean = trained.predict(CORRUPTION, LEVEL), trained.predict(CLEAN, CLEAN_LEVEL)
    field = trained.field_of(method)
    logits = rotated.logits.numpy()
    return Places(
        field.log_density(clean.logits.numpy()),
        field.log_density(logits),
        field.modes(logits),
        rotated.predicted.numpy() != trained.labels,
    )


def field_sentences(trained: TrainedNetwork, kernel: str) -> dict[str, Verdict]:
    """The sentences on Figure 3a."""
    at = places(trained, KERNELS[kernel])
    tail, wrong = at.tail, at.wrong
    areas = at.areas()
    modes = ", ".join(f"{name} {area:.3f}" for name, area in areas.items())
    gain = areas["their mean"] - areas["minus log density"]
    drawn = run_field(trained, CORRUPTION, LEVEL, kernel)
    edges = np.linspace(drawn.places[0], drawn.places[-1], BARS + 1)
    first, levels = drawn.modes[:, 0], {}
    for name, tested in (("right", drawn.right), ("wrong", drawn.wrong)):
        counts = np.histogram(tested, edges)[0]
        place = float((edges[:-1] + edges[1:])[counts.argmax()] / 2)
        levels[name] = float(np.interp(place, drawn.places, first))
    return {
        "rotated predictions lie in the tail of the field": Verdict(
            yes(tail.mean() > 0.5),
            f"{tail.mean():.1%} lie where {TAIL:.0%} of the clean ones lie; median log density "
            f"{np.median(at.rotated):.2f}, clean {np.median(at.clean):.2f}",
        ),
        "wrong predictions lie further out than correct ones": Verdict(
            yes(np.median(at.rotated[wrong]) < np.median(at.rotated[~wrong])),
            f"in the tail: {tail[wrong].mean():.1%} of the wrong, {tail[~wrong].mean():.1%} of the "
            "correct ones",
        ),
        "the modes separate them markedly better than the density": Verdict(
            yes(gain > MARKED), f"ROC-AUC by {modes}"
        ),
        "the first mode peaks at the density peak of wrong predictions, and is low at that of "
        "correct ones": Verdict(
            yes(levels["wrong"] > 0.8 and levels["right"] < 0.5),
            f"mode 1 has {levels['wrong']:.2f} of its maximum at the former and "
            f"{levels['right']:.2f} at the latter",
        ),
    }


# ----------------------------------------------------------------------- Figures 3b to 3g, and 4


def rank(values: Mapping[str, float], field: str) -> tuple[int, str]:
    """The field's place by falling values, and the best rival as text."""
    order = sorted(values, key=lambda name: -values[name])
    rival = next(name for name in order if name != field)
    return order.index(field) + 1, f"{rival} {values[rival]:.3f}"


def histogram_sentence(run: Run, field: str, suffix: str) -> Verdict:
    scores, wrong = run.scores(NETWORK, CORRUPTION)[LEVEL]
    apart, overlap = {}, {}
    for name in (*(rival + suffix for rival in RIVALS), field):
        right, error = (np.asarray(s.y) for s in histogram_chart(scores[name], wrong, name).series)
        apart[name] = abs(int(right.argmax()) - int(error.argmax())) / len(right)
        overlap[name] = float(np.minimum(right, error).sum())
    most = max(share for name, share in apart.items() if name != field)
    least = min(overlap, key=lambda name: overlap[name])
    return Verdict(
        yes(apart[field] > most),
        f"{apart[field]:.0%} of the axis apart, rivals up to {most:.0%}; histograms overlap by "
        f"{overlap[field]:.1%} ({least} {overlap[least]:.1%})",
    )


def area_sentence(run: Run, field: str, suffix: str) -> Verdict:
    ranks, texts = [], []
    for metric in METRICS[:2]:
        names = (*(rival + suffix for rival in RIVALS), field)
        values = {name: run.curve(NETWORK, CORRUPTION, name, metric)[LEVEL] for name in names}
        place, rival = rank(values, field)
        ranks.append(place)
        texts.append(f"{TITLES[metric]} {values[field]:.3f}, place {place} of 6 ({rival})")
    holds = {2: "yes", 1: "in part", 0: "no"}[ranks.count(1)]
    return Verdict(holds, "; ".join(texts))


def curve_sentence(
    run: Run, network: str, corruption: str, metrics: Sequence[str], field: str, suffix: str
) -> Verdict:
    """Yes: first in the mean and at most levels, by every metric; on average: in the mean only."""
    verdicts, texts = [], []
    for metric in metrics:
        values = {}
        for name in (*(rival + suffix for rival in RIVALS), field):
            at = run.curve(network, corruption, name, metric)
            values[name] = np.array([at[k] for k in run.levels(network, corruption)])
        best = int((values[field] == np.max(list(values.values()), axis=0)).sum())
        means = {name: float(each.mean()) for name, each in values.items()}
        place, rival = rank(means, field)
        levels = len(values[field])
        verdicts.append("no" if place > 1 else "yes" if 2 * best > levels else "on average")
        texts.append(
            f"{TITLES[metric]} best at {best} of {levels} levels, mean {means[field]:.3f}, place "
            f"{place} ({rival})"
        )
    single = verdicts[0] if len(set(verdicts)) == 1 else "in part"
    return Verdict(single, "; ".join(texts))


CURVES = (
    ("3e", "qipf has the best ROC-AUC over the rotations", "mnist_lenet", "rotation", METRICS[:1]),
    ("3f", "qipf has the best PR-AUC over the rotations", "mnist_lenet", "rotation", METRICS[1:2]),
    ("3g", "qipf has the best correlation with the errors", "mnist_lenet", "rotation", METRICS[2:]),
    ("4, rotation", "on VGG-3 qipf is clearly better in all three metrics", "cifar10_vgg3",
     "rotation", METRICS),
    ("4, shear", "the same under shear", "cifar10_vgg3", "shear", METRICS),
)  # fmt: skip


def rival_sentences(run: Run, kernel: str) -> dict[tuple[str, str], dict[str, Verdict]]:
    """Verdicts by (figure, sentence), then by convention."""
    field = KERNELS[kernel]
    sentences: dict[tuple[str, str], dict[str, Verdict]] = {}
    for suffix, convention in CONVENTIONS.items():
        found = {
            ("3b", "the most frequent scores of correct and of wrong predictions are further apart "
             "for qipf than for any other method"): histogram_sentence(run, field, suffix),
            ("3c, 3d", f"at {LEVEL:g} degrees qipf has the largest areas under both curves"):
             area_sentence(run, field, suffix),
        }  # fmt: skip
        for figure, text, network, corruption, metrics in CURVES:
            found[figure, text] = curve_sentence(run, network, corruption, metrics, field, suffix)
        for key, verdict in found.items():
            sentences.setdefault(key, {})[convention] = verdict
    return sentences


# ---------------------------------------------------------------------------------- the page


def counted(verdicts: Sequence[Verdict]) -> str:
    """How many sentences hold."""
    kinds = [verdict.holds for verdict in verdicts]
    return ", ".join(
        f"{kinds.count(kind)} {kind}" for kind in ("yes", "on average", "in part", "no")
    )


def sine_page(orders: Sequence[int]) -> Iterator[str]:
    found = {kernel: sine_sentences(kernel, orders) for kernel in KERNELS}
    rows = [[text, *(found[kernel][text] for kernel in KERNELS)] for text in found["peak"]]
    rows.append(["**sum**", *(counted(list(found[kernel].values())) for kernel in KERNELS)])
    yield table(["what the paper says", *KERNELS], rows)


def report(run: Run, data: Path | None) -> Iterator[str]:
    yield (
        "# What the paper says of its figures, and what ours show\n\n"
        "Written by `benchmarks/figures.py`. The kernel's constant is `peak`, `density` or "
        "`standard` (`QIPF(normalization=...)`).\n\n"
        "## Figure 2: the sine wave\n\nDensity and potential do not depend on the constant:\n\n"
    )
    rows = sine_field_sentences()
    yield table(["what the paper says", "holds?", "ours"], rows)
    yield (
        "\nThe modes, as drawn: orders 2, 4, …, 16 with softening 0.1. The paper speaks of the "
        "first eight modes and does not say how it treats their poles.\n\n"
    )
    yield from sine_page(ORDERS)
    yield "\nThe same with the first eight orders, 1 to 8, and softening 0.1:\n\n"
    yield from sine_page(range(1, 9))
    trained = TrainedNetwork(run, NETWORK, data)
    seeds = ", ".join(map(str, run.seeds))
    yield (
        f"\n## Figures 3 and 4\n\nSingle predictions: {NETWORK}, {CORRUPTION} {LEVEL:g}, seed "
        f"{run.seed(NETWORK)}. Curves and areas: seeds {seeds}. The rivals are scored by the "
        "standard deviation of the class that the network predicts, and by that of the class that "
        "their own mean predicts (own class). PR-AUC by trapezoids.\n\n"
    )
    by_field = {kernel: field_sentences(trained, kernel) for kernel in KERNELS}
    by_rivals = {kernel: rival_sentences(run, kernel) for kernel in KERNELS}
    lines: list[list[object]] = [
        ["3a", text, "", *(by_field[kernel][text] for kernel in KERNELS)]
        for text in by_field["peak"]
    ]
    for key in by_rivals["peak"]:
        for convention in CONVENTIONS.values():
            cells = [by_rivals[kernel][key][convention] for kernel in KERNELS]
            lines.append([*key, convention, *cells])
    for convention in CONVENTIONS.values():
        sums = [
            counted([*by_field[k].values(), *(v[convention] for v in by_rivals[k].values())])
            for k in KERNELS
        ]
        lines.append(["", "**sum** (with the four of 3a)", convention, *sums])
    yield table(["figure", "what the paper says", "rivals scored by", *KERNELS], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, nargs="+")
    parser.add_argument("--data", type=Path)
    options = parser.parse_args()
    sys.stdout.writelines(report(Run(*options.run), options.data))


if __name__ == "__main__":
    main()
