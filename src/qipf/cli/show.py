"""qipf show: the contents of a saved file."""

from pathlib import Path
from typing import Annotated

import typer

from qipf.cli.options import Json, print_result


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
