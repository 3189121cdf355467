"""qipf fit: a field from a file of training logits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qipf.cli.options import Columns, Json, Labels, answer
from qipf.errors import QIPFInputError
from qipf.estimator import QIPF

_DEFAULTS = QIPF().get_params()


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
    bandwidth: Annotated[
        str, typer.Option(help="cv, silverman, or the kernel's width itself.")
    ] = str(_DEFAULTS["bandwidth"]),
    max_centers: Annotated[int, typer.Option(help="Centres of the field, at most.")] = _DEFAULTS[
        "max_centers"
    ],
    reduction: Annotated[
        str, typer.Option(help="How more rows than that are reduced: coreset or random.")
    ] = _DEFAULTS["reduction"],
    orders: Annotated[
        str, typer.Option(help="Orders of the modes whose mean is the uncertainty.")
    ] = ",".join(map(str, _DEFAULTS["orders"])),
    softening: Annotated[
        float, typer.Option(help="Rounds off the modes' poles; 0 is exact.")
    ] = _DEFAULTS["softening"],
    contamination: Annotated[
        float, typer.Option(help="Share of the training rows to be called outliers.")
    ] = _DEFAULTS["contamination"],
    engine: Annotated[str, typer.Option(help="auto, attention, reference or triton.")] = _DEFAULTS[
        "engine"
    ],
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, …")] = str(_DEFAULTS["device"]),
    seed: Annotated[int, typer.Option(help="What is drawn at random follows from it.")] = (
        _DEFAULTS["random_state"]
    ),
    as_json: Json = False,
) -> None:
    """Fit a field to a model's training logits and save it.

    With labels, the kernel's width is chosen by how well the model's errors are found; without,
    by likelihood. The file is read in blocks: memory does not grow with it.

    Example: `qipf fit train.npz -o field.qipf`

    Example: `qipf fit train.csv --columns 'logit_*' --labels class -o field.qipf`

    Example: `qipf fit logits.npy --labels labels.npy --bandwidth silverman`
    """
    from qipf.durable import checked_output
    from qipf.progress import progress_bar
    from qipf.storage import save
    from qipf.tables import open_table
    from qipf.tables.columns import AUTO

    checked_output(output, inputs=[train])
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
    table = open_table(train, columns, AUTO if labels is None else labels)
    with progress_bar("reading", table.rows, unit="row") as bar:
        for block in table.blocks():
            field.partial_fit(block.logits, block.labels)
            bar.update(len(block.logits))
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
    answer(
        as_json,
        told,
        f"wrote {output}: {told['centers']:,} centres for {told['rows']:,} rows of "
        f"{told['dimension']} logits, bandwidth {told['bandwidth']:.4g} "
        f"({told['bandwidth_criterion']})",
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
