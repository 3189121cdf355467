"""One ONNX file: converted, named, checked, and only then written."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from qipf.errors import QIPFError
from qipf.export.program import quiet, reason
from qipf.io.atomic import atomic_write

#: Operators that ONNX Runtime has since 1.14, and the file format that came with them.
OPSET, IR_VERSION = 18, 8

#: Bytes of one protobuf message, at most.
LARGEST = 2**31 - 1


@dataclass(frozen=True)
class OnnxFile:
    """What was written."""

    path: Path
    bytes: int
    centers: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    difference: float | None  # of the uncertainty from PyTorch's; None where it was not run


def require_onnx() -> Any:
    """The package onnx, if it is there together with its converter."""
    try:
        import_module("onnxscript")
        return import_module("onnx")
    except ImportError as error:
        raise QIPFError(
            f"ONNX files need onnx and onnxscript ({error}): pip install 'qipf[onnx]'."
        ) from error


def require_exporter() -> None:
    """Refuse before any work where torch is too old, or a package is missing."""
    if "dynamo" not in signature(torch.onnx.export).parameters:
        raise QIPFError(
            f"ONNX files need torch 2.5 or newer; this is {torch.__version__}. Update torch."
        )
    require_onnx()


def converted(
    program: ExportedProgram,
    inputs: Sequence[str],
    outputs: Sequence[str],
    metadata: Mapping[str, Any],
) -> bytes:
    """The program as the bytes of an ONNX file, sound by ONNX's own checker."""
    onnx = require_onnx()
    kept = (*program.state_dict.values(), *program.constants.values())
    size = sum(part.numel() * part.element_size() for part in kept if torch.is_tensor(part))
    if size > LARGEST:
        raise QIPFError(
            f"Weights and centres take {size / 1e9:.1f} GB, and an ONNX file holds at most "
            f"{LARGEST / 1e9:.1f} GB. Export fewer centres (max_centers=), or the field alone."
        )
    try:
        with quiet():
            written = torch.onnx.export(
                program,
                dynamo=True,
                opset_version=OPSET,
                input_names=list(inputs),
                output_names=list(outputs),
                verbose=False,
            )
            assert written is not None  # it is, when no file was named
            model = written.model_proto
        _tidy(model)
        model.producer_name, model.producer_version = "qipf", str(metadata["version"])
        onnx.helper.set_model_props(model, {f"qipf.{k}": _text(v) for k, v in metadata.items()})
        onnx.checker.check_model(model, full_check=True)
        data: bytes = model.SerializeToString()
    except Exception as error:
        raise QIPFError(f"The network cannot be written as ONNX: {reason(error)}") from error
    return data


def write(data: bytes, path: Path) -> None:
    """The file under its name, whole, in the place of an older one."""
    with atomic_write(path) as file:
        file.write(data)


def _tidy(model: Any) -> None:
    """A graph without the exporter's notes, some of which tell where the code was on the disk."""
    model.ir_version = IR_VERSION
    graph = model.graph
    del graph.value_info[:], graph.metadata_props[:]
    ends = (*graph.input, *graph.output)
    for part in (*graph.node, *graph.initializer, *ends):
        del part.metadata_props[:]
        part.doc_string = ""
    batch = graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for end in ends:
        for dim in end.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = re.sub(rf"\b{batch}\b", "batch", dim.dim_param)


def _text(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return ",".join(map(_text, value))
    return repr(value) if isinstance(value, float) else str(value)
