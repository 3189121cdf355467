"""A file on trial: what ONNX Runtime makes of it, beside what PyTorch says."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qipf.errors import QIPFError
from qipf.export.program import reason
from qipf.field.estimator import QIPF

#: Largest difference of a logit or an uncertainty from PyTorch's, relative to the largest logit of
#: its row or to the uncertainty, and to 1 where these are smaller.
TOLERANCE = 1e-4

#: How far the networks' outputs themselves may differ, relative to their size: float32 sums in
#: another order.
ROUNDING = 1e-5

Array = NDArray[Any]


class Expected(NamedTuple):
    """What PyTorch says of a batch."""

    logits: Array | None  # (n, classes); None for a field alone
    uncertainty: Array  # (n,)
    allowed: Array  # (n,) how far an uncertainty may be off

    def first(self) -> Expected:
        """Of the first row alone."""
        logits = None if self.logits is None else self.logits[:1]
        return Expected(logits, self.uncertainty[:1], self.allowed[:1])


def expected(field: QIPF, rows: Tensor, logits: Tensor | None) -> Expected:
    """The field's answers, and what they may be missed by.

    Near a pole of an even mode the uncertainty changes with the last digits of the row. So what
    it changes by when the row moves within its rounding is allowed on top of the tolerance.
    """
    exact = rows.double()
    uncertainty = field.uncertainty(exact)
    generator = torch.Generator(exact.device).manual_seed(0)
    sway = torch.zeros_like(uncertainty)
    for _ in range(4):
        signs = torch.randint(0, 2, exact.shape, generator=generator, device=exact.device) * 2 - 1
        moved = field.uncertainty(exact * (1 + ROUNDING * signs))
        sway = torch.maximum(sway, (moved - uncertainty).abs())
    allowed = TOLERANCE * uncertainty.abs().clamp(min=1) + 2 * sway
    return Expected(
        None if logits is None else logits.detach().double().cpu().numpy(),
        uncertainty.cpu().numpy(),
        allowed.cpu().numpy(),
    )


def expected_of_layers(uncertainty: Tensor, logits: Tensor) -> Expected:
    """A layered model's answers, and what they may be missed by: they have no poles."""
    values = uncertainty.double().cpu().numpy()
    allowed = TOLERANCE * np.maximum(1.0, np.abs(values))
    return Expected(logits.detach().double().cpu().numpy(), values, allowed)


def tried(data: bytes, feeds: Mapping[str, Tensor], want: Expected) -> float | None:
    """The largest relative difference of the uncertainty; None without ONNX Runtime.

    The batch runs whole, and its first row once more alone: its length must not matter.
    """
    try:
        onnxruntime: Any = import_module("onnxruntime")
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised; they need not be printed too
    try:
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        arrays = {name: values.detach().cpu().numpy() for name, values in feeds.items()}
        batch = session.run(None, arrays)
        row = session.run(None, {name: values[:1] for name, values in arrays.items()})
    except Exception as error:
        raise QIPFError(f"ONNX Runtime cannot run the file: {reason(error)}") from error
    _compared(dict(zip(names, row, strict=True)), want.first())
    return _compared(dict(zip(names, batch, strict=True)), want)


def _compared(got: dict[str, Array], want: Expected) -> float:
    """The largest relative difference of the uncertainty, once everything is within its bounds."""
    if want.logits is not None:
        scale = np.abs(want.logits).max(axis=1, keepdims=True, initial=1.0)
        off = float((np.abs(got["logits"] - want.logits) / scale).max())
        _require(off <= TOLERANCE, "logits differ", off)
    difference = np.abs(got["uncertainty"] - want.uncertainty)
    relative = float((difference / np.maximum(1.0, np.abs(want.uncertainty))).max())
    _require(bool((difference <= want.allowed).all()), "uncertainty differs", relative)
    return relative


def _require(good: bool, what: str, off: float) -> None:
    if not good:
        raise QIPFError(
            f"The file's {what} from PyTorch's by {off:.2g} (at most {TOLERANCE:.0e} is allowed), "
            "so it was not written. Is the network deterministic in evaluation mode? check=False "
            "writes it all the same."
        )
