r"""The field of a model's predictions in one dimension: the paper's Figure 3 (a).

The logits are projected on the first principal axis of the field's centres,
:math:`t = (x - \bar c) \cdot u`, because a figure has room for one dimension. The field that is
drawn is a one-dimensional `QIPF` with Silverman's bandwidth over the projected centres.
"""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.decomposition import PCA

from qipf.errors import QIPFScoreWarning
from qipf.plots.drawing import axes_of, draw_bars, graded
from qipf.plots.style import CHANCE, RIGHT, WRONG

#: Softening of the poles of the modes, as for the sine wave.
SOFTENING = 0.1

PLACES = 801

#: Modes differ in shade and dash.
DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (6, 2, 1.5, 2)), (0, (3, 1.5)))


@dataclass(frozen=True)
class ProjectedField:
    """The field along the first principal axis, and predictions there."""

    projection: PCA
    orders: tuple[int, ...]
    places: NDArray  # (P,)
    density: NDArray  # (P,) the IPF, as share of its maximum
    modes: NDArray  # (P, len(orders)) each as share of its maximum
    uncertainty: NDArray  # (P,) mean of the modes, as share of its maximum
    right: NDArray  # (n_right,) places of right predictions
    wrong: NDArray  # (n_wrong,)
    unlabelled: NDArray  # (n,) places of predictions whose errors are unknown


def projected_field(
    field: Any,
    rows: NDArray | None = None,  # (n, d)
    wrong: NDArray | None = None,  # (n,)
    normalization: str = "peak",
) -> ProjectedField:
    """The field of a fitted `QIPF` along the first axis of its centres, and predictions there."""
    points = np.asarray(field.centers_, np.float64)
    if field.log_weights_ is not None:  # as many points, each centre as often as its weight says
        shares = np.exp(field.log_weights_).cumsum()
        drawn = (np.arange(len(points)) + 0.5) / len(points) * shares[-1]
        points = points[np.searchsorted(shares, drawn)]
    projection = PCA(1, svd_solver="full").fit(points)  # its largest component is positive
    centers = projection.transform(points)
    line = clone(field).set_params(
        bandwidth="silverman", softening=SOFTENING, normalization=normalization
    )
    with warnings.catch_warnings():  # of logits of two classes; these are places on an axis
        warnings.simplefilter("ignore", QIPFScoreWarning)
        line.fit(centers)
    none = np.empty(0)
    tested = none if rows is None else projection.transform(np.asarray(rows, np.float64))[:, 0]
    low, high = np.quantile(np.r_[centers[:, 0], tested], [0.001, 0.999])
    margin = 0.08 * (high - low)
    places = np.linspace(low - margin, high + margin, PLACES)
    density = np.exp(line.log_density(places[:, None]))
    modes = line.modes(places[:, None])
    groups = (none, none, tested) if wrong is None else (tested[~wrong], tested[wrong], none)
    return ProjectedField(
        projection,
        tuple(field.orders),
        places,
        density / density.max(),
        modes / modes.max(0),
        modes.mean(1) / modes.mean(1).max(),
        *groups,
    )


def draw_density(field: ProjectedField, ax: Any = None) -> Any:
    """Draw the density of the training predictions, and histograms of other predictions."""
    ax = axes_of(ax)
    edges = np.linspace(field.places[0], field.places[-1], 61)
    groups = (
        ("right predictions", field.right, RIGHT),
        ("wrong predictions", field.wrong, WRONG),
        ("predictions", field.unlabelled, CHANCE),
    )
    for name, places, look in groups:
        if len(places):
            counts = np.histogram(places, edges)[0]
            draw_bars(ax, counts / max(1, counts.max()), edges, look, f"{name} ({len(places):,})")
    ax.plot(field.places, field.density, "--", color="black", label="IPF of training predictions")
    ax.set(ylabel="share of its maximum", xlabel="place along the first principal axis")
    ax.set_ylim(0, 1.35)
    ax.legend(loc="upper center", fontsize=8, ncols=2)
    return ax


def draw_modes(field: ProjectedField, ax: Any = None) -> Any:
    """Draw the modes of the potential and their mean, each as share of its maximum."""
    ax = axes_of(ax)
    last = max(1, len(field.orders) - 1)
    for index, (mode, order) in enumerate(zip(field.modes.T, field.orders, strict=True)):
        style = {"color": graded(0.85 * index / last), "linestyle": DASHES[index % len(DASHES)]}
        ax.plot(field.places, mode, label=f"mode {order}", **style)
    ax.plot(field.places, field.uncertainty, ":", color="black", label="uncertainty, their mean")
    ax.set(ylabel="mode, share of its maximum", xlabel="place along the first principal axis")
    ax.legend(fontsize=8, ncols=3, loc="upper center")
    ax.set_ylim(top=1.35)
    return ax
