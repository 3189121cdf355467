"""The command line: parses, calls, prints."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from qipf import QIPFError, __version__

app = typer.Typer(
    name="qipf",
    help="How far to trust each prediction of a trained neural network, in one forward pass.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
figure = typer.Typer(help="Draw figures.", no_args_is_help=True)
app.add_typer(figure, name="figure")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"qipf {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass


@figure.command("sine")
def figure_sine(
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


def main() -> None:
    """Run the command line; what qipf refuses ends in one line and exit code 2."""
    try:
        app()
    except QIPFError as error:
        typer.echo(f"qipf: {error}", err=True)
        sys.exit(2)
