"""The command line: parses, calls, prints."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from qipf import QIPFError, __version__
from qipf.cli import bench, figure

app = typer.Typer(
    name="qipf",
    help="How far to trust each prediction of a trained neural network, in one forward pass.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
app.add_typer(bench.app, name="bench")
app.add_typer(figure.app, name="figure")


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


def main() -> None:
    """Run the command line; what qipf refuses ends in one line and exit code 2."""
    try:
        app(prog_name="qipf")
    except QIPFError as error:
        typer.echo(f"qipf: {error}", err=True)
        sys.exit(2)
