"""save and load: models and accept rules in one file, without pickle.

A file is a safetensors file with a JSON header (`qipf.io.container`); `qipf.io.schema` lists the
kinds and the keys of their headers. Files of one format version are written and read.
docs/architecture.md lists the arrays and header entries of each kind.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from qipf.calibration.mixin import CalibrationMixin
from qipf.calibration.rule import AcceptRule
from qipf.calibration.state import ARRAYS, calibration_state, restored_rule, rule_values
from qipf.display import aligned
from qipf.errors import QIPFError, QIPFFileError, QIPFInputError, printable, shortened, warn
from qipf.field.estimator import QIPF
from qipf.io.atomic import atomic_write, checked_output
from qipf.io.container import decode, encode, read_file
from qipf.io.inputs import reading
from qipf.io.schema import KINDS, check_header, refuse, written_by
from qipf.layered.features import FeatureQIPF
from qipf.layered.model import LayeredQIPF
from qipf.network.features import LayerSite
from qipf.network.forward import fingerprint, uncompiled
from qipf.network.model import NetworkModel
from qipf.network.tasks import Task
from qipf.network.widths import logit_width, row_widths
from qipf.network.wrapped import WrappedModel


def save(
    saved: QIPF | WrappedModel | LayeredQIPF | FeatureQIPF | AcceptRule, path: Path | str
) -> None:
    """Write a fitted model, without its network, or an accept rule to one file.

    The calibration set and the accept rule are saved with the model. The write is atomic: an older
    file stays until the new one is complete, which gets its permissions. A link stays, and the file
    it leads to is replaced.

    >>> import tempfile
    >>> import numpy as np
    >>> field = QIPF().fit(np.random.default_rng(0).normal(size=(100, 3)))
    >>> path = Path(tempfile.mkdtemp(), "field.qipf")
    >>> save(field, path)
    >>> bool((load(path).uncertainty(field.centers_) == field.uncertainty(field.centers_)).all())
    True
    """
    if isinstance(saved, CalibrationMixin):
        saved.save(path)
        return
    if not isinstance(saved, AcceptRule):
        raise QIPFInputError(
            "Only a QIPF, a wrapped model, a LayeredQIPF, a FeatureQIPF or an accept rule can be "
            f"saved, got {type(saved).__name__}."
            + (" Call its own method save(path)." if hasattr(saved, "save") else "")
        )
    path = checked_output(path)
    with atomic_write(path) as file:
        file.write(encode({**written_by(), "kind": "rule", "rule": rule_values(saved)}, {}))


def load(path: Path | str, net: nn.Module | None = None, check: bool = True) -> Any:
    """The model or accept rule that `save` wrote.

    Parameters
    ----------
    path : the file.
    net : for a wrapped model or a `LayeredQIPF`, the network it was fitted with.
    check : raise if the network's weights are not those the model was fitted with.
    """
    if net is not None and not isinstance(net, nn.Module):
        raise QIPFInputError(f"net must be a torch.nn.Module, got {type(net).__name__}.")
    net = None if net is None else uncompiled(net)
    found = _read(path, net)
    if not isinstance(found, NetworkModel):
        if net is not None:
            kinds = {AcceptRule: "rule", FeatureQIPF: "features"}
            held = KINDS[kinds.get(type(found), "field")]
            raise QIPFInputError(
                f"{path} holds {held} and belongs to no network. Load it without net; to put a "
                "field around a network: qipf.wrap(net, field=field)."
            )
        return found
    if net is None:
        kind = "a LayeredQIPF" if isinstance(found, LayeredQIPF) else "a wrapped model"
        raise QIPFInputError(
            f"{path} holds {kind}, which needs its network: qipf.load({str(path)!r}, net)."
        )
    if not check:
        found.fitted_with = None
    elif fingerprint(net) != found.fitted_with:
        raise QIPFFileError(
            f"{path} belongs to another network: fitted with weights {found.fitted_with}, this "
            f"network has {fingerprint(net)}. Load the weights it was fitted with, or pass "
            "check=False."
        )
    _require_fitting(path, found, net)
    return found


def _require_fitting(path: Path | str, model: NetworkModel, net: nn.Module) -> None:
    """Raise if the network's layers show that it cannot give the rows the model was fitted on."""
    classes, logits = None, logit_width(net)
    sites: dict[LayerSite, int] = {}
    pooling = "grid"
    if isinstance(model, LayeredQIPF):
        fields = model.layer_fields()
        sites = {site: len(field.metric.mean) for site, field in fields.items()}
        classes = next((field.classes for field in fields.values()), None)
        logits = 2 if logits == 1 else logits
    elif isinstance(model, WrappedModel) and model.layer is not None:
        sites, pooling = {LayerSite(model.layer): model.field.n_features_in_}, str(model.pooling)
    elif isinstance(model, WrappedModel) and model.task_ == Task("multiclass", model.ignore_index):
        classes = model.field.n_features_in_
    if classes is not None and logits not in (None, classes):
        raise QIPFFileError(
            f"{path} was fitted on {classes} logits, but this network has {logits}. Load it with "
            "the network it was fitted with."
        )
    for site, width in sites.items():
        possible = row_widths(net, site, pooling)
        if possible is not None and width not in possible:
            raise QIPFFileError(
                f"{path} was fitted on rows of {width} numbers at {site}, where this network has "
                f"{' or '.join(map(str, sorted(possible)))}. Load it with the network it was "
                "fitted with."
            )


def load_field(path: Path | str, instead: str = "model.uncertainty(inputs)") -> QIPF:
    """The field in a file, whether it was saved alone or with a wrapped model.

    Raises for a `LayeredQIPF`, which scores a network's inputs and not logits; `instead` is the
    call in Python that the message names.
    """
    return load_field_and_layer(path, instead)[0]


def load_field_and_layer(
    path: Path | str, instead: str = "model.uncertainty(inputs)"
) -> tuple[QIPF, str | None]:
    """The field in a file, and the layer whose outputs it scores; None for logits."""
    found = _read(path)
    if isinstance(found, LayeredQIPF):
        raise QIPFInputError(
            f"{path} holds a LayeredQIPF, which scores inputs of its network, not logits. In "
            f"Python: model = qipf.load({str(path)!r}, net), then {instead}."
        )
    if isinstance(found, FeatureQIPF):
        raise QIPFInputError(
            f"{path} holds a FeatureQIPF, which scores features beside logits. Use qipf features "
            f"score, or in Python qipf.load({str(path)!r}).uncertainty(features, logits)."
        )
    if isinstance(found, AcceptRule):
        raise QIPFFileError(f"{path} holds {KINDS['rule']}, not a model.")
    if isinstance(found, WrappedModel):
        if found.layer is not None:
            warn(
                f"{path} was fitted on outputs of the layer {found.layer!r}: the rows to score are "
                "such outputs, not logits."
            )
        return found.field, found.layer
    return found, None


def load_rule(path: Path | str) -> AcceptRule:
    """The accept rule in a file, saved alone or with a model."""
    found = _read(path)
    rule = found if isinstance(found, AcceptRule) else found.rule_
    if rule is None:
        raise QIPFInputError(
            f"{path} has no accept rule. Make one with qipf calibrate --max-risk, or save one in "
            "Python."
        )
    return rule


def save_calibration(field: QIPF, source: Path | str, path: Path | str) -> None:
    """Write the model file `source` with the calibration set and accept rule of `field`.

    `field` comes from `load_field(source)`; a wrapped model keeps its layer and fingerprint.
    """
    path = checked_output(path)
    header, arrays = read_file(source)
    decisions, held_out = calibration_state(field)
    kept = {name: array for name, array in arrays.items() if name not in ARRAYS}
    data = encode({**header, **written_by(), **decisions}, {**kept, **held_out})
    _restored(*decode(data, str(path)), str(path), None)  # only loadable files are written
    with atomic_write(path) as file:
        file.write(data)


def save_fitted(model: QIPF | FeatureQIPF, path: Path | str) -> None:
    """Save a newly fitted model; warn if that replaces a calibration set or an accept rule."""
    lost = _decisions_in(path)
    model.save(path)
    if lost:
        warn(f"replaced {path}, which {' and '.join(lost)}.")


def _decisions_in(path: Path | str) -> list[str]:
    """What a file holds beside a fitted model; nothing if it is not readable."""
    try:
        header, arrays = read_file(path)
    except QIPFError:
        return []
    held = {"was calibrated": "calibration" in arrays, "had a rule": header.get("rule") is not None}
    return [what for what, known in held.items() if known]


def describe(path: Path | str) -> tuple[dict[str, Any], str]:
    """The header of a file as plain values with its size and arrays, and a summary as text."""
    header, arrays = read_file(path)
    # names in the text must not control a terminal, nor fill it
    found = _restored(_mapped(header, printable), arrays, str(path), None)
    size = Path(path).stat().st_size
    shapes = {name: [str(array.dtype), *array.shape] for name, array in arrays.items()}
    text = aligned({"kind": "accept rule", "rule": str(found)})
    if isinstance(found, CalibrationMixin):
        text = found.summary()
    library = printable(header["library_version"], 80)
    version = f"qipf {library}, format {header['format_version']}, {size:,} bytes"
    net = ", net" if isinstance(found, NetworkModel) else ""
    text += "\n" + aligned({"in Python": f"qipf.load({str(path)!r}{net})", "written by": version})
    return {**_mapped(header, shortened), "arrays": shapes, "bytes": size}, text


def _mapped(value: Any, change: Callable[[str, int], str]) -> Any:
    """A header with all its texts changed, to at most 200 characters."""
    if isinstance(value, str):
        return change(value, 200)
    if isinstance(value, dict):
        return {name: _mapped(item, change) for name, item in value.items()}
    return [_mapped(item, change) for item in value] if isinstance(value, list) else value


def _read(path: Path | str, net: nn.Module | None = None) -> Any:
    return _restored(*read_file(path), str(path), net)


def _restored(header: dict[str, Any], arrays: Any, path: str, net: nn.Module | None) -> Any:
    with reading(path):
        return _checked(header, arrays, path, net)


def _checked(header: dict[str, Any], arrays: Any, path: str, net: nn.Module | None) -> Any:
    check_header(header, path)
    if header["kind"] == "rule":
        if arrays:
            refuse(path, f"its arrays are {sorted(arrays)!r:.80}")
        return restored_rule(header["rule"], path)
    if header["kind"] == "features":
        return FeatureQIPF.from_state(header, arrays, path)
    if header["kind"] == "layers":
        return LayeredQIPF.from_state(header, arrays, path, net)
    if header["kind"] == "model":
        return WrappedModel.from_state(header, arrays, path, net)
    if header["network"] is not None:
        refuse(path, "it is a field alone, but names a network")
    return QIPF.from_state(header, arrays, path)
