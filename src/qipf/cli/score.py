"""qipf score: the uncertainty of every row of a file, or of a folder of files."""

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from qipf.cli.options import Columns, Json, Model, print_result, results_of
from qipf.display import counted
from qipf.errors import QIPFInputError, unknown_name

if TYPE_CHECKING:
    from qipf.scoring import Scored
    from qipf.scoring.table import Limit


def score(
    model: Model,
    test: Annotated[
        Path,
        Argument(
            help="Logits to score: .npz, .npy, .csv or .parquet, or a folder of .parquet shards."
        ),
    ],
    output: Annotated[
        Path,
        Option(
            "--output",
            "-o",
            help="File to write: .csv, .parquet, .npz or .npy; for a folder, a folder.",
        ),
    ],
    columns: Columns = None,
    results: Annotated[
        str | None,
        Option(
            help="Which results to write besides uncertainty, separated by commas: predicted, "
            "p_value, outlier, accepted. Default: all that the model knows."
        ),
    ] = None,
    modes: Annotated[
        bool, Option("--modes", help="Also write every mode: mode_1, mode_2, …")
    ] = False,
    nan_policy: Annotated[
        str | None,
        Option(
            help="raise: rows with NaN or inf are an error. propagate: they get no scores (NaN, "
            "class -1, not accepted). Default: as the model was saved."
        ),
    ] = None,
    engine: Annotated[
        str, Option(help="local, or ray: score a folder on a Ray cluster.")
    ] = "local",
    address: Annotated[
        str | None,
        Option(help="Address of a running Ray cluster. Default: start one on this machine."),
    ] = None,
    workers: Annotated[
        int | None,
        Option(help="Number of Ray workers. Default: one per GPU, or per CPU without GPUs."),
    ] = None,
    overwrite: Annotated[
        bool,
        Option(
            "--overwrite",
            help="Replace shards that were made from another model, input or other options.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Write predicted class, uncertainty and decision for every prediction in a file.

    Columns that are written, as far as the model knows them:

    - predicted: class of the largest logit.
    - uncertainty: higher is less trustworthy.
    - p_value: share of held-out predictions at least as uncertain; needs a calibration (fit
      --calibrate, or qipf calibrate).
    - outlier: whether the row is more uncertain than 90% (fit --contamination) of the held-out
      rows. Without a calibration the training rows are used instead; they score lower than new
      data, so more new rows are outliers.
    - accepted: decision of the accept rule (fit --calibrate … --max-risk, or qipf calibrate
      --max-risk).
    - novelty: higher is less like the training data, whether the prediction is right or wrong.
    - novelty_p_value: share of held-out predictions at least as novel; needs a calibration.

    Rows keep their order, and columns that are not logits are copied. The file is read and written
    in blocks, so a .csv or .parquet file may be larger than memory. An .npy file holds the
    uncertainty alone, unless --results or --modes ask for more.

    For a folder, every .parquet shard is scored and written to the output folder under the same
    name. Stopped and run again, the command keeps finished shards and scores the others.

    Example: `qipf score model.qipf test.csv -o scored.csv`

    Example: `qipf score model.qipf test.parquet --columns 'out_*' --modes -o scored.parquet`

    Example: `qipf score model.qipf test.npy --results predicted,accepted -o scored.csv`

    Example: `qipf score model.qipf predictions/ -o scored/`

    Example: `qipf score model.qipf predictions/ -o scored/ --engine ray --address auto`
    """
    from qipf.io.atomic import checked_output
    from qipf.ray import on_ray
    from qipf.scoring import score_shards, score_table
    from qipf.scoring.results import result_names
    from qipf.scoring.table import outlier_limit
    from qipf.storage.save_load import load_field_and_layer
    from qipf.validation.parameters import propagates

    if engine not in ("local", "ray"):
        raise unknown_name("engine", engine, ["local", "ray"])
    if engine == "local" and (address is not None or workers is not None):
        raise QIPFInputError("--address and --workers need --engine ray.")
    folder = os.path.isdir(test)  # no error for impossible names
    if not folder and (engine == "ray" or overwrite):
        option = "--engine ray" if engine == "ray" else "--overwrite"
        raise QIPFInputError(f"{option} is for a folder of .parquet shards, and {test} is not one.")
    run = on_ray(workers, address) if engine == "ray" else None
    if not folder:
        checked_output(output, inputs=[model, test])
    field, layer = load_field_and_layer(model)
    if nan_policy is not None:
        propagates(nan_policy)  # raises for unknown names
        field.nan_policy = nan_policy
    limit, wanted = outlier_limit(field), results_of(results)
    if layer is not None and wanted is None:  # the outputs of a layer are not logits
        wanted = [name for name in result_names(field) if name != "predicted"]
    if not folder:
        scored = score_table(field, test, output, columns, modes, wanted)
        _print(as_json, output, scored, limit)
        return
    try:
        shards = score_shards(
            field, test, output, columns, modes, wanted, overwrite=overwrite, run=run
        )
    except KeyboardInterrupt:
        text = f"\nStopped; finished shards are in {output}. Run the same command to continue."
        typer.echo(text, err=True)
        raise typer.Exit(130) from None
    text = counted(shards.shards, "shard")
    if shards.kept:
        text += f" (finished before: {shards.kept:,})"
    counts = {"shards": shards.shards, "kept": shards.kept}
    _print(as_json, output, shards.total, limit, counts, f"{text}, ")


def _print(
    as_json: bool,
    output: Path,
    scored: "Scored",
    limit: "Limit",
    counts: dict[str, Any] | None = None,
    prefix: str = "",
) -> None:
    result = {
        "output": output,
        **(counts or {}),
        "rows": scored.rows,
        **({"missing": scored.missing} if scored.missing else {}),
        "uncertainty": {"mean": scored.mean, "min": scored.lowest, "max": scored.highest}
        if scored.with_scores
        else dict.fromkeys(("mean", "min", "max")),
        "outliers": scored.outliers,
        "outlier_limit": {
            "above": limit.above if math.isfinite(limit.above) else None,
            "share": limit.share,
            "of": "training rows" if limit.held_out is None else "held-out rows",
            "held_out": limit.held_out,
        },
    }
    # all shards of a folder may be empty
    text = counted(scored.rows, "row") if scored.rows else "no rows"
    if scored.missing:
        which = f"{scored.missing:,}" if scored.with_scores else "all"
        text += f" ({which} with NaN or inf, without scores)"
    if scored.with_scores:
        share = scored.outliers / scored.with_scores
        text += (
            f", mean uncertainty {scored.mean:.4g}, {counted(scored.outliers, 'outlier')} "
            f"({share:.1%}): {limit}"
        )
    print_result(as_json, result, f"wrote {output}: {prefix}{text}")
