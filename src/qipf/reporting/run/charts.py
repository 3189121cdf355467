"""Charts of a benchmark run."""

import math
from collections.abc import Sequence

from qipf.bench.suites import CLEAN
from qipf.metrics.error_detection import TITLES, chance
from qipf.plots.style import CHANCE, RIGHT
from qipf.reporting.charts import Axis, Chart, Mark, Series
from qipf.reporting.run.decisions import ESTIMATED, AccuracyComparison, Timeline
from qipf.reporting.run.results import UNITS, Run, identity_of, severity_axis, unit_of

#: Upper end of the drawn evidence, as a power of ten.
MOST_EVIDENCE = 20


def severity_chart(
    run: Run, network: str, corruption: str, metric: str, methods: Sequence[str]
) -> Chart:
    """A metric of each method against severity, with the result of chance."""
    series = [
        Series(method, list(curve), list(curve.values()))
        for method in methods
        if (curve := run.curve(network, corruption, method, metric))
    ]
    errors = run.error_rate(network, corruption)
    guessed = chance(metric, errors.values())
    series.append(Series("chance", list(errors), guessed, CHANCE, fixed=True))
    axis = severity_axis(corruption, errors)
    return Chart(f"{network}, {corruption}", axis, Axis(TITLES[metric]), series)


def timeline_chart(name: str, corruption: str, line: Timeline) -> Chart:
    """A monitor's evidence after each prediction, with its levels and its alarm."""
    needed = -math.log10(line.alpha)
    symbol = UNITS.get(unit_of(corruption), (0, ""))[1]
    marks = [Mark(0, "clean")]
    marks += [Mark(before, f"{level:g}{symbol}") for before, level in line.starts]
    if line.alarm_at is not None:
        marks.append(Mark(line.alarm_at, "alarm", strong=True))
    ends = [line.seen[0], line.seen[-1]]
    return Chart(
        f"{name}: {line.outcome}",
        Axis("predictions seen", 0),
        Axis("evidence (power of ten)", min(-1.5, *line.evidence), MOST_EVIDENCE),
        [
            Series(line.score, line.seen, line.evidence),
            Series("alarm level", ends, [needed, needed], CHANCE, fixed=True),
        ],
        markers=False,
        marks=marks,
    )


def accuracy_chart(network: str, corruption: str, own: Sequence[AccuracyComparison]) -> Chart:
    """True and estimated accuracy against severity."""
    points = {each.level: each for each in own if each.corruption == corruption}
    if (identity := identity_of(corruption)) is not None:
        points[identity] = next(each for each in own if each.corruption == CLEAN)
    levels = sorted(points)
    series = [Series("true accuracy", levels, [points[x].truth for x in levels], RIGHT)]
    for name in ESTIMATED:
        if any(name in points[x].estimates for x in levels):
            values = [points[x].accuracy(name) for x in levels]
            series.append(Series(name, levels, values))
    clean = [points[x].clean_accuracy for x in levels]
    series.append(Series("clean accuracy", levels, clean, CHANCE, fixed=True))
    axis = severity_axis(corruption, levels)
    return Chart(f"{network}, {corruption}", axis, Axis("accuracy", 0, 1), series)
