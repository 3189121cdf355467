"""Errors detected at one level: the paper's Figure 3 (b to d), for any run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import precision_recall_curve, roc_curve

from qipf.errors import QIPFError
from qipf.metrics.error_detection import pr_auc, roc_auc
from qipf.plots.drawing import DPI, draw_bars, drawing, line_style, shared_legend
from qipf.plots.style import CHANCE, look_of
from qipf.reporting.charts import histogram_chart
from qipf.reporting.run.results import Run, Scores, condition_text

COLUMNS = 4

#: Distance between markers of a curve, as a share of the diagonal of the axes.
MARK_EVERY = 0.12


def draw_detection(
    folder: Path | str,
    path: Path,
    *,
    network: str | None = None,
    corruption: str,
    level: float,
    methods: Sequence[str] | None = None,
    seed: int | None = None,
    dpi: int = DPI,
) -> dict[str, Any]:
    """Draw the uncertainty of right and wrong predictions by method, and ROC and PR curves.

    Without `methods`: the paper's, or all of the run if it has none of these. Returns the error
    rate and the areas under the curves.
    """
    run = Run(folder)
    chosen = run.network(network)
    level = run.level(chosen, run.corruption(chosen, corruption), level)
    names = run.select_methods(methods or "paper")
    known, wrong = run.scores(chosen, corruption, seed).get(level, ({}, np.zeros(0, bool)))
    where = f"{chosen} under {corruption} {level:g}" + (f", seed {seed}" if seed else "")
    _check_scores(known, wrong, names, where)
    scores = {name: known[name] for name in names}
    cells = len(names) + 2
    columns = min(COLUMNS, cells)
    rows = -(-cells // columns)
    with drawing(
        path, width=2.9 * columns, height=2.4 * rows + 0.7, rows=rows, columns=columns, dpi=dpi
    ) as axes:
        places = [axis for row in axes for axis in row]
        for axis, name in zip(places, names, strict=False):
            _draw_histogram(axis, name, scores[name], wrong)
        places[0].legend(fontsize=7)
        _draw_curves(places[len(names)], places[len(names) + 1], scores, wrong)
        for unused in places[cells:]:
            unused.axis("off")
        figure = places[0].figure
        title = f"{chosen}, {condition_text(corruption, level)}: {wrong.mean():.1%} wrong"
        figure.suptitle(title, fontsize=11)
        shared_legend(figure, places[len(names)], columns=4)
    return {
        "error_rate": float(wrong.mean()),
        "roc_auc": {name: roc_auc(values, wrong) for name, values in scores.items()},
        "pr_auc": {name: pr_auc(values, wrong) for name, values in scores.items()},
    }


def _check_scores(scores: Scores, wrong: NDArray, methods: Sequence[str], where: str) -> None:
    if missing := [name for name in methods if name not in scores]:
        raise QIPFError(
            f"The run kept no uncertainties of {', '.join(missing)} on {where}. Run it with "
            "--keep-scores."
        )
    if wrong.all() or not wrong.any():
        kind = "wrong" if wrong.all() else "right"
        raise QIPFError(
            f"All predictions of {where} are {kind}: there is nothing to detect. Choose another "
            "level."
        )


def _draw_histogram(axis: Any, name: str, scores: NDArray, wrong: NDArray) -> None:
    for series in histogram_chart(scores, wrong, name).series:
        draw_bars(axis, series.y, series.x, series.look or CHANCE, series.name)
    axis.set_title(f"{name} (ROC-AUC {roc_auc(scores, wrong):.2f})", fontsize=9)
    axis.set(xlabel="uncertainty", ylabel="share of its kind")


def _draw_curves(roc: Any, pr: Any, scores: Scores, wrong: NDArray) -> None:
    """Draw ROC curves in the first axes and precision-recall curves in the second."""
    roc.plot([0, 1], [0, 1], label="chance", **line_style(CHANCE, markers=False))
    pr.axhline(wrong.mean(), **line_style(CHANCE, markers=False))
    for name, values in scores.items():
        style = line_style(look_of(name)) | {"markevery": MARK_EVERY}
        label = f"{name} ({roc_auc(values, wrong):.2f} / {pr_auc(values, wrong):.2f})"
        false, true, _ = roc_curve(wrong, values)
        roc.plot(false, true, label=label, **style)
        precision, recall, _ = precision_recall_curve(wrong, values)
        # the last point (recall 0) is a convention, not a threshold
        pr.plot(recall[:-1], precision[:-1], drawstyle="steps-pre", **style)
    roc.set_title("ROC curves (below: areas, ROC / PR)", fontsize=9)
    roc.set(xlabel="right predictions flagged", ylabel="errors found")
    pr.set_title("Precision-recall curves", fontsize=9)
    pr.set(xlabel="errors found (recall)", ylabel="errors among flagged", ylim=(0, 1.02))
