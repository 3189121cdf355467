"""ONNX files: converted from a torch.export program, checked, then written atomically."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from qipf._version import __version__
from qipf.errors import QIPFError
from qipf.export.check import Expected, checked
from qipf.export.program import quiet, reason
from qipf.io.atomic import atomic_write, checked_output

#: Operators that ONNX Runtime has since 1.14, and the file format that came with them.
OPSET, IR_VERSION = 18, 8

#: Bytes of one protobuf message, at most.
LARGEST = 2**31 - 1


@dataclass(frozen=True)
class OnnxFile:
    """An ONNX file that was written."""

    path: Path
    bytes: int
    centers: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    difference: float | None  # largest relative difference of the uncertainty; None if not checked


def require_onnx() -> Any:
    """The package onnx, if it is there together with its converter."""
    try:
        import_module("onnxscript")
        return import_module("onnx")
    except ImportError as error:
        raise QIPFError(
            f"ONNX files need onnx and onnxscript ({error}): pip install 'qipf[onnx]'."
        ) from error


def checked_path(path: Path | str) -> Path:
    """The path of a file that can be written, after checks that the exporter is installed."""
    if "dynamo" not in signature(torch.onnx.export).parameters:
        raise QIPFError(
            f"ONNX files need torch 2.5 or newer; this is {torch.__version__}. Update torch."
        )
    require_onnx()
    return checked_output(Path(path), [".onnx"])


def write_onnx(
    program: ExportedProgram,
    feeds: Mapping[str, Tensor],  # example inputs by name
    metadata: Mapping[str, Any],
    path: Path,
    want: Expected | None,
) -> OnnxFile:
    """Convert a program, compare the file with PyTorch's outputs if given, and write it."""
    outputs = tuple(program.call_spec.out_spec.context)  # the keys of the graph's dict
    data = converted(program, tuple(feeds), outputs, {"version": __version__, **metadata})
    difference = None if want is None else checked(data, feeds, want)
    with atomic_write(path) as file:
        file.write(data)
    return OnnxFile(path, len(data), metadata["centers"], tuple(feeds), outputs, difference)


def converted(
    program: ExportedProgram,
    inputs: Sequence[str],
    outputs: Sequence[str],
    metadata: Mapping[str, Any],
) -> bytes:
    """The program as the bytes of an ONNX file that ONNX's checker accepts."""
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


def _tidy(model: Any) -> None:
    """Remove the exporter's notes from a graph; some of them hold paths of source files."""
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
