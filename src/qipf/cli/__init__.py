"""The command line: parses, calls, prints."""

from __future__ import annotations

import sys
import traceback
import warnings
from functools import partial
from typing import Annotated, Any, NoReturn

import typer

from qipf import QIPFError, QIPFWarning, __version__
from qipf.cli import bench, figure
from qipf.cli.export import export
from qipf.cli.fit import fit
from qipf.cli.monitor import monitor
from qipf.cli.report import report
from qipf.cli.score import score
from qipf.cli.show import show

EXIT_CODES = """Exit codes: 0 done; 1 an error nobody expected; 2 bad input, told in one line;
130 interrupted."""

app = typer.Typer(
    name="qipf",
    help="How far to trust each prediction of a trained neural network, in one forward pass.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
app.command("fit")(fit)
app.command("score")(score)
app.command("monitor")(monitor)
app.command("report")(report)
app.command("show")(show)
app.command("export")(export)
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
    debug: Annotated[
        bool,
        typer.Option("--debug", help="Show the traceback of an error; may stand anywhere."),
    ] = False,
) -> None:
    pass


def main() -> NoReturn:
    """Run the command line; an error ends in one line and an exit code other than 0."""
    # taken out here, so that it may also follow a command
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    try:
        with warnings.catch_warnings():
            warnings.showwarning = partial(_show_warning, warnings.showwarning)
            warnings.filterwarnings("always", category=QIPFWarning)
            # not standalone: typer would put usage errors into boxes of several lines
            code = app(args=arguments, prog_name="qipf", standalone_mode=False)
        sys.exit(code)
    except QIPFError as error:
        _end(2, f"qipf: {error}", debug)
    except Exception as error:
        # typer's usage errors, which are click's own or those of its copy of click
        if hasattr(error, "format_message"):
            _end(2, _usage_line(error), debug)
        way_out = "" if debug else " Run it again with --debug, and report what it shows."
        _end(1, f"qipf: unexpected {type(error).__name__}: {_first_line(error)}{way_out}", debug)


def _usage_line(error: Any) -> str:
    """What is wrong with the words of a command; nothing if they were none and got the help."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return ""
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "qipf"
    told = " ".join(error.format_message().split()).rstrip(".?")
    mark = "?" if "Did you mean" in told else "."
    return f"{command}: {told}{mark} Try `{command} --help`."


def _end(code: int, line: str, debug: bool) -> NoReturn:
    if debug:
        traceback.print_exc()
    if line:
        typer.echo(line, err=True)
    sys.exit(code)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or ["no message"])[0].rstrip(".") + "."


def _show_warning(usual: Any, message: Any, category: type[Warning], *where: Any) -> None:
    """qipf's own warnings in one line, without the place in the code."""
    if issubclass(category, QIPFWarning):
        typer.echo(f"qipf: warning: {message}", err=True)
    else:
        usual(message, category, *where)
