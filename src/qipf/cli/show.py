"""qipf show: what is inside a saved field."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from qipf.cli.options import Json, answer


def show(
    path: Annotated[
        Path, typer.Argument(help="A field, wrapped model or accept rule saved by qipf.")
    ],
    as_json: Json = False,
) -> None:
    """Tell what is inside a saved field, after checking that it is sound.

    Example: `qipf show field.qipf`

    Example: `qipf show field.qipf --json`
    """
    from qipf.storage.save_load import describe

    told = describe(path)
    answer(as_json, told, "\n".join([f"{path}", *_lines(told)]))


def _lines(told: dict[str, Any]) -> list[str]:
    facts = {"rule": _rule_facts, "layers": _layers_facts}.get(told["kind"], _field_facts)(told)
    return [f"  {name:<14}{value}" for name, value in facts.items()]


def _rule_facts(told: dict[str, Any]) -> dict[str, str]:
    return {"kind": "accept rule", "written by": _writer(told), **_promise(told["rule"])}


def _layers_facts(told: dict[str, Any]) -> dict[str, str]:
    layers = [
        f"{layer['layer']} ({layer['side']}), weight {layer['weight']:.3f}, "
        f"{layer['centers']:,} {'weighted ' if layer['weighted'] else ''}centres, bandwidth "
        f"{layer['bandwidth']:.4g}, {layer['width']} numbers narrowed to {layer['dimension']}"
        for layer in told["layers"]
    ]
    return {
        "kind": "fields of a network's layers",
        "written by": _writer(told),
        "softmax": f"weight {told['softmax_weight']:.3f}",
        "layers": f"\n{'':16}".join(layers) or "none",
        "parameters": ", ".join(f"{name}={value}" for name, value in told["parameters"].items()),
        "network": f"weights {told['network']['fingerprint']}",
    }


def _promise(rule: dict[str, Any]) -> dict[str, str]:
    """The rule in the words that `print(rule)` has for it."""
    from qipf.storage.restoring import rule_of

    action, *rest = str(rule_of(rule)).splitlines()
    return {"rule": "\n".join([action, *(f"{'':16}{line}" for line in rest)])}


def _writer(told: dict[str, Any]) -> str:
    return (
        f"qipf {told['library_version']}, format {told['format_version']}, {told['bytes']:,} bytes"
    )


def _field_facts(told: dict[str, Any]) -> dict[str, str]:
    fitted, centers, network = told["fitted"], told["centers"], told["network"]
    weighted = "weighted " if told["weighted"] else ""
    facts = {
        "kind": "field of a wrapped model" if network else "field",
        "written by": _writer(told),
        "fitted on": f"{fitted['n_samples_seen']:,} rows of {centers['dimension']} numbers",
        "centres": f"{centers['count']:,} {weighted}({told['dtype']})",
        "bandwidth": f"{fitted['bandwidth']:.6g}, {fitted['bandwidth_factor']:.4g} × Silverman's "
        f"({fitted['bandwidth_criterion']})",
        "energies": ", ".join(f"{energy:.6g}" for energy in fitted["energies"]),
        "outlier above": f"{-fitted['offset']:.6g}, by the training rows",
        "parameters": ", ".join(f"{name}={value}" for name, value in told["parameters"].items()),
    }
    if told["features"]:
        facts["columns"] = ", ".join(told["features"])
    if network:
        facts["layer"] = f"{network['layer'] or 'logits'}, pooling {network['pooling']}"
        facts["network"] = f"weights {network['fingerprint']}"
    if told["calibration"]:
        held_out = told["calibration"]
        errors = "errors unknown" if held_out["errors"] is None else f"{held_out['errors']:,} wrong"
        facts["calibration"] = (
            f"{held_out['count']:,} held-out predictions, {errors}; uncertainty up to "
            f"{held_out['max']:.6g}, half of them up to {held_out['median']:.6g}"
        )
    if told["rule"]:
        facts |= _promise(told["rule"])
    return facts
