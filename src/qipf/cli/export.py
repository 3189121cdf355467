"""qipf export: a field as an ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qipf.cli.options import Json, answer


def export(
    field: Annotated[Path, typer.Argument(help="A field, as qipf fit writes it.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write: .onnx.")],
    rule: Annotated[
        Path | None,
        typer.Option(
            help="An accept rule, as qipf.save writes it, for the output accepted; by default the "
            "field's own, if it has one."
        ),
    ] = None,
    max_centers: Annotated[
        int | None, typer.Option(help="Condense the field to so many centres: a smaller file.")
    ] = None,
    check: Annotated[
        bool, typer.Option(help="Run the file in ONNX Runtime, if installed, before it is kept.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Write a field as an ONNX file that judges logits of any framework, without qipf or torch.

    Input: logits. Outputs: uncertainty, modes and, with a rule, accepted.

    Example: `qipf export field.qipf -o field.onnx`

    Example: `qipf export field.qipf --max-centers 500 -o small.onnx`
    """
    from qipf.export import export_field_onnx
    from qipf.io.atomic import checked_output
    from qipf.storage.save_load import load, load_field

    checked_output(output, [".onnx"], inputs=[field] if rule is None else [field, rule])
    written = export_field_onnx(
        load_field(field),
        output,
        rule=None if rule is None else load(rule),
        max_centers=max_centers,
        check=check,
    )
    told = {
        "output": written.path,
        "bytes": written.bytes,
        "centers": written.centers,
        "inputs": written.inputs,
        "outputs": written.outputs,
        "difference": written.difference,
    }
    tried = "not tried in ONNX Runtime"
    if written.difference is not None:
        tried = f"differs from PyTorch by at most {written.difference:.1e}"
    answer(
        as_json,
        told,
        f"wrote {output}: {written.centers:,} centres, {written.bytes:,} bytes, {tried}",
    )
