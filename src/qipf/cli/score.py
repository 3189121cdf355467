"""qipf score: the uncertainty of every row of a file, or of a folder of files."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qipf.cli.options import Columns, Json, answer
from qipf.errors import QIPFInputError, unknown_name

if TYPE_CHECKING:
    from qipf.field.estimator import QIPF
    from qipf.scoring import Scored
    from qipf.scoring.limits import Limit


def score(
    field: Annotated[Path, typer.Argument(help="A field, as qipf fit writes it.")],
    test: Annotated[
        Path,
        typer.Argument(
            help="Logits to judge: .npz, .npy, .csv or .parquet, or a folder of .parquet shards."
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="The file to write: .csv, .parquet, .npz or .npy; for a folder, a folder.",
        ),
    ],
    columns: Columns = None,
    modes: Annotated[bool, typer.Option("--modes", help="Write every mode too.")] = False,
    engine: Annotated[
        str, typer.Option(help="local, or ray: the shards of a folder on a Ray cluster.")
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(help="A Ray cluster that runs already; if not given, one on this machine."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(help="Ray's workers; one for every GPU, or else CPU, if not given."),
    ] = None,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite",
            help="Replace shards that were made from another field, input or with other options.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Write the uncertainty of every prediction in a file; higher = less to be trusted.

    Rows stay in order, and columns that are not logits are carried along. The file is read and
    written in blocks, so that a .csv or .parquet may be larger than memory.

    How many rows are outliers is told by the held-out rows that the field was calibrated with (qipf
    fit --calibrate): what is more uncertain than 90% of them, or as fit --contamination has it.
    Without, by the training rows, which are too familiar to the field to judge others by.

    Of a folder, every .parquet shard is judged, and written to the output folder under the same
    name. Stopped at any point and started again, the command keeps the shards that are finished
    and does the rest.

    Example: `qipf score field.qipf test.csv -o scored.csv`

    Example: `qipf score field.qipf test.parquet --columns 'out_*' --modes -o scored.parquet`

    Example: `qipf score field.qipf predictions/ -o scored/`

    Example: `qipf score field.qipf predictions/ -o scored/ --engine ray --address auto`
    """
    from qipf.io.atomic import checked_output
    from qipf.ray import on_ray
    from qipf.scoring import score_shards, score_table

    if engine not in ("local", "ray"):
        raise unknown_name("engine", engine, ["local", "ray"])
    if engine == "local" and (address is not None or workers is not None):
        raise QIPFInputError("--address and --workers belong to --engine ray.")
    if os.path.isdir(test):
        run = on_ray(workers, address) if engine == "ray" else None
        judge, limit = _judge(field)
        with _interruptible(output):
            shards = score_shards(judge, test, output, columns, modes, overwrite=overwrite, run=run)
        told = {"shards": shards.shards, "kept": shards.kept}
        text = _count(shards.shards, "shard")
        if shards.kept:
            text += f" (finished before: {shards.kept:,})"
        _tell(as_json, output, shards.total, limit, told, f"{text}, ")
        return
    if engine == "ray" or overwrite:
        given = "--engine ray" if engine == "ray" else "--overwrite"
        raise QIPFInputError(f"{given} is for a folder of .parquet shards; {test} is none.")
    checked_output(output, inputs=[field, test])
    judge, limit = _judge(field)
    scored = score_table(judge, test, output, columns, modes)
    _tell(as_json, output, scored, limit, {}, "")


def _judge(path: Path) -> tuple[QIPF, Limit]:
    """The field, and the limit that it calls outliers by."""
    from qipf.scoring.limits import judged_by, outlier_limit
    from qipf.storage.save_load import load_field

    field = load_field(path)
    limit = outlier_limit(field)
    return judged_by(field, limit), limit


@contextmanager
def _interruptible(output: Path) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(
            f"\nStopped; finished shards are in {output}. Run the same command again to go on.",
            err=True,
        )
        raise typer.Exit(130) from None


def _tell(
    as_json: bool,
    output: Path,
    scored: Scored,
    limit: Limit,
    more: Mapping[str, object],
    shards: str,
) -> None:
    known = scored.rows > 0  # a folder may hold empty shards alone
    told = {
        "output": output,
        **more,
        "rows": scored.rows,
        "uncertainty": {
            "mean": scored.mean if known else None,
            "min": scored.lowest if known else None,
            "max": scored.highest if known else None,
        },
        "outliers": scored.outliers,
        "outlier_limit": {
            "above": limit.above if math.isfinite(limit.above) else None,
            "share": limit.share,
            "of": "training rows" if limit.held_out is None else "held-out rows",
            "held_out": limit.held_out,
        },
    }
    text = "no rows"
    if known:
        text = (
            f"{_count(scored.rows, 'row')}, mean uncertainty {scored.mean:.4g}, "
            f"{_count(scored.outliers, 'outlier')} ({scored.outliers / scored.rows:.1%}): {limit}"
        )
    answer(as_json, told, f"wrote {output}: {shards}{text}")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
