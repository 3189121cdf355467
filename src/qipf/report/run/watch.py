"""The sections of a run's page about a stream without labels: its alarms, its accuracy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean

from qipf.bench.suites import CLEAN
from qipf.calibration.accuracy import METHODS as ESTIMATORS
from qipf.errors import QIPFError
from qipf.report.charts import Axis, Chart, Choice, Mark, Series, chart_html
from qipf.report.page import Value, paragraph, table_html
from qipf.report.run.decisions import (
    ESTIMATED,
    Guess,
    Timeline,
    by_severity,
    guesses,
    timeline,
)
from qipf.report.run.rules import NOT_KEPT, halvable
from qipf.report.run.run import IDENTITY, Run, level_text, of_one_seed, unit_of
from qipf.report.style import CHANCE, RIGHT
from qipf.report.table_formats import MISSING

#: Where the drawn evidence ends, as a power of ten: beyond it nobody doubts.
MOST_EVIDENCE = 20

#: Units as they are written behind a number where there is little room.
_SIGNS = {"degrees": "°", "factor": "×"}


def timeline_html(run: Run) -> str:
    """The monitor's evidence along streams that start clean and are then spoilt."""
    lines = {
        (network, corruption): line
        for network in run.networks
        for corruption in run.corruptions(network)
        if (line := _watched(run, network, corruption)) is not None
    }
    if not lines:
        return paragraph(NOT_KEPT + " It also needs the method qipf, and a corruption.")
    alpha = next(iter(lines.values())).alpha
    intro = (
        "Would anybody notice, without labels? A monitor (qipf.ShiftMonitor) that knows half of "
        "the clean test predictions watches the others, first as they are, then spoilt more and "
        "more. It bets against “nothing has changed”; what it has won is the evidence, and at "
        f"{1 / alpha:,.0f} to 1 it raises the alarm. On clean data it would ever do so with "
        f"probability {alpha:g} at most, however long the stream."
    )
    charts: dict[tuple[str, ...], Chart] = {
        key: _timeline_chart(*key, line) for key, line in lines.items()
    }
    choices = [
        Choice("Network", {network: network for network, _ in lines}),
        Choice("Corruption", {corruption: corruption for _, corruption in lines}),
    ]
    chart = chart_html(
        charts,
        alt="Evidence of a shift after every few predictions; the table below says when each "
        "alarm came.",
        caption="Thin lines show where a level begins. Evidence beyond "
        f"10 to the power of {MOST_EVIDENCE} leaves the chart. One stream in one random order: "
        "another order gives another delay.",
        choices=choices,
        print_all=True,
    )
    return paragraph(intro + of_one_seed(run)) + chart + _alarms_table(lines)


def _watched(run: Run, network: str, corruption: str) -> Timeline | None:
    clean = halvable(run, network)
    try:
        kept = run.scores(network, corruption)
    except QIPFError:
        return None  # not measured yet
    levels = [level for level in by_severity(corruption, kept) if "qipf" in kept[level][0]]
    if clean is None or "qipf" not in clean or not levels:
        return None
    return timeline(clean["qipf"], {level: kept[level][0]["qipf"] for level in levels})


def _timeline_chart(network: str, corruption: str, line: Timeline) -> Chart:
    needed = -math.log10(line.alpha)
    sign = _SIGNS.get(unit_of(corruption), "")
    marks = [Mark(0, "clean")]
    marks += [Mark(before, f"{level:g}{sign}") for before, level in line.starts]
    if line.alarm_at is not None:
        marks.append(Mark(line.alarm_at, "alarm", strong=True))
    ends = [line.seen[0], line.seen[-1]]
    return Chart(
        f"{network}, {corruption}: {_outcome(line)}",
        Axis("predictions seen", 0),
        Axis("evidence (power of ten)", min(-1.5, *line.evidence), MOST_EVIDENCE),
        [
            Series("qipf", line.seen, line.evidence),
            Series("alarm level", ends, [needed, needed], CHANCE, fixed=True),
        ],
        markers=False,
        marks=marks,
    )


def _outcome(line: Timeline) -> str:
    if line.delay is None:
        return "no alarm"
    if line.delay <= 0:
        return f"false alarm at prediction {line.alarm_at:,}"
    return f"alarm after {line.delay:,} spoilt prediction{'s' * (line.delay > 1)}"


def _alarms_table(lines: dict[tuple[str, str], Timeline]) -> str:
    rows: list[list[Value | str]] = []
    for (network, corruption), line in lines.items():
        level = line.alarm_level
        after = MISSING if line.delay is None else f"{line.delay:,}"
        rows.append(
            [
                f"{network}, {corruption}",
                Value(f"{line.clean:,}", line.clean),
                Value(after, line.delay, note="false alarm" * ((line.delay or 1) <= 0)),
                Value(MISSING) if level is None else Value(level_text(corruption, level), level),
                Value(MISSING if line.since is None else f"{line.since:,}", line.since),
            ]
        )
    header = [
        "stream", "clean predictions", "spoilt until the alarm", "level then", "seems changed from",
    ]  # fmt: skip
    return table_html(header, rows, "When each alarm came; predictions are counted from 1.")


def accuracy_html(run: Run) -> str:
    """Estimated against true accuracy, by corruption and level."""
    found = {
        (network, way): list(guesses(run, network, way))
        for network in run.networks
        if halvable(run, network) is not None
        for way in ESTIMATORS
    }
    names = [
        name for name in ESTIMATED if any(name in g.told for own in found.values() for g in own)
    ]
    charts: dict[tuple[str, ...], Chart] = {
        (network, corruption, way): _accuracy_chart(network, corruption, own)
        for (network, way), own in found.items()
        for corruption in dict.fromkeys(g.corruption for g in own if g.corruption != CLEAN)
    }
    if not charts or not names:
        return paragraph(NOT_KEPT + " It also needs a corruption, and qipf or softmax.")
    intro = (
        "How many of a stream's predictions are right, without a single label? The estimate "
        "(qipf.estimate_accuracy) learns from half of the clean test predictions how doubt goes "
        "with error, and is asked about images of the other half, clean and spoilt."
    )
    choices = [
        Choice("Network", {network: network for network, _, _ in charts}),
        Choice("Corruption", {corruption: corruption for _, corruption, _ in charts}),
        Choice("Estimator", {way: way for way in ESTIMATORS}),
    ]
    chart = chart_html(
        charts,
        alt="True accuracy, and what is estimated from each score without labels; the table below "
        "gives the mean absolute errors.",
        caption="An estimate above the true accuracy promises too much. The dotted line is what "
        "one believes who does not look: the accuracy on clean images.",
        choices=choices,
    )
    return (
        paragraph(intro + of_one_seed(run))
        + paragraph(_reading(found, names))
        + chart
        + _errors_table(found, names)
    )


def _accuracy_chart(network: str, corruption: str, own: Sequence[Guess]) -> Chart:
    unmoved = IDENTITY.get(unit_of(corruption))
    points = {g.level: g for g in own if g.corruption == corruption}
    if unmoved is not None:
        points[unmoved] = next(g for g in own if g.corruption == CLEAN)
    levels = sorted(points)
    series = [Series("true accuracy", levels, [points[x].truth for x in levels], RIGHT)]
    for name in ESTIMATED:
        told = [points[x].told.get(name) for x in levels]
        if any(told):
            values = [math.nan if guess is None else guess.accuracy for guess in told]
            series.append(Series(name, levels, values))
    assumed = [points[x].assumed for x in levels]
    series.append(Series("clean accuracy", levels, assumed, CHANCE, fixed=True))
    unit = unit_of(corruption)
    x = Axis(f"{corruption} ({unit})" if unit else corruption, ticks=levels, log=unit == "factor")
    return Chart(f"{network}, {corruption}", x, Axis("accuracy", 0, 1), series)


def _reading(found: dict[tuple[str, str], list[Guess]], names: Sequence[str]) -> str:
    """How far off the estimates are, and where most."""
    spoilt = [
        (network, guess)
        for (network, way), own in found.items()
        for guess in own
        if way == ESTIMATORS[0] and guess.corruption != CLEAN
    ]
    every = [guess for _, guess in spoilt]
    parts = [f"{100 * _error(every, name):.1f} points by {name}" for name in names]
    network, worst = max(
        (each for each in spoilt if names[0] in each[1].told),
        key=lambda each: abs(each[1].told[names[0]].accuracy - each[1].truth),
    )
    return (
        f"Over {len(every)} spoilt levels the estimate (“{ESTIMATORS[0]}”) is off by "
        f"{' and '.join(parts)} on average; who takes the clean accuracy for granted is off by "
        f"{100 * _assumed_error(every):.1f}. Where a network errs without doubt, no estimate made "
        f"from doubt can see it: at worst {names[0]} says "
        f"{worst.told[names[0]].accuracy:.1%} where {worst.truth:.1%} are right ({network}, "
        f"{worst.corruption}, {level_text(worst.corruption, worst.level)})."
    )


def _errors_table(found: dict[tuple[str, str], list[Guess]], names: Sequence[str]) -> str:
    networks = list(dict.fromkeys(network for network, _ in found))
    ways = [(name, way) for way in ESTIMATORS for name in names]
    rows = [_errors_row(found, [network], ways, network) for network in networks]
    foot = [_errors_row(found, networks, ways, "all")] if len(networks) > 1 else []
    header = ["network", *(f"{name}, {way}" for name, way in ways), "clean assumed"]
    caption = (
        "Mean absolute error of the accuracy over all spoilt levels, in percentage points; below "
        "it, in how many of them the 95 % interval holds the true accuracy. The interval is made "
        "for data like the held-out half, which these are not."
    )
    return table_html(header, rows, caption, foot)


def _errors_row(
    found: dict[tuple[str, str], list[Guess]],
    networks: Sequence[str],
    ways: Sequence[tuple[str, str]],
    label: str,
) -> list[Value | str]:
    row: list[Value | str] = [label]
    for name, way in ways:
        spoilt = [g for n in networks for g in found[n, way] if g.corruption != CLEAN]
        told = [(g.told[name], g.truth) for g in spoilt if name in g.told]
        if not told:
            row.append(Value(MISSING))
            continue
        held = sum(guess.low <= truth <= guess.high for guess, truth in told)
        error = _error(spoilt, name)
        row.append(Value(f"{100 * error:.1f}", error, note=f"holds in {held} of {len(told)}"))
    every = [g for n in networks for g in found[n, ESTIMATORS[0]] if g.corruption != CLEAN]
    error = _assumed_error(every)
    return [*row, Value(f"{100 * error:.1f}", error)]


def _error(spoilt: Iterable[Guess], name: str) -> float:
    return fmean(abs(g.told[name].accuracy - g.truth) for g in spoilt if name in g.told)


def _assumed_error(spoilt: Iterable[Guess]) -> float:
    return fmean(abs(g.assumed - g.truth) for g in spoilt)
