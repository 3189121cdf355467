"""Building a field from its training rows: bandwidth, centres, energies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from qipf.field.bandwidth import choose_factor, silverman
from qipf.field.engines import Engine
from qipf.field.kernel import Coreset, field_of
from qipf.field.potential import bare_modes, curvature, ground_energies
from qipf.field.reservoir import TrainingRows

#: Fewer rows than this are not split: Silverman's bandwidth is used.
FEWEST_TO_SPLIT = 10


@dataclass(frozen=True)
class FieldOptions:
    """The parameters of a field that its building depends on."""

    orders: Sequence[int]
    bandwidth: float | str
    softening: float
    engine: str


@dataclass(frozen=True)
class BuiltField:
    """What a field learns from its training rows."""

    centers: np.ndarray  # (N, d)
    log_weights: np.ndarray | None  # (N,)
    spread: float
    bandwidth: float
    bandwidth_factor: float
    bandwidth_criterion: str
    energies: np.ndarray  # (orders,)
    ground_energy: float
    engine: Engine


def build_field(rows: TrainingRows, options: FieldOptions, device: torch.device) -> BuiltField:
    """Choose the bandwidth, then the centres, and find the energies at the centres."""
    factor, criterion, sigma = _bandwidth(rows, options, device)
    # the held-out rows join the field once the factor is known, if there is room for them
    whole = rows.condensed(0, device, sigma)
    equal = bool((whole.weights == whole.weights[0]).all())
    log_weights = None if equal else whole.log_weights
    engine = field_of(options.engine, whole.centers, sigma, log_weights, whole.spread)
    inside = engine(whole.centers)
    modes = bare_modes(inside, sigma, options.orders, options.softening)
    return BuiltField(
        centers=whole.centers.cpu().numpy(),
        log_weights=None if log_weights is None else log_weights.cpu().numpy(),
        spread=whole.spread,
        bandwidth=sigma,
        bandwidth_factor=factor,
        bandwidth_criterion=criterion,
        energies=ground_energies(modes).cpu().numpy(),
        ground_energy=-float(curvature(inside, sigma).min()),
        engine=engine,
    )


def _bandwidth(
    rows: TrainingRows, options: FieldOptions, device: torch.device
) -> tuple[float, str, float]:
    """Factor on Silverman's bandwidth, what chose it, and the bandwidth."""
    width = _silverman(rows.gathered(0, device))
    if not isinstance(options.bandwidth, str):
        return float(options.bandwidth) / width, "given", float(options.bandwidth)
    factor, criterion = 1.0, "silverman"
    if options.bandwidth == "cv" and rows.count >= FEWEST_TO_SPLIT:
        factor, criterion = _cross_validated(rows, options, device)
    return factor, criterion, factor * width


def _cross_validated(
    rows: TrainingRows, options: FieldOptions, device: torch.device
) -> tuple[float, str]:
    """The factor that scores held-out rows best.

    The field on trial has the rows that a coreset would be made of: a coreset fits one bandwidth.
    """
    held = rows.held_out()
    sample, nearness = rows.sample, rows.sample_nearness()
    start = sample.shape[0] - held
    part = rows.gathered(held, device)
    choice = choose_factor(
        part.centers,
        sample[start:].to(device),
        None if nearness is None else nearness[start:],
        width=_silverman(part),
        orders=options.orders,
        softening=options.softening,
        engine=options.engine,
        log_weights=part.log_weights,
        spread=part.spread,
    )
    return choice.factor, choice.criterion


def _silverman(whole: Coreset) -> float:
    """Silverman's bandwidth for the rows that a coreset stands for."""
    return silverman(whole.centers, whole.log_weights, whole.count, whole.spread)
