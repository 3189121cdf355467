"""Fields and models as graphs that run without qipf: ONNX files, torch.export programs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.export import ExportedProgram

from qipf.calibration.rule import AcceptRule
from qipf.errors import QIPFInputError, QIPFWarning
from qipf.export.check import Expected, expected, expected_of_layers, tried
from qipf.export.onnx import OnnxFile, converted, require_exporter, write
from qipf.export.program import Example, checked_example, traced
from qipf.field.condensed import condensed
from qipf.field.estimator import QIPF
from qipf.field.graph import FieldGraph, ModelGraph
from qipf.io.atomic import checked_output
from qipf.layered import LayeredQIPF
from qipf.layered.graph import LayersGraph
from qipf.network.forward import evaluating, unchanged
from qipf.network.wrapped import WrappedModel
from qipf.validation.not_fitted import QIPFNotFittedError

__all__ = [
    "OnnxFile",
    "condensed",
    "export_field_onnx",
    "export_layers",
    "export_layers_onnx",
    "export_model",
    "export_model_onnx",
]

#: Centres at which a field alone is tried, and again three times as far out.
TRIED = 32


def export_field_onnx(
    field: QIPF,
    path: Path | str,
    *,
    rule: AcceptRule | None = None,
    max_centers: int | None = None,
    check: bool = True,
) -> OnnxFile:
    """Write a field as an ONNX file, to judge logits of any framework.

    The input is ``logits`` (batch, d), of the type the field was fitted with; the outputs are
    ``uncertainty`` (batch,), ``modes`` (batch, orders) and, with a rule, ``accepted`` (batch,).

    Parameters
    ----------
    field : a fitted field.
    path : the file, ``.onnx``. It appears whole and checked, or not at all.
    rule : its threshold adds the output ``accepted``; by default the field's own, if it has one.
    max_centers : condense the field to so many weighted centres, for a smaller, faster file.
    check : run the file in ONNX Runtime, if that is installed, and compare with PyTorch.
    """
    path = _checked_path(path)
    field, threshold = _prepared(field, rule, max_centers)
    graph = FieldGraph(field, threshold)
    centers = graph.centers[:TRIED]
    rows = torch.cat([centers, graph.origin.to(centers) + 3 * (centers - graph.origin.to(centers))])
    program = traced(graph, [rows])
    metadata = _metadata(field, threshold)
    want = expected(field, rows, None) if check else None
    return _finished(program, {"logits": rows}, metadata, path, want)


def export_model_onnx(
    model: WrappedModel,
    path: Path | str,
    example: Any = None,
    *,
    rule: AcceptRule | None = None,
    max_centers: int | None = None,
    check: bool = True,
) -> OnnxFile:
    """`WrappedModel.export_onnx`."""
    path = _checked_path(path)
    traced_model = _traced_model(model, example, rule, max_centers)
    field, few = traced_model.field, traced_model.example
    metadata = {
        **_metadata(field, traced_model.threshold),
        "layer": model.layer or "logits",
        "pooling": model.pooling if isinstance(model.pooling, str) else "function",
        "fingerprint": unchanged(model.net, model._fitted_with),
    }
    want = None
    if check:
        with evaluating(model.net), torch.no_grad():
            logits, rows = model._run(few.inputs, few.options, None)
        want = expected(field, rows, logits)
    return _finished(traced_model.program, few.tensors, metadata, path, want)


def export_model(
    model: WrappedModel,
    example: Any = None,
    *,
    rule: AcceptRule | None = None,
    max_centers: int | None = None,
) -> ExportedProgram:
    """`WrappedModel.export`."""
    return _traced_model(model, example, rule, max_centers).program


def export_layers_onnx(
    model: LayeredQIPF, path: Path | str, example: Tensor | None = None, *, check: bool = True
) -> OnnxFile:
    """`LayeredQIPF.export_onnx`."""
    path = _checked_path(path)
    program, few = _traced_layers(model, example)
    assert model.weights_ is not None  # it is fitted
    metadata = {
        "version": _version(),
        "centers": max((len(field.embeddings) for field in model.fields_), default=0),
        "layers": tuple(map(str, model.layers_)),
        "weights": tuple(model.weights_.tolist()),
        "fingerprint": unchanged(model.net, model._fitted_with),
    }
    want = None
    if check:
        said = model(*few.inputs)
        want = expected_of_layers(said.uncertainty, said.logits)
    return _finished(program, few.tensors, metadata, path, want)


def export_layers(model: LayeredQIPF, example: Tensor | None = None) -> ExportedProgram:
    """`LayeredQIPF.export`."""
    return _traced_layers(model, example)[0]


def _traced_layers(model: LayeredQIPF, example: Any) -> tuple[ExportedProgram, Example]:
    model._require_fitted()
    few = checked_example(model, example)
    return traced(LayersGraph(model), few.tensors.values()), few


class _Traced(NamedTuple):
    program: ExportedProgram
    example: Example
    field: QIPF
    threshold: float | None


def _traced_model(
    model: WrappedModel, example: Any, rule: AcceptRule | None, max_centers: int | None
) -> _Traced:
    field, threshold = _prepared(model.field, rule, max_centers)
    few = checked_example(model, example)
    tensors = few.tensors.values()
    device = next(iter(tensors)).device
    graph = ModelGraph(model, FieldGraph(field, threshold).to(device), few.inputs, few.options)
    return _Traced(traced(graph, tensors), few, field, threshold)


def _finished(
    program: ExportedProgram,
    feeds: Mapping[str, Tensor],
    metadata: Mapping[str, Any],
    path: Path,
    want: Expected | None,
) -> OnnxFile:
    """Converted, tried and written."""
    outputs = tuple(program.call_spec.out_spec.context)  # the keys of the graph's dict
    data = converted(program, tuple(feeds), outputs, metadata)
    difference = None if want is None else tried(data, feeds, want)
    write(data, path)
    return OnnxFile(path, len(data), metadata["centers"], tuple(feeds), outputs, difference)


# ---------------------------------------------------------------------- doors


def _checked_path(path: Path | str) -> Path:
    require_exporter()
    return checked_output(Path(path), [".onnx"])


def _prepared(
    field: QIPF, rule: AcceptRule | None, max_centers: int | None
) -> tuple[QIPF, float | None]:
    """The field to export, condensed if asked for, and the threshold of the rule."""
    if not isinstance(field, QIPF):
        raise QIPFInputError(
            f"field must be a QIPF, got {type(field).__name__}. A wrapped model has export_onnx."
        )
    if not hasattr(field, "offset_"):
        raise QIPFNotFittedError("There is nothing to export yet: fit the field first.")
    threshold = _threshold(field.rule_ if rule is None else rule)
    if max_centers is None:
        return field, threshold
    whole = isinstance(max_centers, Integral) and not isinstance(max_centers, bool)
    if not whole or max_centers < 1:
        raise QIPFInputError(
            f"max_centers must be an integer of at least 1, or None for all, got {max_centers!r}."
        )
    small = condensed(field, max_centers)
    if threshold is not None and small is not field:
        warnings.warn(
            f"The accept rule was calibrated with {len(field.centers_)} centres, and the file has "
            f"{len(small.centers_)}: its guarantee does not hold there. Calibrate a rule with "
            "qipf.export.condensed(field, max_centers), and export that field.",
            QIPFWarning,
            stacklevel=4,
        )
    return small, threshold


def _threshold(rule: object) -> float | None:
    if rule is None:
        return None
    if not isinstance(rule, AcceptRule):
        raise QIPFInputError(
            f"rule must be an AcceptRule, as qipf.accept_rule makes, got {type(rule).__name__}."
        )
    return float(rule.threshold)


def _version() -> str:
    from qipf._version import __version__

    return __version__


def _metadata(field: QIPF, threshold: float | None) -> dict[str, Any]:
    told = {
        "version": _version(),
        "orders": tuple(field.orders),
        "softening": float(field.softening),
        "bandwidth": float(field.bandwidth_),
        "centers": len(field.centers_),
        "dimension": int(field.n_features_in_),
        "samples": int(field.n_samples_seen_),
    }
    return told if threshold is None else {**told, "threshold": threshold}
