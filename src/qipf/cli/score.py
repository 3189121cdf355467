"""qipf score: the uncertainty of every row of a file, or of a folder of files."""

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from qipf.cli.options import Columns, Json, Model, print_result
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
    modes: Annotated[bool, Option("--modes", help="Also write every mode.")] = False,
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
    """Write the uncertainty of every prediction in a file; higher is less trustworthy.

    Rows keep their order, and columns that are not logits are copied. The file is read and written
    in blocks, so a .csv or .parquet file may be larger than memory.

    A row is an outlier if it is more uncertain than 90% (fit --contamination) of the held-out rows
    that the model was calibrated with (fit --calibrate). Without a calibration the training rows
    are used instead; they score lower than new data, so more new rows are outliers.

    For a folder, every .parquet shard is scored and written to the output folder under the same
    name. Stopped and run again, the command keeps finished shards and scores the others.

    Example: `qipf score model.qipf test.csv -o scored.csv`

    Example: `qipf score model.qipf test.parquet --columns 'out_*' --modes -o scored.parquet`

    Example: `qipf score model.qipf predictions/ -o scored/`

    Example: `qipf score model.qipf predictions/ -o scored/ --engine ray --address auto`
    """
    from qipf.io.atomic import checked_output
    from qipf.ray import on_ray
    from qipf.scoring import score_shards, score_table
    from qipf.scoring.table import outlier_limit, with_limit
    from qipf.storage.save_load import load_field

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
    field = load_field(model)
    limit = outlier_limit(field)
    field = with_limit(field, limit)
    if not folder:
        scored = score_table(field, test, output, columns, modes)
        _print(as_json, output, scored, limit)
        return
    try:
        shards = score_shards(field, test, output, columns, modes, overwrite=overwrite, run=run)
    except KeyboardInterrupt:
        text = f"\nStopped; finished shards are in {output}. Run the same command to continue."
        typer.echo(text, err=True)
        raise typer.Exit(130) from None
    text = _count(shards.shards, "shard")
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
        "uncertainty": {"mean": scored.mean, "min": scored.lowest, "max": scored.highest}
        if scored.rows
        else dict.fromkeys(("mean", "min", "max")),
        "outliers": scored.outliers,
        "outlier_limit": {
            "above": limit.above if math.isfinite(limit.above) else None,
            "share": limit.share,
            "of": "training rows" if limit.held_out is None else "held-out rows",
            "held_out": limit.held_out,
        },
    }
    text = "no rows"  # all shards of a folder may be empty
    if scored.rows:
        text = (
            f"{_count(scored.rows, 'row')}, mean uncertainty {scored.mean:.4g}, "
            f"{_count(scored.outliers, 'outlier')} ({scored.outliers / scored.rows:.1%}): {limit}"
        )
    print_result(as_json, result, f"wrote {output}: {prefix}{text}")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
