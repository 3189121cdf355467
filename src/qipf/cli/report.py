"""qipf report: one page that can be mailed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qipf.cli.options import Columns, Json, Labels, answer
from qipf.errors import QIPFInputError

if TYPE_CHECKING:
    from qipf.report.own.study import Threshold


def report(
    run: Annotated[
        list[Path] | None,
        typer.Argument(
            help="A run's folder, as qipf bench run makes it; several, such as one for each seed, "
            "are read as one run."
        ),
    ] = None,
    train: Annotated[
        Path | None, typer.Option(help="Instead of a run: logits of your own training data.")
    ] = None,
    test: Annotated[Path | None, typer.Option(help="With --train: logits to judge.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path(
        "report.html"
    ),
    labels: Labels = None,
    columns: Columns = None,
    risk: Annotated[
        float | None,
        typer.Option(
            help="With --train and labels: the error rate that the threshold is certified to keep "
            "to; about half of the test predictions' own if not given."
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="For a run's sample images: folder of the datasets."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write one HTML page: of a benchmark run, or of your own model's saved logits.

    The page is a single file that works offline. For your own model it needs logits of the
    training data and of the data to judge (.npz, .npy, .csv or .parquet), with labels or without.

    Example: `qipf report runs/digits -o report.html`

    Example: `qipf report --train train.npz --test test.npz -o mine.html`

    Example: `qipf report --train train.csv --test test.csv --risk 0.01 -o mine.html`
    """
    if run:
        if train is not None or test is not None:
            raise QIPFInputError("Name a run, or --train and --test, not both.")
        for option, value in (("--labels", labels), ("--columns", columns), ("--risk", risk)):
            if value is not None:
                raise QIPFInputError(f"{option} goes with --train and --test, not with a run.")
        from qipf.report.run.page import write_run_report

        write_run_report(run, output, data)
        answer(as_json, {"output": output}, f"wrote {output}")
        return
    if train is None or test is None:
        raise QIPFInputError(
            "Name what to report: a run's folder, or logits with --train and --test."
        )
    if data is not None:
        raise QIPFInputError("--data goes with a run, not with --train and --test.")
    from qipf.io.logits.columns import AUTO
    from qipf.report.own.page import write_own_report
    from qipf.report.own.sections import detection

    found = write_own_report(train, test, output, columns, AUTO if labels is None else labels, risk)
    limit = found.threshold
    told: dict[str, Any] = {
        "output": output,
        "rows": len(found.predicted),
        "accuracy": None if found.wrong is None else 1 - float(found.wrong.mean()),
        "roc_auc": {name: values["roc_auc"] for name, values in detection(found).items()},
        "threshold": None if limit is None else _limit(limit),
    }
    answer(as_json, told, f"wrote {output}")


def _limit(limit: Threshold) -> dict[str, Any]:
    return {
        "uncertainty": limit.value,
        "target": limit.target,
        "kept": limit.kept / limit.checked_on,
        "error_rate": None if limit.risk is None else limit.risk[0],
        "holds": limit.holds,
    }
