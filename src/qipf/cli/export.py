"""qipf export and qipf show: write a model as an ONNX file; describe a saved file."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from qipf.cli.options import Json, Model, print_result


def export(
    model: Model,
    output: Annotated[Path, Option("--output", "-o", help="File to write: .onnx.")],
    rule: Annotated[
        Path | None,
        Option(
            help="File of an accept rule, or of a model with one, for the output accepted. "
            "Default: the model's own rule, if it has one (qipf calibrate --max-risk)."
        ),
    ] = None,
    max_centers: Annotated[
        int | None, Option(help="Reduce the field to so many centres, for a smaller file.", min=1)
    ] = None,
    check: Annotated[
        bool, Option(help="Check the file with ONNX Runtime, if it is installed.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Write a model as an ONNX file, which scores logits of any framework without qipf or torch.

    Input: logits. Outputs: uncertainty, modes, novelty and, with a rule, accepted. To export a
    network together with its uncertainty, load the model in Python and call its export_onnx.

    Example: `qipf export model.qipf -o model.onnx`

    Example: `qipf export model.qipf --max-centers 500 -o small.onnx`
    """
    from qipf.io.atomic import checked_output
    from qipf.storage.save_load import load_field, load_rule

    checked_output(output, [".onnx"], inputs=[model] if rule is None else [model, rule])
    written = load_field(model, "model.export_onnx('model.onnx', inputs)").export_onnx(
        output, rule=None if rule is None else load_rule(rule), max_centers=max_centers, check=check
    )
    result = {"output": written.path} | {
        name: getattr(written, name)
        for name in ("bytes", "centers", "inputs", "outputs", "difference")
    }
    checked = "not checked with ONNX Runtime"
    if written.difference is not None:
        checked = f"differs from PyTorch by at most {written.difference:.1e}"
    text = (
        f"wrote {output}: {', '.join(written.inputs)} to {', '.join(written.outputs)}; "
        f"{written.centers:,} centres, {written.bytes:,} bytes, {checked}"
    )
    print_result(as_json, result, text)


def show(
    path: Annotated[
        Path, typer.Argument(help="A model or accept rule saved by qipf: any .qipf file.")
    ],
    as_json: Json = False,
) -> None:
    """Show what a saved file holds, after checking it.

    Example: `qipf show model.qipf`

    Example: `qipf show model.qipf --json`
    """
    from qipf.storage.save_load import describe

    values, text = describe(path)
    print_result(as_json, values, f"{path}\n{text}")
