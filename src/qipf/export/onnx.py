"""ONNX files: converted from a program, compared with PyTorch, then written atomically."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.export import ExportedProgram

from qipf._version import __version__
from qipf.errors import QIPFError, missing_extra
from qipf.export.program import quiet, reason
from qipf.io.atomic import atomic_write, checked_output

#: Largest difference of a logit or a score from PyTorch's, relative to the largest logit of its row
#: or to the score, and to 1 where these are smaller.
TOLERANCE = 1e-4

#: How far the networks' outputs themselves may differ, relative to their size: float32 sums in
#: another order.
ROUNDING = 1e-5

Array = NDArray[Any]


class Expected(NamedTuple):
    """PyTorch's outputs for a batch, and how far the file's scores may differ."""

    logits: Array | None  # (n, classes); None for a field alone
    scores: dict[str, Array]  # (n,) each, by the name of the output
    allowed: dict[str, Array]  # the same

    def first(self) -> "Expected":
        """The first row alone."""
        logits = None if self.logits is None else self.logits[:1]
        scores, allowed = ({name: values[:1] for name, values in part.items()} for part in self[1:])
        return Expected(logits, scores, allowed)


def expected(
    uncertainty: Tensor,
    novelty: Tensor,
    logits: Tensor | None,
    margins: tuple[Tensor, Tensor] | None = None,
) -> Expected:
    """PyTorch's outputs; the margins of both scores are allowed beside the tolerance."""
    scores = {"uncertainty": _array(uncertainty), "novelty": _array(novelty)}
    allowed = {name: TOLERANCE * np.maximum(1.0, np.abs(own)) for name, own in scores.items()}
    if margins is not None:
        for name, margin in zip(scores, margins, strict=True):
            allowed[name] = allowed[name] + _array(margin)
    return Expected(None if logits is None else _array(logits), scores, allowed)


def _array(values: Tensor) -> Array:
    return values.detach().double().cpu().numpy()


def rounding_margins(
    both_scores: Callable[[Tensor], tuple[Tensor, Tensor]],
    rows: Tensor,  # (n, d)
) -> tuple[Tensor, Tensor]:  # (n,), (n,)
    """How far both scores change when the rows move within their rounding.

    Near a pole of an even mode the uncertainty depends on the last digits of the row.
    """
    scores = torch.stack(both_scores(rows))
    generator = torch.Generator(rows.device).manual_seed(0)
    change = torch.zeros_like(scores)
    for _ in range(4):
        signs = torch.randint(0, 2, rows.shape, generator=generator, device=rows.device) * 2 - 1
        moved = torch.stack(both_scores(rows * (1 + ROUNDING * signs)))
        change = torch.maximum(change, (moved - scores).abs())
    uncertainty, novelty = 2 * change
    return uncertainty, novelty


#: Example inputs by name, and PyTorch's outputs for them.
Case = tuple[Mapping[str, Tensor], Expected]


def checked(data: bytes, cases: Sequence[Case]) -> float | None:
    """Largest relative difference of a score; None if ONNX Runtime is not installed.

    The file runs on each batch and on its first row alone, because the length must not matter.
    """
    try:
        onnxruntime: Any = import_module("onnxruntime")
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised, not printed
    try:
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise QIPFError(f"ONNX Runtime cannot run the file: {reason(error)}") from error
    differences = []
    for feeds, want in cases:
        arrays = {name: values.detach().cpu().numpy() for name, values in feeds.items()}
        row = {name: values[:1] for name, values in arrays.items()}
        _compared(_outputs(session, row), want.first())
        differences.append(_compared(_outputs(session, arrays), want))
    return max(differences)


def _outputs(session: Any, arrays: Mapping[str, Array]) -> dict[str, Array]:
    names = [output.name for output in session.get_outputs()]
    try:
        return dict(zip(names, session.run(None, dict(arrays)), strict=True))
    except Exception as error:
        raise QIPFError(f"ONNX Runtime cannot run the file: {reason(error)}") from error


def _compared(got: dict[str, Array], want: Expected) -> float:
    """Largest relative difference of a score; raises if logits or scores differ too much."""
    if want.logits is not None:
        scale = np.abs(want.logits).max(axis=1, keepdims=True, initial=1.0)
        off = float((np.abs(got["logits"] - want.logits) / scale).max())
        _require(off <= TOLERANCE, "logits differ", off)
    found = []
    for name, values in want.scores.items():
        difference = np.abs(got[name] - values)
        found.append(float((difference / np.maximum(1.0, np.abs(values))).max()))
        _require(bool((difference <= want.allowed[name]).all()), f"{name} differs", found[-1])
    return max(found)


def _require(good: bool, what: str, off: float) -> None:
    if not good:
        raise QIPFError(
            f"The file's {what} from PyTorch's by {off:.2g} (at most {TOLERANCE:.0e} is allowed), "
            "so it was not written. Is the network deterministic in evaluation mode, and in "
            "float32, not in half precision? check=False writes it without the check."
        )


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
    difference: float | None  # largest relative difference of a score; None if not checked


def require_onnx() -> Any:
    """The package onnx, if it is there together with its converter."""
    try:
        import_module("onnxscript")
        return import_module("onnx")
    except ImportError as error:
        raise missing_extra(f"ONNX files need onnx and onnxscript ({error})", "onnx") from error


def checked_path(path: Path | str) -> Path:
    """The path of a file that can be written, after checks that the exporter is installed."""
    if "dynamo" not in signature(torch.onnx.export).parameters:
        raise QIPFError(
            f"ONNX files need torch 2.5 or newer; this is {torch.__version__}. Update torch."
        )
    require_onnx()
    return checked_output(path, [".onnx"])


def write_onnx(
    program: ExportedProgram,
    feeds: Mapping[str, Tensor],  # example inputs by name
    metadata: Mapping[str, Any],
    path: Path,
    cases: Sequence[Case],
) -> OnnxFile:
    """Convert a program, compare the file with PyTorch's outputs, if any, and write it."""
    outputs = tuple(program.call_spec.out_spec.context)  # the keys of the graph's dict
    data = converted(program, tuple(feeds), outputs, {"version": __version__, **metadata})
    difference = checked(data, cases) if cases else None
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
        # without gradients: tensors made in inference mode cannot be saved for them
        with quiet(), torch.no_grad():
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
    names = {graph.input[0].type.tensor_type.shape.dim[0].dim_param: "batch"}
    for part in graph.input:
        names |= {dim.dim_param: "tokens" for dim in part.type.tensor_type.shape.dim[1:2]}
    for end in ends:
        for dim in end.type.tensor_type.shape.dim:
            if dim.dim_param.isdigit():  # a length that turned out to be fixed
                dim.dim_value = int(dim.dim_param)
            for symbol, name in names.items():
                if symbol and dim.dim_param:
                    dim.dim_param = re.sub(rf"\b{symbol}\b", name, dim.dim_param)


def _text(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return ",".join(map(_text, value))
    return repr(value) if isinstance(value, float) else str(value)
