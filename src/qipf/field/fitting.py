"""Building a field from its training rows: bandwidth, centres, energies."""

from typing import TYPE_CHECKING

import torch

from qipf.field.bandwidth import choose_factor, silverman
from qipf.field.engines import Engine
from qipf.field.kernel import Coreset, field_of
from qipf.field.potential import bare_modes, curvature, ground_energies
from qipf.field.reservoir import TrainingRows

if TYPE_CHECKING:
    from qipf.field.estimator import QIPF

#: Fewer rows than this are not split: Silverman's bandwidth is used.
FEWEST_TO_SPLIT = 10


def build_field(field: "QIPF", rows: TrainingRows, device: torch.device) -> Engine:
    """Choose the bandwidth, then the centres, and find the energies at the centres.

    Sets the learned attributes except for the offset; returns the engine on `device`.
    """
    factor, criterion, sigma = _bandwidth(field, rows, device)
    # the held-out rows join the field once the factor is known, if there is room for them
    whole = rows.condensed(0, device, sigma)
    equal = bool((whole.weights == whole.weights[0]).all())
    log_weights = None if equal else whole.log_weights
    engine = field_of(field.engine, whole.centers, sigma, log_weights, whole.spread)
    inside = engine(whole.centers)
    modes = bare_modes(inside, sigma, field.orders, field.softening, field.normalization)
    field.centers_ = whole.centers.cpu().numpy()
    field.log_weights_ = None if log_weights is None else log_weights.cpu().numpy()
    field.spread_, field.bandwidth_ = whole.spread, sigma
    field.bandwidth_factor_, field.bandwidth_criterion_ = factor, criterion
    field.energies_ = ground_energies(modes).cpu().numpy()
    field.ground_energy_ = -float(curvature(inside, sigma).min())
    return engine


def _bandwidth(field: "QIPF", rows: TrainingRows, device: torch.device) -> tuple[float, str, float]:
    """Factor on Silverman's bandwidth, what chose it, and the bandwidth."""
    width = _silverman(rows.weighted_rows(0, device))
    if not isinstance(field.bandwidth, str):
        return float(field.bandwidth) / width, "given", float(field.bandwidth)
    if field.bandwidth != "cv" or rows.count < FEWEST_TO_SPLIT:
        return 1.0, "silverman", width
    # the field has the rows that a coreset would be made of: a coreset fits one bandwidth
    sample, nearness, held = rows.sample, rows.sample_nearness(), rows.held_out()
    start = sample.shape[0] - held
    part = rows.weighted_rows(held, device)
    choice = choose_factor(
        part.centers,
        sample[start:].to(device),
        None if nearness is None else nearness[start:],
        width=_silverman(part),
        orders=field.orders,
        softening=field.softening,
        normalization=field.normalization,
        engine=field.engine,
        log_weights=part.log_weights,
        spread=part.spread,
    )
    return choice.factor, choice.criterion, choice.factor * width


def _silverman(whole: Coreset) -> float:
    """Silverman's bandwidth for the rows that a coreset stands for."""
    return silverman(whole.centers, whole.log_weights, whole.count, whole.spread)
