"""qipf score: the uncertainty of every row of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qipf.cli.options import Columns, Json, answer


def score(
    field: Annotated[Path, typer.Argument(help="A field, as qipf fit writes it.")],
    test: Annotated[Path, typer.Argument(help="Logits to judge: .npz, .npy, .csv or .parquet.")],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="The file to write: .csv, .parquet, .npz or .npy."),
    ],
    columns: Columns = None,
    modes: Annotated[bool, typer.Option("--modes", help="Write every mode too.")] = False,
    as_json: Json = False,
) -> None:
    """Write the uncertainty of every prediction in a file; higher = less to be trusted.

    Rows stay in order, and columns that are not logits are carried along. The file is read and
    written in blocks, so that a .csv or .parquet may be larger than memory.

    Example: `qipf score field.qipf test.csv -o scored.csv`

    Example: `qipf score field.qipf test.parquet --columns 'out_*' --modes -o scored.parquet`
    """
    from qipf.durable import checked_output
    from qipf.storage import load_field
    from qipf.tables import score_table

    checked_output(output, inputs=[field, test])
    scored = score_table(load_field(field), test, output, columns, modes)
    share = scored.outliers / scored.rows
    told = {
        "output": output,
        "rows": scored.rows,
        "uncertainty": {"mean": scored.mean, "min": scored.lowest, "max": scored.highest},
        "outliers": scored.outliers,
    }
    answer(
        as_json,
        told,
        f"wrote {output}: {scored.rows:,} rows, mean uncertainty {scored.mean:.4g}, "
        f"{scored.outliers:,} outliers ({share:.1%})",
    )
