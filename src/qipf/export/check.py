"""Comparison of an ONNX file's outputs in ONNX Runtime with PyTorch's."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qipf.errors import QIPFError
from qipf.export.program import reason

#: Largest difference of a logit or an uncertainty from PyTorch's, relative to the largest logit of
#: its row or to the uncertainty, and to 1 where these are smaller.
TOLERANCE = 1e-4

#: How far the networks' outputs themselves may differ, relative to their size: float32 sums in
#: another order.
ROUNDING = 1e-5

Array = NDArray[Any]


class Expected(NamedTuple):
    """PyTorch's outputs for a batch, and how far the file's uncertainty may differ."""

    logits: Array | None  # (n, classes); None for a field alone
    uncertainty: Array  # (n,)
    allowed: Array  # (n,)

    def first(self) -> "Expected":
        """The first row alone."""
        logits = None if self.logits is None else self.logits[:1]
        return Expected(logits, self.uncertainty[:1], self.allowed[:1])


def expected(uncertainty: Tensor, logits: Tensor | None, margin: Tensor | None = None) -> Expected:
    """PyTorch's outputs; `margin` is allowed beside the tolerance."""
    values = uncertainty.detach().double().cpu().numpy()
    allowed = TOLERANCE * np.maximum(1.0, np.abs(values))
    if margin is not None:
        allowed = allowed + margin.cpu().numpy()
    return Expected(
        None if logits is None else logits.detach().double().cpu().numpy(), values, allowed
    )


def rounding_margin(score: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:  # (n, d) -> (n,)
    """How far scores change when the rows move within their rounding.

    Near a pole of an even mode the uncertainty depends on the last digits of the row.
    """
    scores = score(rows)
    generator = torch.Generator(rows.device).manual_seed(0)
    change = torch.zeros_like(scores)
    for _ in range(4):
        signs = torch.randint(0, 2, rows.shape, generator=generator, device=rows.device) * 2 - 1
        moved = score(rows * (1 + ROUNDING * signs))
        change = torch.maximum(change, (moved - scores).abs())
    return 2 * change


def checked(data: bytes, feeds: Mapping[str, Tensor], want: Expected) -> float | None:
    """Largest relative difference of the uncertainty; None if ONNX Runtime is not installed.

    The file runs on the batch and on its first row alone, because the length must not matter.
    """
    try:
        onnxruntime: Any = import_module("onnxruntime")
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised, not printed
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
    """Largest relative difference of the uncertainty; raises if any output differs too much."""
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
            "writes it without the check."
        )
