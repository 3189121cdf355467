"""qipf figure: pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Draw figures.", no_args_is_help=True)


@app.callback()
def _figure() -> None:
    """Draw figures."""


@app.command("sine")
def sine(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The file to write: .png, .pdf or .svg.")
    ] = Path("sine.png"),
) -> None:
    """The field, potential and modes of a 50 Hz sine wave (the paper's Figure 2).

    Example: `qipf figure sine -o sine.png`
    """
    from qipf.report.sine import draw_sine

    draw_sine(output)
    typer.echo(f"wrote {output}")
