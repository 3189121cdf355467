"""What several commands share: options that mean the same everywhere, and answers for programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

Columns = Annotated[
    str | None,
    typer.Option(
        help="The logits: names or patterns of columns by comma (.csv, .parquet), or the array's "
        "name (.npz). Columns named logit*, or the array logits, if not given."
    ),
]
Labels = Annotated[
    str | None,
    typer.Option(
        help="The true classes 0, 1, …: a column, an array, or an .npy file of their own. "
        "label or labels, if there is one and nothing is given."
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print the answer as JSON, for another program.")
]


def answer(as_json: bool, told: dict[str, Any], text: str) -> None:
    """Print for a person, or the same as JSON."""
    typer.echo(json.dumps(told, default=_plain, ensure_ascii=False) if as_json else text)


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value.tolist()
