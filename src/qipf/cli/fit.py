"""qipf fit: fit a model to a file of training logits."""

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from qipf.cli.calibrate import calibrate_field, require_labels
from qipf.cli.options import CalibrateLabels, Columns, Json, Labels, MaxRisk, print_result
from qipf.errors import QIPFInputError
from qipf.validation.parameters import LARGEST_SEED


def fit(
    train: Annotated[
        Path,
        Argument(help="Logits of the network on its training data: .npz, .npy, .csv or .parquet."),
    ],
    output: Annotated[Path, Option("--output", "-o", help="File to write.")] = Path("model.qipf"),
    labels: Labels = None,
    columns: Columns = None,
    calibrate: Annotated[
        Path | None,
        Option(
            help="Held-out logits, with labels if known; qipf score finds outliers by them, qipf "
            "monitor compares streams with them. Later: qipf calibrate."
        ),
    ] = None,
    calibrate_labels: CalibrateLabels = None,
    max_risk: MaxRisk = None,
    bandwidth: Annotated[
        str, Option(help="Width of the kernel: cv, silverman, or a positive number.")
    ] = "cv",
    max_centers: Annotated[int, Option(help="Maximum number of centres.", min=1)] = 6000,
    reduction: Annotated[
        str,
        Option(
            help="How to reduce more rows to the centres: coreset, random (as in the paper), or "
            "auto: coreset for up to 64 logits per row."
        ),
    ] = "auto",
    orders: Annotated[
        str, Option(help="Orders of the modes; the uncertainty is their mean.")
    ] = "1,2,3,4",
    normalization: Annotated[
        str,
        Option(
            help="Constant of the kernel: standard (a density in units of the bandwidth), density "
            "(in units of the logits) or peak (1 at the centre)."
        ),
    ] = "standard",
    fallback: Annotated[
        bool,
        Option(help="Use the softmax entropy where the field detects errors far worse than it."),
    ] = True,
    softening: Annotated[
        float, Option(help="Softening of the poles of the modes; 0 is exact.")
    ] = 0.0,
    contamination: Annotated[
        float,
        Option(
            help="Share of rows above the outlier limit of qipf score: of the held-out rows, or "
            "without any of the training rows."
        ),
    ] = 0.1,
    engine: Annotated[str, Option(help="auto, attention, reference or triton.")] = "auto",
    device: Annotated[str, Option(help="auto, cpu, cuda, …")] = "auto",
    seed: Annotated[int, Option(help="Seed of all random choices.", min=0, max=LARGEST_SEED)] = 0,
    as_json: Json = False,
) -> None:
    """Fit a model to training logits and save it.

    With labels, the kernel width is chosen by how well the network's errors are detected (and,
    where they are few, correct predictions near an error); without labels, by likelihood. The file
    is read in blocks, so it may be larger than memory.

    Example: `qipf fit train.npz -o model.qipf`

    Example: `qipf fit train.csv --columns 'logit_*' --labels class -o model.qipf`

    Example: `qipf fit logits.npy --labels labels.npy --bandwidth silverman`

    Example: `qipf fit train.npz --calibrate held_out.npz --max-risk 0.01 -o model.qipf`

    Example: `qipf fit train.npy --labels train_labels.npy --calibrate held_out.npy
    --calibrate-labels held_out_labels.npy`
    """
    from qipf.field.estimator import QIPF
    from qipf.io.atomic import checked_output
    from qipf.io.logits import open_table
    from qipf.io.logits.columns import AUTO
    from qipf.scoring.fitting import fit_table, labels_for, read_held_out
    from qipf.storage.save_load import save_fitted

    checked_output(output, inputs=[train, *([] if calibrate is None else [calibrate])])
    field = QIPF(
        orders=_orders(orders),
        bandwidth=_bandwidth(bandwidth),
        max_centers=max_centers,
        reduction=reduction,
        softening=softening,
        normalization=normalization,
        fallback=fallback,
        contamination=contamination,
        engine=engine,
        device=device,
        random_state=seed,
    )
    table = open_table(train, columns, AUTO if labels is None else labels)
    held_out = None
    if calibrate is not None:
        truth = labels_for(calibrate_labels, labels)
        held_out = read_held_out(calibrate, table.path, table.dimension, columns, truth)
        require_labels(held_out, calibrate, "--calibrate-labels", max_risk)
    elif calibrate_labels is not None or max_risk is not None:
        option = "--max-risk" if calibrate_labels is None else "--calibrate-labels"
        raise QIPFInputError(f"{option} needs held-out logits: add --calibrate HELD_OUT.")
    fit_table(field, table)
    calibration: dict[str, Any] = {}
    about = ""
    if held_out is not None:
        calibration, about = calibrate_field(field, held_out, max_risk)
    save_fitted(field, output)
    result = {
        "output": output,
        "rows": field.n_samples_seen_,
        "labelled": table.labelled,
        "centers": len(field.centers_),
        "dimension": field.n_features_in_,
        "bandwidth": field.bandwidth_,
        "bandwidth_criterion": field.bandwidth_criterion_,
        **calibration,
    }
    text = (
        f"wrote {output}: {result['centers']:,} centres for {result['rows']:,} rows of "
        f"{result['dimension']} logits, bandwidth {result['bandwidth']:.4g} "
        f"({result['bandwidth_criterion']})"
    )
    if not table.labelled:
        text += "; no labels were found (--labels), so how well it detects errors is unknown"
    print_result(as_json, result, f"{text}, {about}" if about else text)


def _orders(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise QIPFInputError(
            "--orders must be integers of at least 1 separated by commas, such as 1,2,3,4, got "
            f"{text!r}."
        )
    return [int(part) for part in parts]


def _bandwidth(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text
