"""The field of a sine wave: the paper's Figure 2."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qipf.errors import unknown_name
from qipf.field import engines
from qipf.field.potential import NORMALIZATIONS, bare_modes, curvature, ground_energies
from qipf.plots.drawing import DPI, drawing, graded

FREQUENCY = 50.0  # Hz
RATE = 10_000.0  # samples a second
SAMPLES = 1_000  # five whole periods
ORDERS = (2, 4, 6, 8, 10, 12, 14, 16)
SOFTENING = 0.1
BANDWIDTHS = (0.15, 0.3, 0.5)


@dataclass(frozen=True)
class SineField:
    """Density, potential and modes of the wave's amplitudes along a line."""

    bandwidth: float
    places: np.ndarray  # (P,) in (-2, 2)
    density: np.ndarray  # (P,) ρ, the IPF
    potential: np.ndarray  # (P,) V_s, the QIPF
    modes: np.ndarray  # (P, len(orders)) V_p


def sine_field(
    bandwidth: float,
    normalization: str = "peak",
    orders: Sequence[int] = ORDERS,
    softening: float = SOFTENING,
    places: int = 801,
) -> SineField:
    """The field at evenly spaced places of (-2, 2)."""
    wave = np.sin(2 * np.pi * FREQUENCY * np.arange(SAMPLES) / RATE)
    line = np.linspace(-2, 2, places + 2)[1:-1]
    field = engines.create("reference", torch.from_numpy(wave)[:, None], bandwidth)
    inside, along = field(torch.from_numpy(wave)[:, None]), field(torch.from_numpy(line)[:, None])
    ground = float(curvature(inside, bandwidth).min())
    options = (bandwidth, orders, softening, normalization)
    modes = bare_modes(along, *options) + ground_energies(bare_modes(inside, *options))
    return SineField(
        bandwidth=bandwidth,
        places=line,
        density=along.log_density.exp().numpy(),
        potential=(curvature(along, bandwidth) - ground).numpy(),
        modes=modes.numpy(),
    )


def draw_sine(path: Path, dpi: int = DPI, normalization: str = "peak") -> None:
    """Draw the three fields side by side (PNG, PDF or SVG by the file's name)."""
    if normalization not in NORMALIZATIONS:
        raise unknown_name("normalization", normalization, NORMALIZATIONS)
    with drawing(
        path, width=10.0, height=5.6, rows=2, columns=3, sharex=True, sharey="row", dpi=dpi
    ) as axes:
        for column, bandwidth in enumerate(BANDWIDTHS):
            _draw_field(axes[0][column], axes[1][column], sine_field(bandwidth, normalization))
        axes[0][0].set_ylabel("share of its maximum")
        axes[1][0].set_ylabel("mode, share of its maximum")
        axes[0][0].legend(loc="upper center")
        axes[1][2].legend(title="order", loc="center left", bbox_to_anchor=(1.0, 0.5))


def _draw_field(upper: Any, lower: Any, field: SineField) -> None:
    """Draw density and potential in the upper axes, the modes in the lower ones."""
    upper.plot(field.places, field.density / field.density.max(), "--", color="black", label="IPF")
    potential = field.potential / field.potential.max()
    upper.plot(field.places, potential, ":", color="#d55e00", linewidth=2.2, label="QIPF")
    upper.set_title(f"kernel width {field.bandwidth:g}")
    for index, (mode, order) in enumerate(zip(field.modes.T, ORDERS, strict=True)):
        color = graded(index / (len(ORDERS) - 1))
        lower.plot(field.places, mode / mode.max(), color=color, label=f"{order}")
    lower.set_xlabel("amplitude (the wave spans the shaded part)")
    lower.set_xlim(-2, 2)
    for axis in (upper, lower):
        axis.axvspan(-1, 1, color="black", alpha=0.06, linewidth=0)
