"""qipf monitor: a stream of predictions, watched for shift."""

from __future__ import annotations

import json
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qipf.errors import QIPFInputError

if TYPE_CHECKING:
    from qipf.monitor.monitor import ShiftMonitor
    from qipf.monitor.watch import Report


def monitor(
    field: Annotated[Path, typer.Argument(help="A calibrated field: qipf fit --calibrate.")],
    stream: Annotated[
        Path | None,
        typer.Argument(help="The lines to watch, a file; standard input if not given, or for -."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for the file to grow.")
    ] = False,
    state: Annotated[
        Path | None,
        typer.Option(help="Keep the state in this file, and go on from it where it exists."),
    ] = None,
    window: Annotated[
        int | None, typer.Option(help="Predictions to a verdict: 1000, or as the state has it.")
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(help="Probability of ever a false alarm: 0.01, or as the state has it."),
    ] = None,
    form: Annotated[
        str, typer.Option("--format", help="csv, jsonl, or auto: by the first line.")
    ] = "auto",
    columns: Annotated[
        str | None,
        typer.Option(
            help="The logits: columns by name or pattern (csv; logit* if named and not given), or "
            "the name of the list in each object (jsonl; logits if not given)."
        ),
    ] = None,
    on_bad_line: Annotated[
        str, typer.Option(help="skip (reported and counted) or stop (exit code 2).")
    ] = "skip",
    new_input: Annotated[
        bool,
        typer.Option(
            "--new-input", help="The input is another than the state's: all of it is new."
        ),
    ] = False,
    skip_seen: Annotated[
        bool,
        typer.Option(
            "--skip-seen",
            help="Standard input, not a file, starts from its first line again: skip what the "
            "state counted.",
        ),
    ] = False,
    metrics_port: Annotated[
        int | None, typer.Option(help="Serve Prometheus metrics here; 0 takes any free port.")
    ] = None,
    metrics_address: Annotated[
        str, typer.Option(help="Who may ask for metrics: only this machine, unless given.")
    ] = "127.0.0.1",
    as_json: Annotated[
        bool, typer.Option("--json", help="Verdicts as lines of JSON, for another program.")
    ] = False,
) -> None:
    """Tell whether a stream of predictions still looks like the data of the calibration.

    Reads logits line by line and writes one verdict a window: the evidence of a shift, an alarm
    (false with probability alpha at most, however long the stream), since when, how the window
    differs, and how accurate it seems. A line is a row of numbers by comma, or JSON: a list, or an
    object with a list. Logits with NaN or inf, or null, count as unusual and as abstained.

    The state is saved before each verdict is written, also when Ctrl-C (exit code 130) or SIGTERM
    (143) ends the watch; taken up again, the last verdict is written again under the same number,
    and a file is read on from where the state stands. With a state, a file's last line without its
    end is left for the next run. An input without any line is no error: that is told, and the exit
    code is 0.

    Example: `qipf monitor field.qipf predictions.csv --follow --state watch.qipf`

    Example: `server | qipf monitor field.qipf --json --metrics-port 9108`
    """
    from qipf.monitor.lines import LineSource
    from qipf.monitor.parsing import LineParser
    from qipf.monitor.watch import Watch

    path = None if stream is None or str(stream) == "-" else stream
    if path is None and follow:
        raise QIPFInputError("--follow needs a file: standard input is read to its end anyway.")
    with ExitStack() as stack:
        if state is not None:
            stack.enter_context(_kept_apart(state, [field, *([path] if path else [])]))
        watched = _monitor(field, state, window, alpha)
        before, dimension = watched.seen, watched.field.n_features_in_  # type: ignore[union-attr]
        stop = stack.enter_context(_signals())
        source = stack.enter_context(LineSource(path, follow, lambda: bool(stop)))
        count = stack.enter_context(_metrics(metrics_port, metrics_address))

        def tell(report: Report) -> None:
            count(report)
            _write(report, as_json)

        watch = Watch(watched, source, state, tell, _complain, on_bad_line, new_input, skip_seen)
        watch.run(LineParser(dimension, source.name, form, columns))
        if stop:
            raise typer.Exit(128 + stop[0])
        if watched.seen == before and (watch.new_lines or not source.unfinished):
            new = "new " * bool(before and not new_input)
            what = "predictions" if watch.new_lines else "lines"
            _complain(f"{source.name} held no {new}{what}.")


@contextmanager
def _signals() -> Iterator[list[int]]:
    """A list that holds the signal once Ctrl-C or SIGTERM asks to end; a second one insists."""
    wished: list[int] = []

    def note(number: int, _frame: Any) -> None:
        wished.append(number)
        signal.signal(number, signal.SIG_DFL)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield wished
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _kept_apart(state: Path, inputs: list[Path]) -> Iterator[None]:
    """A place for the state that can be written, and that no other watch writes to meanwhile."""
    from qipf.io.atomic import checked_output, locked_file

    checked_output(state, inputs=inputs)
    _try_to_write(state)
    with locked_file(state):
        yield


def _monitor(
    field: Path, state: Path | None, window: int | None, alpha: float | None
) -> ShiftMonitor:
    """The monitor of an earlier watch, or a new one."""
    from qipf.monitor.monitor import ShiftMonitor
    from qipf.storage.save_load import load_field

    loaded = load_field(field)
    if loaded.calibration_ is None:
        raise QIPFInputError(
            f"{field} is not calibrated, so there is nothing to compare a stream with. Fit it with "
            "--calibrate held_out.npz, or call field.calibrate(held_out_logits, labels)."
        )
    if state is None or not state.exists():
        given = {"alpha": alpha, "window": window}
        return ShiftMonitor(loaded, **{k: v for k, v in given.items() if v is not None})  # type: ignore[arg-type]
    kept = ShiftMonitor.load(state, loaded)
    for name, asked, found in (("window", window, kept.window), ("alpha", alpha, kept.alpha)):
        if asked is not None and asked != found:
            raise QIPFInputError(
                f"{state} was made with --{name} {found}, which cannot change on the way. Leave "
                f"--{name} out, or start a new state."
            )
    return kept


def _try_to_write(state: Path) -> None:
    """Find out now, not at the first verdict; permissions alone do not tell."""
    try:
        with tempfile.NamedTemporaryFile(dir=state.parent, prefix=f".{state.name}.", suffix=".tmp"):
            return
    except OSError as error:
        raise QIPFInputError(f"Cannot write {state}: {error.strerror or error}.") from error


@contextmanager
def _metrics(port: int | None, address: str) -> Iterator[Callable[[Report], None]]:
    """What takes reports for Prometheus; nothing, without a port."""
    if port is None:
        yield lambda _report: None
        return
    from qipf.monitor.prometheus import metrics_server

    with metrics_server(port, address) as (take, used):
        _complain(f"metrics on http://{address}:{used}/metrics")
        yield take


def _complain(text: str) -> None:
    typer.echo(f"qipf: {text}", err=True)


def _write(report: Report, as_json: bool) -> None:
    text = json.dumps(report.as_dict(), allow_nan=False) if as_json else _line(report)
    typer.echo(text)


def _line(report: Report) -> str:
    verdict, window = report.verdict, report.verdict.window
    if verdict.alarm:
        head = f"SHIFT since {verdict.since:,} (found at {verdict.alarm_at:,})"
    else:
        head = "no shift found"
    parts = [
        f"{verdict.seen:,}: {head}",
        f"p {verdict.p_value:.2g}",
        f"KS {window.ks:.3f}",
        f"more uncertain {window.superiority:.1%}",
    ]
    if verdict.accuracy is not None:
        accuracy = verdict.accuracy
        parts.append(
            f"accuracy {accuracy.accuracy:.1%} ({accuracy.low:.1%} to {accuracy.high:.1%})"
        )
    parts.append(f"{window.abstained:,} of {window.count:,} abstained")
    if report.bad_lines:
        parts.append(f"{report.bad_lines:,} bad lines so far")
    return ", ".join(parts)
