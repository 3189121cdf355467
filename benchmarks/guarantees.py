"""Simulations of every guarantee of the library, on populations that are chosen to break it.

    python benchmarks/guarantees.py                            # about 50 minutes on one core
    python benchmarks/guarantees.py --draws 200 --out /tmp     # to see that it works

Each draw takes a held-out set (and a new prediction, a window or a stream) from a population, calls
the library, and asks whether what it promised is false there. Written are the share of draws in
which it is, with its exact 95 % interval (Clopper-Pearson), beside the share that is allowed:
results/guarantees.csv and, as a page, results/guarantees.md. A promise counts as broken if so many
violations, or more, have a probability of less than 5 % under the allowed share, divided by the
number of rows. The script then ends with exit code 1. With ``--only`` the rows of other promises in
the table stay.
"""

import argparse
import csv
import math
import warnings
import zlib
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
from accuracy_intervals import POPULATIONS as ACCURACIES
from accuracy_intervals import draw as draw_accuracy
from guarantee_classes import CLASSES, misses_of_classes
from guarantee_novelty import LIMITED, LONG, ODDS, STREAMS, limited, misses, pairs, peaks
from guarantee_populations import ABOVE, populations, shapes
from scipy.stats import binom, binomtest

import qipf
from qipf.calibration.accuracy import AccuracyEstimator
from qipf.monitor.martingale import Martingale
from qipf.monitor.online_p_values import OnlinePValues
from qipf.monitor.two_sample import window_statistics
from qipf.progress import progress

#: Sizes of held-out sets, risks and confidences of the accept rule: the smallest set that
#: certifies anything, and one with three starts.
RULES = ((22, 0.1, 0.9), (600, 0.05, 0.95))
COVERING = ((200, 0.8, 0.95),)
CURVES = ((100, 0.5, 0.95),)

#: Held-out scores, and shares of the p-value.
HELD_OUT, SHARES = (1, 19, 150), (0.01, 0.05, 0.2)

#: Held-out scores of the monitor beside `FEW`, its levels, and lengths of stream and window.
FEW, MONITORED, ALPHAS = 20, (1, 200, 2000), (0.01, 0.05)
STREAM, WINDOW = 200, 100

#: Held-out predictions and window of the estimated accuracy, and methods.
ACCURACY = (((100, 100), ("threshold", "isotonic")), ((1000, 5000), ("threshold",)))


class Setting(NamedTuple):
    """One simulation."""

    kind: str
    population: str
    numbers: tuple[float, ...]

    def rng(self) -> np.random.Generator:
        """Random numbers of this simulation alone."""
        return np.random.default_rng(zlib.crc32(repr(self).encode()))


class Row(NamedTuple):
    """How often a promise was false."""

    promise: str
    population: str
    setting: str
    draws: int
    violations: int
    allowed: float

    @property
    def rate(self) -> float:
        """Share of the draws."""
        return self.violations / self.draws

    def interval(self) -> tuple[float, float]:
        """Exact interval of the probability of a violation."""
        found = binomtest(self.violations, self.draws).proportion_ci(0.95, "exact")
        return float(found.low), float(found.high)

    def surprise(self) -> float:
        """Probability of so many violations, or more, if the promise is just kept."""
        return float(binom.sf(self.violations - 1, self.draws, self.allowed))


def settings() -> list[Setting]:
    """All simulations."""
    names = list(populations(0.1, 100, 0.1))
    sequences = list(shapes(np.random.default_rng(0), 1))
    return [
        *(Setting("accept", name, each) for each in RULES for name in names),
        *(Setting("cover", name, each) for each in COVERING for name in names),
        *(Setting("curve", name, each) for each in CURVES for name in names),
        *(Setting("conformal", name, (n,)) for n in HELD_OUT for name in sequences),
        *(Setting("monitor", name, (FEW,)) for name in sequences),
        *(Setting("monitor", "normal", (n,)) for n in MONITORED),
        *(
            Setting(f"accuracy {method}", name, sizes)
            for sizes, methods in ACCURACY
            for method in methods
            for name in ACCURACIES
        ),
        *(Setting("novel", name, each) for each in LIMITED for name in pairs(0.1, 0.1)),
        *(Setting("odds", name, sizes) for sizes, _ in ACCURACY for name in ODDS),
        *(Setting("both", name, LONG) for name in STREAMS),
        *(Setting("classes", name, sizes) for sizes, _ in ACCURACY for name in CLASSES),
    ]


Counts = dict[tuple[str, str, float], int]


def simulate(setting: Setting, draws: int) -> list[Row]:
    """The rows of one simulation."""
    kind, *method = setting.kind.split()
    counts = {"accept": _accept, "cover": _cover, "curve": _curve, "conformal": _conformal}
    counts |= {"monitor": _monitor, "accuracy": _accuracy}
    counts |= {"novel": _novel, "odds": _odds, "both": _both, "classes": _classes}
    # what a rule that certifies nothing says about other risks takes most of its time, and does
    # not change its threshold
    reachable = patch("qipf.calibration.accept_rule._reachable_risk", lambda *_: None)
    with reachable, warnings.catch_warnings(category=qipf.QIPFWarning, action="ignore"):
        found = counts[kind](setting, draws, *method)
    return [
        Row(promise, setting.population, setting_text, draws, int(violations), allowed)
        for (promise, setting_text, allowed), violations in found.items()
    ]


def _accept(setting: Setting, draws: int) -> Counts:
    count, risk, confidence = setting.numbers
    rng, count = setting.rng(), int(count)
    population = populations(risk, count, 1 - confidence)[setting.population]
    broken = 0
    for _ in range(draws):
        rule = qipf.accept_rule(*population.draw(count, rng), risk, confidence)
        # half of what a population exceeds its bound by: sums of rates are rounded
        broken += population.risk(rule.threshold) > risk * (1 + ABOVE / 2)
    setting_text = f"n = {count}, max_risk = {risk:g}, confidence = {confidence:g}"
    return {("accept_rule(max_risk)", setting_text, 1 - confidence): broken}


def _cover(setting: Setting, draws: int) -> Counts:
    count, coverage, confidence = setting.numbers
    rng, count = setting.rng(), int(count)
    population = populations(0.05, count, 1 - confidence)[setting.population]
    broken = 0
    for _ in range(draws):
        rule = qipf.accept_rule(
            *population.draw(count, rng), confidence=confidence, min_coverage=coverage
        )
        broken += (
            population.risk(rule.threshold) > rule.risk_bound
            or population.coverage(rule.threshold) < coverage
        )
    setting_text = f"n = {count}, min_coverage = {coverage:g}, confidence = {confidence:g}"
    return {("accept_rule(min_coverage)", setting_text, 1 - confidence): broken}


def _curve(setting: Setting, draws: int) -> Counts:
    count, place, confidence = setting.numbers
    rng, count = setting.rng(), int(count)
    population = populations(0.05, count, 1 - confidence)[setting.population]
    threshold = float(np.quantile(population.scores, place, method="lower"))
    truth, broken = population.risk(threshold), 0
    for _ in range(draws):
        curve = qipf.risk_coverage(*population.draw(count, rng), confidence)
        at = np.searchsorted(curve.thresholds, threshold, side="right") - 1
        broken += at >= 0 and not curve.low[at] <= truth <= curve.high[at]
    setting_text = f"n = {count}, one threshold, confidence = {confidence:g}"
    return {("risk_coverage", setting_text, 1 - confidence): broken}


def _conformal(setting: Setting, draws: int) -> Counts:
    count, rng = int(setting.numbers[0]), setting.rng()
    draw = shapes(rng, count + 1)[setting.population]
    found = np.empty((2, draws))
    above = np.zeros(len(SHARES), int)
    for number in range(draws):
        scores = draw()
        held_out, new = qipf.Calibration(scores[:-1]), scores[-1:]
        found[0, number] = held_out.p_values(new)[0]
        found[1, number] = held_out.p_values(new, rng.uniform(size=1))[0]
        above += [new[0] > held_out.outlier_limit(share) for share in SHARES]
    counts: Counts = {}
    for share, outliers in zip(SHARES, above, strict=True):
        setting_text = f"n = {count}, t = {share:g}"
        counts["p-value ≤ t", setting_text, share] = (found[0] <= share).sum()
        counts["smoothed p-value ≤ t", setting_text, share] = (found[1] <= share).sum()
        counts["above outlier_limit(t)", setting_text, share] = outliers
    return counts


def _monitor(setting: Setting, draws: int) -> Counts:
    count, rng = int(setting.numbers[0]), setting.rng()
    draw = shapes(rng, count + STREAM)[setting.population]
    peaks, starts = np.empty(draws), np.empty(draws)
    for seed in range(draws):
        scores = draw()
        held_out = qipf.Calibration(scores[:count])
        peaks[seed], starts[seed] = evidence(held_out, scores[count:], seed)
    counts: Counts = {}
    for alpha in ALPHAS:
        setting_text = f"n = {count}, {STREAM} predictions, alpha = {alpha:g}"
        counts["false alarm", setting_text, alpha] = (peaks >= -math.log(alpha)).sum()
        setting_text = f"n = {count}, window = {WINDOW}, p ≤ {alpha:g}"
        counts["first window", setting_text, alpha] = (starts <= alpha).sum()
    return counts


def evidence(held_out: qipf.Calibration, stream: np.ndarray, seed: int) -> tuple[float, float]:
    """Largest log evidence of a `ShiftMonitor`, and the p-value of its first window.

    By what it consists of: a verdict takes longer than these.
    """
    martingale = Martingale()
    martingale.add(*OnlinePValues(held_out, seed).add(stream), math.inf)
    return martingale.peak, window_statistics(held_out, stream[:WINDOW], 0).ks_p_value


def _accuracy(setting: Setting, draws: int, method: str) -> Counts:
    held_out, window = map(int, setting.numbers)
    rng, broken = setting.rng(), 0
    for _ in range(draws):
        estimator = AccuracyEstimator(*draw_accuracy(setting.population, held_out, rng), method)
        uncertainty, wrong = draw_accuracy(setting.population, window, rng)
        found = estimator.estimate(uncertainty, 0.95)
        broken += not found.low <= 1 - wrong.mean() <= found.high
    setting_text = f"n = {held_out}, window = {window}, {method}"
    return {("estimate_accuracy", setting_text, 0.05): broken}


def _novel(setting: Setting, draws: int) -> Counts:
    count, risk, confidence, least = setting.numbers
    population, rng = pairs(risk, least)[setting.population], setting.rng()
    broken = sum(limited(population, setting.numbers, rng) for _ in range(draws))
    setting_text = f"n = {count:g}, max_risk = {risk:g}, confidence = {confidence:g}, p > {least:g}"
    return {("accept_rule(min_novelty_p)", setting_text, 1 - confidence): broken}


def _odds(setting: Setting, draws: int) -> Counts:
    held_out, window = map(int, setting.numbers)
    rng, broken = setting.rng(), 0
    for _ in range(draws):
        broken += misses(setting.population, (held_out, window), rng)[0]
    setting_text = f"n = {held_out}, window = {window}, log_odds with novelty"
    return {("estimate_accuracy, log-odds", setting_text, 0.05): broken}


def _both(setting: Setting, draws: int) -> Counts:
    rng = setting.rng()
    found = np.array([peaks(setting.population, seed, rng) for seed in range(draws)])
    counts: Counts = {}
    for alpha in ALPHAS:
        setting_text = f"n = {LONG[0]}, {LONG[1]:,} predictions, alpha = {alpha:g}"
        for column, score in enumerate(("novelty", "both")):
            violations = (found[:, column] >= -math.log(alpha)).sum()
            counts[f"false alarm, {score}", setting_text, alpha] = violations
    return counts


def _classes(setting: Setting, draws: int) -> Counts:
    held_out, window = map(int, setting.numbers)
    rng = setting.rng()
    found = [misses_of_classes(setting.population, (held_out, window), rng) for _ in range(draws)]
    counts: Counts = {}
    for method, label_shift in found[0]:
        setting_text = f"n = {held_out}, window = {window}, {method}, label_shift = {label_shift}"
        broken = sum(each[method, label_shift] for each in found)
        counts["estimate_accuracy, classes", setting_text, 0.05] = broken
    return counts


def write(rows: list[Row], path: Path) -> None:
    """Write the table of all settings."""
    limit = 0.05 / len(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*Row._fields, "rate", "low", "high", "broken"])
        for row in rows:
            numbers = [f"{x:.5f}" for x in (row.rate, *row.interval())]
            allowed = f"{row.allowed:.4g}"
            writer.writerow([*row[:5], allowed, *numbers, int(row.surprise() < limit)])


def read(path: Path) -> list[Row]:
    """The rows of a table that was written."""
    with open(path, newline="", encoding="utf-8") as file:
        return [
            Row(*(line[name] for name in Row._fields[:3]), int(line["draws"]),
                int(line["violations"]), float(line["allowed"]))
            for line in csv.DictReader(file)
        ]  # fmt: skip


def summary(rows: list[Row]) -> list[str]:
    """Lines of a Markdown table: the setting of each promise with the most violations."""
    groups: dict[tuple[str, float], list[Row]] = {}
    order = list(dict.fromkeys(row.promise for row in rows))
    for row in rows:
        groups.setdefault((row.promise, row.allowed), []).append(row)
    lines = [
        "| promise | settings | allowed | most violations | 95 % interval | where | broken |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (promise, allowed), group in sorted(
        groups.items(), key=lambda each: order.index(each[0][0])
    ):
        worst = max(group, key=lambda row: row.rate)
        low, high = worst.interval()
        broken = sum(row.surprise() < 0.05 / len(rows) for row in group)
        lines.append(
            f"| {promise} | {len(group)} | {allowed:.3g} | {worst.rate:.4f} | {low:.4f} to "
            f"{high:.4f} | {worst.population}; {worst.setting} | {broken or 'no'} |"
        )
    return lines


def page(rows: list[Row]) -> str:
    """What was found, as Markdown."""
    draws = rows[0].draws
    names = {row.population for row in rows}
    return "\n".join(
        [
            "# Simulations of the guarantees",
            "",
            f"`python benchmarks/guarantees.py --draws {draws}`: {len(rows)} settings of "
            f"{draws:,} draws each, {len(names)} populations; all of them are in "
            "[guarantees.csv](guarantees.csv). Shown is the setting of each promise with the most "
            "violations, with the exact 95 % interval (Clopper-Pearson) of its rate. A promise is "
            "broken if so many violations have a probability below 0.05 / "
            f"{len(rows)} under the allowed rate.",
            "",
            *summary(rows),
            "",
        ]
    )


def main() -> None:
    """Run the simulations and write what they found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draws", type=int, default=20_000)
    parser.add_argument("--only", help="simulations of this kind, such as monitor")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results")
    options = parser.parse_args()
    chosen = [each for each in settings() if options.only in (None, each.kind.split()[0])]
    if not chosen:
        parser.error(f"there are no simulations of the kind {options.only}")
    with ProcessPoolExecutor(options.jobs) as pool:
        rows = pool.map(partial(simulate, draws=options.draws), chosen)
        found = [row for part in progress(rows, "simulating", len(chosen)) for row in part]
    table = options.out / "guarantees.csv"
    if options.only is not None and table.exists():
        promises = {row.promise for row in found}
        found = [row for row in read(table) if row.promise not in promises] + found
    write(found, table)
    (options.out / "guarantees.md").write_text(page(found), encoding="utf-8")
    print(page(found), end="")
    if any(row.surprise() < 0.05 / len(found) for row in found):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
