"""Constants of an exported graph in full precision."""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class ExactConstants(TorchFunctionMode):
    """Record Python numbers in a graph as float64 tensors.

    The ONNX exporter writes a Python number as float32: π loses half its digits, and 1e300 becomes
    infinity.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        device = next((value.device for value in args if isinstance(value, Tensor)), None)

        def exact(value: Any) -> Any:
            if not isinstance(value, float):
                return value
            return torch.tensor(value, dtype=torch.float64, device=device)

        given = [exact(value) for value in args]
        if func is torch.full_like:
            like, value = given
            return torch.zeros_like(like) + value
        if func is torch.nan_to_num:
            values, nan, highest, lowest = given
            return torch.where(torch.isnan(values), nan, values.clamp(lowest, highest))
        return func(*given, **{name: exact(value) for name, value in (kwargs or {}).items()})
