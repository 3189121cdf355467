"""qipf show: what is inside a saved field."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from qipf.cli.options import Json, answer


def show(
    path: Annotated[Path, typer.Argument(help="A field or wrapped model saved by qipf.")],
    as_json: Json = False,
) -> None:
    """Tell what is inside a saved field, after checking that it is sound.

    Example: `qipf show field.qipf`

    Example: `qipf show field.qipf --json`
    """
    from qipf.storage import describe

    told = describe(path)
    answer(as_json, told, "\n".join([f"{path}", *_lines(told)]))


def _lines(told: dict[str, Any]) -> list[str]:
    fitted, centers, network = told["fitted"], told["centers"], told["network"]
    weighted = "weighted " if told["weighted"] else ""
    facts = {
        "kind": "field of a wrapped model" if network else "field",
        "written by": f"qipf {told['library_version']}, format {told['format_version']}, "
        f"{told['bytes']:,} bytes",
        "fitted on": f"{fitted['n_samples_seen']:,} rows of {centers['dimension']} numbers",
        "centres": f"{centers['count']:,} {weighted}({told['dtype']})",
        "bandwidth": f"{fitted['bandwidth']:.6g}, {fitted['bandwidth_factor']:.4g} × Silverman's "
        f"({fitted['bandwidth_criterion']})",
        "energies": ", ".join(f"{energy:.6g}" for energy in fitted["energies"]),
        "outlier above": f"{-fitted['offset']:.6g}",
        "parameters": ", ".join(f"{name}={value}" for name, value in told["parameters"].items()),
    }
    if told["features"]:
        facts["columns"] = ", ".join(told["features"])
    if network:
        facts["layer"] = f"{network['layer'] or 'logits'}, pooling {network['pooling']}"
        facts["network"] = f"weights {network['fingerprint']}"
    return [f"  {name:<14}{value}" for name, value in facts.items()]
