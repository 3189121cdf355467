"""The command line: parse arguments, call the library, print results."""

import sys
import traceback
import warnings
from functools import partial
from typing import Annotated, Any, NoReturn

import typer
from typer import Option
from typer.core import TyperGroup

from qipf import QIPFError, QIPFWarning, __version__
from qipf.cli import bench, features, figure
from qipf.cli.calibrate import calibrate
from qipf.cli.export import export, show
from qipf.cli.fit import fit
from qipf.cli.monitor import monitor
from qipf.cli.report import report
from qipf.cli.score import score
from qipf.errors import printable
from qipf.io.atomic import DISK_FULL, write_error

EXIT_CODES = """Exit codes: 0 success; 1 unexpected error; 2 bad input, explained in one line;
130 interrupted."""


class _Commands(TyperGroup):
    """Commands that, if they are interrupted, say what became of their output."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("\nStopped; unfinished output was discarded.", err=True)
            raise typer.Exit(130) from None


app = typer.Typer(
    name="qipf",
    cls=_Commands,
    help="Uncertainty of each prediction of a trained classifier, from one forward pass.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
app.command("fit")(fit)
app.command("calibrate")(calibrate)
app.command("score")(score)
app.command("monitor")(monitor)
app.command("report")(report)
app.command("show")(show)
app.command("export")(export)
app.add_typer(features.app, name="features")
app.add_typer(bench.app, name="bench")
app.add_typer(figure.app, name="figure")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"qipf {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: Annotated[
        bool, Option("--debug", help="Show the traceback of errors; may follow a command.")
    ] = False,
) -> None:
    pass


def main() -> NoReturn:
    """Run the command line; an error prints one line and sets the exit code."""
    # removed here, so that it may also follow a command
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    try:
        with warnings.catch_warnings():
            warnings.showwarning = partial(_show_warning, warnings.showwarning)
            warnings.filterwarnings("always", category=QIPFWarning)
            # not standalone: typer would print usage errors as boxes of several lines
            code = app(args=arguments, prog_name="qipf", standalone_mode=False)
        sys.exit(code)
    except QIPFError as error:
        _exit(2, f"qipf: {error}", debug)
    except Exception as error:
        # usage errors are of click, or of typer's copy of click
        if hasattr(error, "format_message"):
            _exit(2, _usage_line(error), debug)
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            _exit(2, f"qipf: {write_error(error.filename or 'the output', error)}", debug)
        hint = "" if debug else " Please report this error with the output of --debug."
        message = (str(error).splitlines() or ["no message"])[0].rstrip(".")
        _exit(1, f"qipf: unexpected {type(error).__name__}: {message}.{hint}", debug)


def _usage_line(error: Any) -> str:
    """One line for a usage error; empty if the help was shown instead."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return ""
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "qipf"
    message = " ".join(error.format_message().split()).rstrip(".?")
    mark = "?" if "Did you mean" in message else "."
    return f"{command}: {message}{mark} Try `{command} --help`."


def _exit(code: int, line: str, debug: bool) -> NoReturn:
    if debug:
        traceback.print_exc()
    if line:
        typer.echo(printable(line), err=True)
    sys.exit(code)


def _show_warning(default: Any, message: Any, category: type[Warning], *where: Any) -> None:
    """Print warnings of qipf in one line, without the position in the code."""
    if issubclass(category, QIPFWarning):
        typer.echo(printable(f"qipf: warning: {message}"), err=True)
    else:
        default(message, category, *where)
