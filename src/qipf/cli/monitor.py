"""qipf monitor: test a stream of predictions for shift."""

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from qipf.cli.options import Json, Model, print_result
from qipf.errors import QIPFInputError

if TYPE_CHECKING:
    from qipf.monitor.monitor import ShiftMonitor
    from qipf.monitor.watch import Report


def monitor(
    model: Model,
    stream: Annotated[
        Path | None, Argument(help="A file of lines with logits. Default, or -: standard input.")
    ] = None,
    follow: Annotated[
        bool, Option("--follow", "-f", help="At the end of the file, wait for more lines.")
    ] = False,
    state: Annotated[
        Path | None, Option(help="Save the state in this file; if it exists, resume from it.")
    ] = None,
    window: Annotated[
        int | None, Option(help="Predictions per verdict. Default: 1000, or the state's value.")
    ] = None,
    alpha: Annotated[
        float | None,
        Option(help="Maximum probability of any false alarm. Default: 0.01, or the state's value."),
    ] = None,
    score: Annotated[
        str | None,
        Option(
            help="What is tested: both, novelty or uncertainty. Default: the state's choice, or "
            "both if the model file has novelties of held-out predictions."
        ),
    ] = None,
    form: Annotated[
        str, Option("--format", help="csv, jsonl, or auto: detect it from the first line.")
    ] = "auto",
    columns: Annotated[
        str | None,
        Option(
            help="csv: column names or patterns of the logits, separated by commas (default: "
            "logit*). jsonl: key of the list of logits (default: logits)."
        ),
    ] = None,
    on_bad_line: Annotated[
        str, Option(help="skip: report and count bad lines. stop: end with exit code 2.")
    ] = "skip",
    new_input: Annotated[
        bool, Option("--new-input", help="The input is not the one of the state; read all of it.")
    ] = False,
    skip_seen: Annotated[
        bool,
        Option(
            "--skip-seen",
            help="Standard input starts again from its first line: skip the lines that the state "
            "has counted.",
        ),
    ] = False,
    metrics_port: Annotated[
        int | None, Option(help="Serve Prometheus metrics on this port; 0: any free port.")
    ] = None,
    metrics_address: Annotated[
        str, Option(help="Address to serve metrics on. Default: this machine only.")
    ] = "127.0.0.1",
    as_json: Json = False,
) -> None:
    """Test whether a stream of predictions still looks like the calibration set.

    The model must be calibrated (fit --calibrate, or qipf calibrate). Reads lines of logits and
    prints one verdict per window: the evidence of a shift, an alarm (the probability of any false
    alarm is at most alpha, however long the stream), the change point, how the window differs, and
    its estimated accuracy. Novelty and uncertainty are tested, each with half of alpha, or with
    --score one of them. A line is comma-separated numbers, or JSON: a list, or an object with a
    list. Lines without finite logits (NaN, inf, null, or unreadable) are bad lines: they are
    reported, counted and skipped.

    With --state, the state is saved before each verdict is printed, also after Ctrl-C (exit code
    130) or SIGTERM (143). A resumed run prints the last verdict again under the same number and
    continues a file where it stopped. With --follow, a new file of the same name is read from its
    start, as after a log rotation. The last line of a file without a line feed is left for the
    next run. A resumed run without new lines is not an error; an input without any prediction is.

    Example: `qipf monitor model.qipf predictions.csv --follow --state monitor.qipf`

    Example: `server | qipf monitor model.qipf --json --metrics-port 9108`
    """
    from qipf.io.atomic import checked_output, locked_file, remove_drafts
    from qipf.monitor.lines import LineSource
    from qipf.monitor.parsing import LineParser
    from qipf.monitor.prometheus import metrics_server
    from qipf.monitor.watch import Watch

    path = None if stream is None or str(stream) == "-" else stream
    if path is None and follow:
        raise QIPFInputError("--follow needs a file: standard input is always read to its end.")
    with ExitStack() as stack:
        if state is not None:
            checked_output(state, inputs=[model, *([path] if path else [])])
            stack.enter_context(locked_file(state))
            remove_drafts([state])
        shift_monitor = _new_or_saved(model, state, window=window, alpha=alpha, score=score)
        before = shift_monitor.seen
        signals = stack.enter_context(_signals())
        source = stack.enter_context(LineSource(path, follow, lambda: bool(signals)))
        publish: Callable[[Report], None] | None = None
        if metrics_port is not None:
            server = metrics_server(metrics_port, metrics_address)
            publish, port = stack.enter_context(server)
            _warn(f"metrics on http://{metrics_address}:{port}/metrics")

        def report(current: "Report") -> None:
            if publish is not None:
                publish(current)
            print_result(as_json, current.as_dict(), _line(current))

        watch = Watch(
            shift_monitor, source, state, report, _warn, on_bad_line, new_input, skip_seen
        )
        dimension = shift_monitor.model.n_features_in_  # type: ignore[union-attr]
        watch.run(LineParser(dimension, source.name, form, columns))
        if signals:
            raise typer.Exit(128 + signals[0])
        if shift_monitor.seen == before and (watch.new_lines or not source.unfinished):
            missing = "predictions" if watch.new_lines else "lines"
            if before == 0:
                raise QIPFInputError(
                    f"{source.name} holds no {missing}, so there is no verdict. Give it lines of "
                    "logits; with --follow the command waits for them."
                )
            _warn(f"{source.name} held no {'' if new_input else 'new '}{missing}.")


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Yield a list that receives SIGINT and SIGTERM; a second signal ends the process."""
    received: list[int] = []

    def receive(number: int, _frame: Any) -> None:
        received.append(number)
        signal.signal(number, signal.SIG_DFL)

    before = {each: signal.signal(each, receive) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _new_or_saved(path: Path, state: Path | None, **options: Any) -> "ShiftMonitor":
    from qipf.monitor.monitor import ShiftMonitor
    from qipf.storage.save_load import load_field

    model = load_field(path, "qipf.ShiftMonitor(model).update(inputs)")
    if model.calibration_ is None:
        raise QIPFInputError(
            f"{path} is not calibrated, so there is nothing to compare a stream with. Calibrate "
            f"it: qipf calibrate {path} held_out.npz."
        )
    given = {name: value for name, value in options.items() if value is not None}
    if state is None or not state.exists():
        return ShiftMonitor(model, **given)
    saved = ShiftMonitor.load(state, model)
    for name, value in given.items():
        if value != getattr(saved, name):
            raise QIPFInputError(
                f"{state} was made with --{name} {getattr(saved, name)}, which cannot change. Omit "
                f"--{name}, or start a new state."
            )
    return saved


def _warn(text: str) -> None:
    typer.echo(f"qipf: {text}", err=True)


def _line(report: "Report") -> str:
    verdict, window, accuracy = report.verdict, report.verdict.window, report.verdict.accuracy
    result = "no shift detected"
    if verdict.alarm:
        found = f"detected at {verdict.alarm_at:,} by the {verdict.score}"
        result = f"SHIFT from {verdict.change_point:,} on ({found})"
    parts = [
        f"{verdict.seen:,}: {result}",
        f"p {verdict.p_value:.2g}",
        f"KS {window.ks:.3f}",
        f"more {'novel' if window.score == 'novelty' else 'uncertain'} {window.superiority:.1%}",
    ]
    if accuracy is not None:
        interval = f"{accuracy.low:.1%} to {accuracy.high:.1%}"
        doubt = ", may be far off" if verdict.alarm else ""
        parts.append(f"accuracy {accuracy.accuracy:.1%} ({interval}{doubt})")
    parts.append(f"{window.abstained:,} of {window.count:,} abstained")
    if verdict.start is not None and verdict.start.ks_p_value <= 0.01:
        parts.append(f"the first window differs (p {verdict.start.ks_p_value:.2g})")
    if report.bad_lines:
        lines = "line" if report.bad_lines == 1 else "lines"
        parts.append(f"{report.bad_lines:,} bad {lines} so far")
    return ", ".join(parts)
