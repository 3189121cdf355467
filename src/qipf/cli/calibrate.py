"""qipf calibrate: held-out predictions for p-values, outliers and shift, and an accept rule."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from qipf.cli.options import Columns, Json, Labels, MaxRisk, Model, print_result
from qipf.errors import QIPFInputError, warn

if TYPE_CHECKING:
    from qipf.field.estimator import QIPF
    from qipf.io.logits import Block


def calibrate(
    model: Model,
    held_out: Annotated[
        Path,
        Argument(
            help="Logits of held-out data, which neither the network nor the model was fitted on: "
            ".npz, .npy, .csv or .parquet."
        ),
    ],
    labels: Labels = None,
    wrong: Annotated[
        str | None,
        Option(
            help="Instead of --labels, for a model of a layer's outputs: 1 where the network's "
            "prediction was wrong, else 0. A column, an array, or an .npy file."
        ),
    ] = None,
    columns: Columns = None,
    max_risk: MaxRisk = None,
    min_coverage: Annotated[
        float | None,
        Option(help="Instead of --max-risk: the rule accepts at least this share, such as 0.9."),
    ] = None,
    min_novelty_p: Annotated[
        float | None,
        Option(
            help="With --max-risk: the rule also abstains from novel inputs, whose novelty has a "
            "p-value of at most this, such as 0.01."
        ),
    ] = None,
    confidence: Annotated[
        float | None, Option(help="Confidence of the rule's guarantee. Default: 0.95.")
    ] = None,
    output: Annotated[
        Path | None,
        Option("--output", "-o", help="File to write. Default: the model file is replaced."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Calibrate a model with held-out predictions and, with labels, make its accept rule.

    The calibration set and the rule are stored in the model file and replace those that it had. A
    calibration gives qipf score p-values and outliers that hold for new data, and qipf monitor
    something to compare a stream with. A rule gives qipf score the column accepted, qipf export
    the output accepted, and qipf monitor the number of predictions it abstains from.

    Example: `qipf calibrate model.qipf held_out.npz --max-risk 0.01`

    Example: `qipf calibrate model.qipf held_out.npy --labels labels.npy --min-coverage 0.9`

    Example: `qipf calibrate model.qipf held_out.npz --max-risk 0.01 --min-novelty-p 0.01`

    Example: `qipf calibrate model.qipf held_out.csv -o calibrated.qipf`

    Example: `qipf calibrate layer.qipf features.npz --wrong wrong.npy --max-risk 0.01`
    """
    from qipf.io.atomic import checked_output
    from qipf.io.logits import read_table
    from qipf.io.logits.columns import AUTO
    from qipf.scoring.table import require_width
    from qipf.storage.save_load import load_field_and_layer, save_calibration

    if max_risk is not None and min_coverage is not None:
        raise QIPFInputError("Give --max-risk or --min-coverage, not both.")
    if min_novelty_p is not None and max_risk is None:
        raise QIPFInputError("--min-novelty-p is for a rule of --max-risk. Give both.")
    if confidence is not None and max_risk is None and min_coverage is None:
        raise QIPFInputError(
            "--confidence is for an accept rule. Add --max-risk or --min-coverage, which make one."
        )
    if labels is not None and wrong is not None:
        raise QIPFInputError("Give --labels or --wrong, not both.")
    output = model if output is None else output
    checked_output(output, inputs=[held_out])
    field, layer = load_field_and_layer(model, "model.calibrate(held_out_loader)")
    if layer is not None and labels is not None:
        raise QIPFInputError(
            f"{model} was fitted on outputs of the layer {layer!r}, which do not tell the "
            "predicted classes, so --labels cannot tell which were wrong. Give --wrong instead."
        )
    truth = (AUTO if layer is None else None) if labels is None else labels
    block = read_table(held_out, columns, truth if wrong is None else wrong)
    require_width(str(held_out), block.logits.shape[1], field)
    option = "--labels" if layer is None else "--wrong"
    require_labels(block, held_out, option, max_risk if min_coverage is None else min_coverage)
    result, text = calibrate_field(
        field,
        block,
        max_risk,
        min_coverage,
        0.95 if confidence is None else confidence,
        are_errors=wrong is not None,
        min_novelty_p=min_novelty_p,
    )
    save_calibration(field, model, output)
    print_result(as_json, {"output": output, **result}, f"wrote {output}: {text}")


def require_labels(held_out: "Block", path: Path, option: str, asked: float | None) -> None:
    """Without labels, raise if a rule is asked for, else say what is missing.

    `option` is the one that names a file of labels for these rows.
    """
    if held_out.labels is not None:
        return
    remedy = (
        "Give the true classes of its rows as a column label, an array labels, or with "
        f"{option} FILE.npy."
    )
    if option == "--wrong":
        remedy = "Name a column, an array or an .npy file of errors (1 is wrong) with --wrong."
        if asked is not None:
            raise QIPFInputError(f"An accept rule for outputs of a layer needs errors. {remedy}")
        warn(f"Without errors there will be no accept rule and no estimate of accuracy. {remedy}")
        return
    if asked is not None:
        raise QIPFInputError(f"{path} has no labels, so no accept rule can be made. {remedy}")
    warn(
        f"{path} has no labels, so there will be no accept rule and no estimate of accuracy; "
        f"p-values, outliers and shift need none. {remedy}"
    )


def calibrate_field(
    field: "QIPF",
    held_out: "Block",
    max_risk: float | None = None,
    min_coverage: float | None = None,
    confidence: float = 0.95,
    are_errors: bool = False,
    min_novelty_p: float | None = None,
) -> tuple[dict[str, Any], str]:
    """Calibrate a field and make its rule, if one is asked for; the result and its text.

    `are_errors`: the labels are 1 where a prediction was wrong, and not its true class.
    """
    from qipf.calibration.state import rule_values

    # the precision of the field, and of the lines that qipf monitor reads
    rows = held_out.logits.astype(field.centers_.dtype)
    had_rule = field.rule_ is not None
    field.calibrate(rows, **{"wrong" if are_errors else "y": held_out.labels})
    count = len(held_out.logits)
    result: dict[str, Any] = {"calibrated_on": count, "calibration_labelled": False}
    text = f"calibrated on {count:,} rows"
    without = "its accept rule was dropped" if had_rule else "no accept rule"
    if held_out.labels is not None:
        result["calibration_labelled"] = True
        result["rule"] = None
        if field.detection_ is not None:
            text += f", error detection: {field.detection_}"
        if max_risk is None and min_coverage is None:
            return result, f"{text}; {without} (--max-risk makes one)"
        rule = field.accept_rule(
            max_risk, confidence, min_coverage=min_coverage, min_novelty_p=min_novelty_p
        )
        result["rule"] = rule_values(rule)
        text += f"\n{rule}"
    elif had_rule:
        text += f"; {without}"
    return result, text
