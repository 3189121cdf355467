"""The field of a model's predictions: the paper's Figure 3 (a), for any run."""

from pathlib import Path

from qipf.io.atomic import checked_output
from qipf.plots.drawing import DPI, KINDS, drawing
from qipf.plots.field import SOFTENING, ProjectedField, draw_density, draw_modes, projected_field
from qipf.reporting.run.results import Run, condition_text
from qipf.reporting.run.trained import TrainedNetwork


def run_field(
    trained: TrainedNetwork, corruption: str, level: float, normalization: str = "peak"
) -> ProjectedField:
    """The field of the training predictions along their first axis, with the test predictions."""
    found = trained.predict(corruption, level)
    wrong = found.predicted.numpy() != trained.labels
    return projected_field(trained.field, found.logits.double().numpy(), wrong, normalization)


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
    field = run_field(trained, corruption, level, normalization)
    with drawing(path, width=6.6, height=6.2, rows=2, sharex=True, dpi=dpi) as axes:
        draw_density(field, axes[0][0])
        draw_modes(field, axes[1][0])
        axes[0][0].set_xlabel("")
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
