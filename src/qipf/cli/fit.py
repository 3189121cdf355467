"""qipf fit: a field from a file of training logits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qipf.cli.options import Columns, Json, Labels, answer
from qipf.errors import QIPFInputError


def fit(
    train: Annotated[
        Path,
        typer.Argument(
            help="Logits the model gives its own training data: .npz, .npy, .csv or .parquet."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path(
        "field.qipf"
    ),
    labels: Labels = None,
    columns: Columns = None,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            help="Held-out logits, with labels if there are any, laid out as the training file: "
            "what qipf monitor compares a stream with, and qipf score finds outliers by."
        ),
    ] = None,
    bandwidth: Annotated[
        str, typer.Option(help="cv, silverman, or a positive number: the kernel's width itself.")
    ] = "cv",
    max_centers: Annotated[int, typer.Option(help="Centres of the field, at most.")] = 6000,
    reduction: Annotated[
        str,
        typer.Option(
            help="How more rows than that are reduced: coreset, random (as in the paper), or auto: "
            "coreset for up to 16 logits a row."
        ),
    ] = "auto",
    orders: Annotated[
        str, typer.Option(help="Orders of the modes whose mean is the uncertainty.")
    ] = "1,2,3,4",
    softening: Annotated[
        float, typer.Option(help="Rounds off the modes' poles; 0 is exact.")
    ] = 0.0,
    contamination: Annotated[
        float,
        typer.Option(
            help="Share of rows to be called outliers: of the held-out ones in qipf score, where "
            "there are any, else of the training rows."
        ),
    ] = 0.1,
    engine: Annotated[str, typer.Option(help="auto, attention, reference or triton.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, …")] = "auto",
    seed: Annotated[int, typer.Option(help="What is drawn at random follows from it.")] = 0,
    as_json: Json = False,
) -> None:
    """Fit a field to a model's training logits and save it.

    With labels, the kernel's width is chosen by how well the model's errors are found (and, where
    they are few, correct predictions near an error); without, by likelihood. The file is read in
    blocks: memory does not grow with it.

    Example: `qipf fit train.npz -o field.qipf`

    Example: `qipf fit train.csv --columns 'logit_*' --labels class -o field.qipf`

    Example: `qipf fit logits.npy --labels labels.npy --bandwidth silverman`

    Example: `qipf fit train.npz --calibrate held_out.npz -o field.qipf`
    """
    from qipf.field.estimator import QIPF
    from qipf.io.atomic import checked_output
    from qipf.io.logits import open_table, read_table
    from qipf.io.logits.columns import AUTO
    from qipf.progress import progress_bar
    from qipf.storage.save_load import save

    checked_output(output, inputs=[train, *([] if calibrate is None else [calibrate])])
    field = QIPF(
        orders=_orders(orders),
        bandwidth=_bandwidth(bandwidth),
        max_centers=max_centers,
        reduction=reduction,
        softening=softening,
        contamination=contamination,
        engine=engine,
        device=device,
        random_state=seed,
    )
    truth = AUTO if labels is None else labels
    table = open_table(train, columns, truth)
    held_out = None
    if calibrate is not None:
        if calibrate.exists() and calibrate.samefile(train):
            raise QIPFInputError(
                f"{calibrate} is the training data itself, among which nothing looks unusual. "
                "Calibrate with predictions that were kept apart."
            )
        # labels in a file of their own are those of the training rows
        held_out = read_table(calibrate, columns, AUTO if truth.endswith(".npy") else truth)
        width = held_out.logits.shape[1]
        if width != table.dimension:
            raise QIPFInputError(
                f"{calibrate} has {width} logits a row, but {train} has {table.dimension}. "
                "Calibrate with predictions of the same network."
            )
    with progress_bar("reading", table.rows, unit="row") as bar:
        for block in table.blocks():
            field.partial_fit(block.logits, block.labels)
            bar.update(len(block.logits))
    if held_out is not None:
        # as exact as the field, and as the lines that qipf monitor reads
        field.calibrate(held_out.logits.astype(field.centers_.dtype), held_out.labels)
    save(field, output)
    told = {
        "output": output,
        "rows": field.n_samples_seen_,
        "labelled": table.labelled,
        "centers": len(field.centers_),
        "dimension": field.n_features_in_,
        "bandwidth": field.bandwidth_,
        "bandwidth_criterion": field.bandwidth_criterion_,
    }
    calibrated = ""
    if held_out is not None:
        told |= {"calibrated_on": len(held_out.logits)}
        calibrated = f", calibrated on {len(held_out.logits):,} rows"
    answer(
        as_json,
        told,
        f"wrote {output}: {told['centers']:,} centres for {told['rows']:,} rows of "
        f"{told['dimension']} logits, bandwidth {told['bandwidth']:.4g} "
        f"({told['bandwidth_criterion']}){calibrated}",
    )


def _orders(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise QIPFInputError(
            f"--orders must be whole numbers by comma, such as 1,2,3,4, got {text!r}."
        ) from None


def _bandwidth(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text
