"""Options shared by several commands, and the output of results."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

Model = Annotated[
    Path,
    Argument(help="A model file: written by qipf fit, or a QIPF or wrapped model saved in Python."),
]
Columns = Annotated[
    str | None,
    Option(
        help="Column names or patterns of the logits, separated by commas (.csv, .parquet), or the "
        "array name (.npz). Default: columns logit*, or the array logits."
    ),
]
Labels = Annotated[
    str | None,
    Option(
        help="True classes 0, 1, …: a column, an array, or an .npy file. Default: label or labels, "
        "if present."
    ),
]
CalibrateLabels = Annotated[
    str | None,
    Option(
        help="True classes of the rows of --calibrate: a column, an array, or an .npy file. "
        "Default: as --labels, unless that is an .npy file."
    ),
]
MaxRisk = Annotated[
    float | None,
    Option(
        help="Make an accept rule: at most this share of the accepted predictions is wrong, such "
        "as 0.01. Needs labels of the held-out rows."
    ),
]
Data = Annotated[
    Path | None, Option(help="Folder of the datasets. Default: the environment variable QIPF_DATA.")
]
Runs = Argument(
    help="Folder of a run of qipf bench run; several folders (say, one per seed) are read as one "
    "run."
)
Json = Annotated[bool, Option("--json", help="Print the result as JSON.")]


def results_of(text: str | None) -> list[str] | None:
    """Names separated by commas."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def print_result(as_json: bool, result: dict[str, Any], text: str) -> None:
    """Print a text for people, or the result as JSON."""
    if as_json:
        text = json.dumps(result, default=_plain, ensure_ascii=False)
        if not text.isprintable():  # control characters that JSON need not escape
            text = json.dumps(result, default=_plain).replace("\x7f", "\\u007f")
    typer.echo(text)


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value.tolist()
