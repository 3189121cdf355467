r"""The field of a model's predictions: the paper's Figure 3 (a), for any run.

Logits have as many dimensions as there are classes; a picture has one to spare. So the logits are
projected on the first principal axis of the field's centres, :math:`t = (x - \bar c) \cdot u`,
and what is drawn is the field of these numbers: a one-dimensional `QIPF` with Silverman's width
over the projected centres.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qipf.field.estimator import QIPF
from qipf.io.atomic import checked_output
from qipf.report.figures.drawing import DPI, KINDS, drawing, graded
from qipf.report.figures.severity import draw_bars
from qipf.report.run.run import Run, level_text
from qipf.report.run.trained import TrainedNetwork
from qipf.report.style import RIGHT, WRONG

#: Rounds off the poles of the modes, as in the field of the sine wave.
SOFTENING = 0.1

PLACES = 801

#: Modes are told apart by shade and by dash.
DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (6, 2, 1.5, 2)), (0, (3, 1.5)))


@dataclass(frozen=True)
class Projection:
    """The first principal axis of some points, and its share of their variance."""

    mean: NDArray  # (d,)
    axis: NDArray  # (d,) of length 1
    share: float

    def __call__(self, logits: NDArray) -> NDArray:  # (n, d) -> (n,)
        """Where points lie along the axis."""
        return (np.asarray(logits, np.float64) - self.mean) @ self.axis


def principal_axis(points: NDArray) -> Projection:  # (n, d)
    """The direction along which points vary most; its largest component is positive.

    >>> axis = principal_axis(np.array([[0.0, 0.0], [3.0, 0.0], [6.0, 0.0]]))
    >>> axis.axis.tolist(), axis.share
    ([1.0, 0.0], 1.0)
    """
    points = np.asarray(points, np.float64)
    mean = points.mean(0)
    _, lengths, axes = np.linalg.svd(points - mean, full_matrices=False)
    first = axes[0] * np.sign(axes[0][np.abs(axes[0]).argmax()])  # SVD leaves the sign open
    return Projection(mean, first, float(lengths[0] ** 2 / (lengths**2).sum()))


@dataclass(frozen=True)
class ProjectedField:
    """What the figure shows."""

    projection: Projection
    orders: tuple[int, ...]
    places: NDArray  # (P,)
    density: NDArray  # (P,) the IPF, as share of its maximum
    modes: NDArray  # (P, len(orders)) each as share of its maximum
    uncertainty: NDArray  # (P,) the modes' mean, as share of its maximum
    right: NDArray  # (n_right,) places of right test predictions
    wrong: NDArray  # (n_wrong,)


def projected_field(trained: TrainedNetwork, corruption: str, level: float) -> ProjectedField:
    """The field of the training predictions along their first axis, and where test ones fall."""
    projection = principal_axis(trained.field.centers_)
    centers = projection(trained.field.centers_)
    orders = tuple(trained.field.orders)
    line = QIPF(orders=orders, bandwidth="silverman", softening=SOFTENING).fit(centers[:, None])
    said = trained.predict(corruption, level)
    tested = projection(said.logits)
    wrong = said.predicted != trained.labels
    ends = np.quantile(np.r_[centers, tested], [0.001, 0.999])
    air = 0.08 * (ends[1] - ends[0])
    places = np.linspace(ends[0] - air, ends[1] + air, PLACES)
    density = np.exp(line.log_density(places[:, None]))
    modes = line.modes(places[:, None])
    return ProjectedField(
        projection,
        orders,
        places,
        density / density.max(),
        modes / modes.max(0),
        modes.mean(1) / modes.mean(1).max(),
        tested[~wrong],
        tested[wrong],
    )


def draw_field(
    folder: Path | str,
    path: Path,
    *,
    network: str | None = None,
    corruption: str,
    level: float,
    data: Path | str | None = None,
    seed: int | None = None,
    dpi: int = DPI,
) -> ProjectedField:
    """Draw the field of the training predictions, where test predictions fall, and the modes.

    What was drawn is returned.
    """
    checked_output(path, KINDS)  # before the work, not after
    run = Run(folder)
    chosen = run.network(network)
    level = run.level(chosen, run.corruption(chosen, corruption), level)
    field = projected_field(TrainedNetwork(run, chosen, data, seed), corruption, level)
    with drawing(path, width=6.6, height=6.2, rows=2, sharex=True, dpi=dpi) as axes:
        _draw_density(axes[0][0], field)
        _draw_modes(axes[1][0], field)
        figure = axes[0][0].figure
        where = level_text(corruption, level)
        title = where if where == "clean" else f"{corruption}, {where}"
        figure.suptitle(f"{chosen}, {title}: the field of its predictions", fontsize=11)
        figure.supxlabel(
            "Logits are projected on the first principal axis of the training logits "
            f"({field.projection.share:.0%} of their variance);\ndashed: density (IPF) of the "
            "training predictions there. Field and modes are those of the projected\n"
            f"numbers, Silverman's width, softening {SOFTENING:g}; curves and histograms are "
            "scaled to a maximum of 1.",
            fontsize=7,
        )
    return field


def _draw_density(axis: Any, field: ProjectedField) -> None:
    edges = np.linspace(field.places[0], field.places[-1], 61)
    for name, tested, look in (("right", field.right, RIGHT), ("wrong", field.wrong, WRONG)):
        counts = np.histogram(tested, edges)[0]
        label = f"{name} test predictions ({len(tested):,})"
        draw_bars(axis, counts / max(1, counts.max()), edges, look, label)
    axis.plot(field.places, field.density, "--", color="black", label="IPF of training predictions")
    axis.set_ylabel("share of its maximum")
    axis.set_ylim(0, 1.35)
    axis.legend(loc="upper center", fontsize=8, ncols=2)


def _draw_modes(axis: Any, field: ProjectedField) -> None:
    last = max(1, len(field.orders) - 1)
    for index, (mode, order) in enumerate(zip(field.modes.T, field.orders, strict=True)):
        style = {"color": graded(0.85 * index / last), "linestyle": DASHES[index % len(DASHES)]}
        axis.plot(field.places, mode, label=f"mode {order}", **style)
    axis.plot(field.places, field.uncertainty, ":", color="black", label="uncertainty, their mean")
    axis.set_ylabel("mode, share of its maximum")
    axis.set_xlabel("place along the axis")
    axis.legend(fontsize=8, ncols=3, loc="upper center")
    axis.set_ylim(top=1.35)
