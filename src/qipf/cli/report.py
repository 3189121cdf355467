"""qipf report: one HTML page."""

from pathlib import Path
from typing import Annotated, Any

from typer import Option

from qipf.cli.options import CalibrateLabels, Columns, Json, Runs, print_result
from qipf.errors import QIPFInputError


def report(
    run: Annotated[list[Path] | None, Runs] = None,
    train: Annotated[
        Path | None, Option(help="Instead of a run: logits of your own training data.")
    ] = None,
    model: Annotated[
        Path | None, Option(help="Instead of --train: a model file of logits, as of qipf fit.")
    ] = None,
    calibrate: Annotated[
        Path | None,
        Option(
            help="Logits of held-out data, which neither the network nor the model was fitted on, "
            "to compare the test data with. Default: the calibration set of --model."
        ),
    ] = None,
    test: Annotated[Path | None, Option(help="With --train or --model: logits to score.")] = None,
    output: Annotated[Path, Option("--output", "-o", help="Page to write.")] = Path("report.html"),
    labels: Annotated[
        str | None,
        Option(
            help="True classes: a column or an array of all files, or an .npy file for the rows of "
            "--test. Default: label or labels, if present."
        ),
    ] = None,
    train_labels: Annotated[
        str | None, Option(help="True classes of the rows of --train, if not as --labels.")
    ] = None,
    calibrate_labels: CalibrateLabels = None,
    columns: Columns = None,
    risk: Annotated[
        float | None,
        Option(
            help="With labels: certified maximum error rate of the threshold. Default: "
            "about half of the error rate of the test predictions."
        ),
    ] = None,
    data: Annotated[
        Path | None, Option(help="Folder of the datasets, for the sample images of a run.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write one HTML page about a benchmark run, or about your own model's logits.

    The page is a single file that works offline. For your own model it needs logits of the data to
    score (.npz, .npy, .csv or .parquet) and either logits of the training data, to which a model is
    fitted as by qipf fit, or a model file. With labels of the data to score the page compares
    scores by how well they find the errors, and suggests a threshold for the best one. With
    held-out logits (--calibrate) it shows whether the data has shifted.

    Example: `qipf report runs/digits -o report.html`

    Example: `qipf report --train train.npz --calibrate held_out.npz --test test.npz -o mine.html`

    Example: `qipf report --model model.qipf --test test.csv --risk 0.01 -o mine.html`
    """
    own = {
        "--train": train,
        "--model": model,
        "--calibrate": calibrate,
        "--test": test,
        "--labels": labels,
        "--train-labels": train_labels,
        "--calibrate-labels": calibrate_labels,
        "--columns": columns,
        "--risk": risk,
    }
    if run:
        for option, value in own.items():
            if value is not None:
                raise QIPFInputError(f"{option} cannot be used with the folder of a run.")
        from qipf.reporting.run.page import write_run_report

        write_run_report(run, output, data)
        print_result(as_json, {"output": output}, f"wrote {output}")
        return
    if test is None or (train is None) == (model is None):
        raise QIPFInputError(
            "Give the folder of a run, or logits with --test and one of --train and --model."
        )
    if data is not None:
        raise QIPFInputError("--data is for a run, not for logits.")
    for option, value, needed in (
        ("--train-labels", train_labels, train),
        ("--calibrate-labels", calibrate_labels, calibrate),
    ):
        if value is not None and needed is None:
            raise QIPFInputError(f"{option} needs {option.removesuffix('-labels')}.")
    from qipf.reporting.own.page import write_own_report

    study = write_own_report(
        train, test, output, columns, labels, risk, model, calibrate, train_labels, calibrate_labels
    )
    result: dict[str, Any] = {
        "output": output,
        "rows": len(study.predicted),
        "accuracy": None if study.wrong is None else 1 - float(study.wrong.mean()),
        "roc_auc": {name: values["roc_auc"] for name, values in study.metrics.items()},
        "threshold": study.threshold,
    }
    print_result(as_json, result, f"wrote {output}")
