"""qipf show: describe a saved file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from qipf.cli.options import Json, print_result


def show(
    path: Annotated[
        Path, typer.Argument(help="A model or accept rule, saved by qipf fit or qipf.save.")
    ],
    as_json: Json = False,
) -> None:
    """Check a saved file and describe its content.

    Example: `qipf show model.qipf`

    Example: `qipf show model.qipf --json`
    """
    from qipf.storage.save_load import describe

    content = describe(path)
    rows = {"rule": _rule, "layers": _layers}.get(content["kind"], _field)(content)
    lines = [f"  {name:<14}{value}" for name, value in rows.items()]
    print_result(as_json, content, "\n".join([str(path), *lines]))


def _rule(content: dict[str, Any]) -> dict[str, str]:
    return {"kind": "accept rule", "written by": _writer(content), **_rule_text(content["rule"])}


def _layers(content: dict[str, Any]) -> dict[str, str]:
    layers = [
        f"{layer['layer']} ({layer['side']}), weight {layer['weight']:.3f}, "
        f"{layer['centers']:,} {'weighted ' if layer['weighted'] else ''}centres, bandwidth "
        f"{layer['bandwidth']:.4g}, {layer['width']} numbers narrowed to {layer['dimension']}"
        for layer in content["layers"]
    ]
    return {
        "kind": "fields of a network's layers",
        "written by": _writer(content),
        "softmax": f"weight {content['softmax_weight']:.3f}",
        "layers": f"\n{'':16}".join(layers) or "none",
        "parameters": ", ".join(f"{name}={value}" for name, value in content["parameters"].items()),
        "network": f"weights {content['network']['fingerprint']}",
    }


def _rule_text(rule: dict[str, Any]) -> dict[str, str]:
    """The text of `print(rule)`, indented."""
    from qipf.storage.restoring import rule_of

    action, *rest = str(rule_of(rule)).splitlines()
    return {"rule": "\n".join([action, *(f"{'':16}{line}" for line in rest)])}


def _writer(content: dict[str, Any]) -> str:
    version, number = content["library_version"], content["format_version"]
    return f"qipf {version}, format {number}, {content['bytes']:,} bytes"


def _field(content: dict[str, Any]) -> dict[str, str]:
    fitted, centers, network = content["fitted"], content["centers"], content["network"]
    weighted = "weighted " if content["weighted"] else ""
    facts = {
        "kind": "field of a wrapped model" if network else "field",
        "written by": _writer(content),
        "fitted on": f"{fitted['n_samples_seen']:,} rows of {centers['dimension']} numbers",
        "centres": f"{centers['count']:,} {weighted}({content['dtype']})",
        "bandwidth": f"{fitted['bandwidth']:.6g}, {fitted['bandwidth_factor']:.4g} × Silverman's "
        f"({fitted['bandwidth_criterion']})",
        "energies": ", ".join(f"{energy:.6g}" for energy in fitted["energies"]),
        "outlier above": f"{-fitted['offset']:.6g}, by the training rows",
        "parameters": ", ".join(f"{name}={value}" for name, value in content["parameters"].items()),
    }
    if content["features"]:
        facts["columns"] = ", ".join(content["features"])
    if network:
        facts["layer"] = f"{network['layer'] or 'logits'}, pooling {network['pooling']}"
        facts["network"] = f"weights {network['fingerprint']}"
    if content["calibration"]:
        held_out = content["calibration"]
        errors = "errors unknown" if held_out["errors"] is None else f"{held_out['errors']:,} wrong"
        facts["calibration"] = (
            f"{held_out['count']:,} held-out predictions, {errors}; uncertainty up to "
            f"{held_out['max']:.6g}, half of them up to {held_out['median']:.6g}"
        )
    if content["rule"]:
        facts |= _rule_text(content["rule"])
    return facts
