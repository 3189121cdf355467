"""qipf show: describe a saved file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Argument

from qipf.cli.options import Json, print_result


def show(
    path: Annotated[Path, Argument(help="A model or accept rule, saved by qipf fit or qipf.save.")],
    as_json: Json = False,
) -> None:
    """Check a saved file and describe its content.

    Example: `qipf show model.qipf`

    Example: `qipf show model.qipf --json`
    """
    from qipf.storage.save_load import describe

    content = describe(path)
    kind, version, number = (content[k] for k in ("kind", "library_version", "format_version"))
    rows = {
        "kind": _KINDS[kind],
        "written by": f"qipf {version}, format {number}, {content['bytes']:,} bytes",
    }
    if kind == "layers":
        rows |= _layers(content)
    elif kind != "rule":
        rows |= _field(content)
    if content.get("rule"):
        rows["rule"] = _rule(content["rule"])
    lines = [f"  {name:<14}{value}" for name, value in rows.items()]
    print_result(as_json, content, "\n".join([str(path), *lines]))


_KINDS = {
    "field": "field",
    "model": "field of a wrapped model",
    "layers": "fields of a network's layers",
    "rule": "accept rule",
}
_INDENT = "\n" + 16 * " "


def _rule(rule: dict[str, Any]) -> str:
    from qipf.storage.restoring import rule_of

    return _INDENT.join(str(rule_of(rule)).splitlines())


def _layers(content: dict[str, Any]) -> dict[str, str]:
    layers = [
        f"{layer['layer']} ({layer['side']}), weight {layer['weight']:.3f}, "
        f"{layer['centers']:,} {'weighted ' if layer['weighted'] else ''}centres, bandwidth "
        f"{layer['bandwidth']:.4g}, {layer['width']} numbers projected to {layer['dimension']}"
        for layer in content["layers"]
    ]
    return {
        "softmax": f"weight {content['softmax_weight']:.3f}",
        "layers": _INDENT.join(layers) or "none",
        "parameters": _parameters(content),
        "network": f"weights {content['network']['fingerprint']}",
    }


def _field(content: dict[str, Any]) -> dict[str, str]:
    fitted, centers, network = content["fitted"], content["centers"], content["network"]
    weighted = "weighted " if content["weighted"] else ""
    rows = {
        "fitted on": f"{fitted['n_samples_seen']:,} rows of {centers['dimension']} numbers",
        "centres": f"{centers['count']:,} {weighted}({content['dtype']})",
        "bandwidth": f"{fitted['bandwidth']:.6g}, {fitted['bandwidth_factor']:.4g} × Silverman's "
        f"({fitted['bandwidth_criterion']})",
        "energies": ", ".join(f"{energy:.6g}" for energy in fitted["energies"]),
        "outlier above": f"{-fitted['offset']:.6g}, by the training rows",
        "parameters": _parameters(content),
    }
    if content["features"]:
        rows["columns"] = ", ".join(content["features"])
    if network:
        rows["layer"] = f"{network['layer'] or 'logits'}, pooling {network['pooling']}"
        rows["network"] = f"weights {network['fingerprint']}"
    if content["calibration"]:
        held_out = content["calibration"]
        errors = "errors unknown" if held_out["errors"] is None else f"{held_out['errors']:,} wrong"
        rows["calibration"] = (
            f"{held_out['count']:,} held-out predictions, {errors}; uncertainty up to "
            f"{held_out['max']:.6g}, half of them up to {held_out['median']:.6g}"
        )
    return rows


def _parameters(content: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in content["parameters"].items())
