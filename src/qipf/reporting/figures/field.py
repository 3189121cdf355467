r"""The field of a model's predictions: the paper's Figure 3 (a), for any run.

The logits are projected on the first principal axis of the field's centres,
:math:`t = (x - \bar c) \cdot u`, because a figure has room for one dimension. The field that is
drawn is a one-dimensional `QIPF` with Silverman's bandwidth over the projected centres.
"""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import PCA

from qipf.errors import QIPFScoreWarning
from qipf.field.estimator import QIPF
from qipf.io.atomic import checked_output
from qipf.plots.drawing import DPI, KINDS, draw_bars, drawing, graded
from qipf.plots.style import RIGHT, WRONG
from qipf.reporting.run.results import Run, condition_text
from qipf.reporting.run.trained import TrainedNetwork

#: Softening of the poles of the modes, as for the sine wave.
SOFTENING = 0.1

PLACES = 801

#: Modes differ in shade and dash.
DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (6, 2, 1.5, 2)), (0, (3, 1.5)))


@dataclass(frozen=True)
class ProjectedField:
    """The field along the first principal axis, and the test predictions there."""

    projection: PCA
    orders: tuple[int, ...]
    places: NDArray  # (P,)
    density: NDArray  # (P,) the IPF, as share of its maximum
    modes: NDArray  # (P, len(orders)) each as share of its maximum
    uncertainty: NDArray  # (P,) mean of the modes, as share of its maximum
    right: NDArray  # (n_right,) places of right test predictions
    wrong: NDArray  # (n_wrong,)


def projected_field(
    trained: TrainedNetwork, corruption: str, level: float, normalization: str = "peak"
) -> ProjectedField:
    """The field of the training predictions along their first axis, with the test predictions."""
    points = np.asarray(trained.field.centers_, np.float64)
    projection = PCA(1, svd_solver="full").fit(points)  # its largest component is positive
    centers = projection.transform(points)
    orders = tuple(trained.field.orders)
    line = QIPF(
        orders=orders, bandwidth="silverman", softening=SOFTENING, normalization=normalization
    )
    with warnings.catch_warnings():  # of logits of two classes; these are places on an axis
        warnings.simplefilter("ignore", QIPFScoreWarning)
        line.fit(centers)
    predictions = trained.predict(corruption, level)
    tested = projection.transform(predictions.logits.double().numpy())[:, 0]
    wrong = predictions.predicted.numpy() != trained.labels
    low, high = np.quantile(np.r_[centers[:, 0], tested], [0.001, 0.999])
    margin = 0.08 * (high - low)
    places = np.linspace(low - margin, high + margin, PLACES)
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
    normalization: str = "peak",
    dpi: int = DPI,
) -> ProjectedField:
    """Draw the field of the training predictions, the test predictions, and the modes.

    Returns what was drawn.
    """
    checked_output(path, KINDS)  # before the work, not after
    run = Run(folder)
    chosen = run.network(network)
    level = run.level(chosen, run.corruption(chosen, corruption), level)
    trained = TrainedNetwork(run, chosen, data, seed)
    field = projected_field(trained, corruption, level, normalization)
    with drawing(path, width=6.6, height=6.2, rows=2, sharex=True, dpi=dpi) as axes:
        _draw_density(axes[0][0], field)
        _draw_modes(axes[1][0], field)
        figure = axes[0][0].figure
        condition = condition_text(corruption, level)
        figure.suptitle(f"{chosen}, {condition}: the field of its predictions", fontsize=11)
        variance = field.projection.explained_variance_ratio_[0]
        figure.supxlabel(
            "Logits are projected on the first principal axis of the training logits "
            f"({variance:.0%} of their variance);\ndashed: density (IPF) of the "
            "training predictions there. Field and modes are those of the projected\n"
            f"numbers, Silverman's bandwidth, softening {SOFTENING:g}, kernel {normalization!r}; "
            "curves and histograms are scaled to a maximum of 1.",
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
    axis.set(ylabel="share of its maximum", ylim=(0, 1.35))
    axis.legend(loc="upper center", fontsize=8, ncols=2)


def _draw_modes(axis: Any, field: ProjectedField) -> None:
    last = max(1, len(field.orders) - 1)
    for index, (mode, order) in enumerate(zip(field.modes.T, field.orders, strict=True)):
        style = {"color": graded(0.85 * index / last), "linestyle": DASHES[index % len(DASHES)]}
        axis.plot(field.places, mode, label=f"mode {order}", **style)
    axis.plot(field.places, field.uncertainty, ":", color="black", label="uncertainty, their mean")
    axis.set(ylabel="mode, share of its maximum", xlabel="place along the axis")
    axis.legend(fontsize=8, ncols=3, loc="upper center")
    axis.set_ylim(top=1.35)
