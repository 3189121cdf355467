"""Levels of corruptions: their units, their order, and how they are written."""

import math
from collections.abc import Iterable

from qipf.bench.corruptions import CORRUPTIONS
from qipf.bench.suites import CLEAN
from qipf.report.charts import Axis

#: By unit: the level at which the images stay unchanged, and the symbol in charts.
UNITS = {"degrees": (0.0, "°"), "factor": (1.0, "×")}


def unit_of(corruption: str) -> str:
    """The unit of a corruption's level; empty for a corruption that is not registered."""
    return CORRUPTIONS[corruption].unit if corruption in CORRUPTIONS else ""


def identity_of(corruption: str) -> float | None:
    """The level at which the corruption leaves the images unchanged, if it is known."""
    return UNITS.get(unit_of(corruption), (None, ""))[0]


def level_text(corruption: str, level: float) -> str:
    """A level with its unit.

    >>> level_text("rotation", 30.0), level_text("zoom", 0.5), level_text("none", 0.0)
    ('30 degrees', 'factor 0.5', 'clean')
    """
    if corruption == CLEAN:
        return "clean"
    unit = unit_of(corruption)
    return f"factor {level:g}" if unit == "factor" else f"{level:g} {unit}".strip()


def condition_text(corruption: str, level: float) -> str:
    """A corruption and its level."""
    text = level_text(corruption, level)
    return text if corruption == CLEAN else f"{corruption}, {text}"


def by_severity(corruption: str, levels: Iterable[float]) -> list[float]:
    """Levels from the mildest to the strongest; half and double are equally strong.

    >>> by_severity("zoom", [0.4, 0.5, 0.8, 1.25, 2.5])
    [0.8, 1.25, 0.5, 0.4, 2.5]
    """

    def severity(level: float) -> float:
        if unit_of(corruption) == "factor":
            return round(abs(math.log(level)), 9) if level > 0 else math.inf
        return abs(level - (identity_of(corruption) or 0.0))

    return sorted(levels, key=lambda level: (severity(level), level))


def severity_axis(corruption: str, levels: Iterable[float]) -> Axis:
    """An axis with a tick at each level; logarithmic for factors."""
    unit = unit_of(corruption)
    label = f"{corruption} ({unit})" if unit else corruption
    return Axis(label, ticks=tuple(levels), log=unit == "factor")
