"""qipf features: models of features and logits that were computed elsewhere."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from qipf.cli.options import Json, MaxRisk, print_result
from qipf.errors import QIPFInputError
from qipf.validation.parameters import LARGEST_SEED

if TYPE_CHECKING:
    import numpy as np

app = typer.Typer(
    help="Score by features of layers beside the logits (FeatureQIPF).", no_args_is_help=True
)

#: A file of arrays.
LAYOUT = (
    "An .npz file with the arrays logits (n, classes), labels (n,) and one array (n, d) for each "
    "layer, by its name."
)


@app.command("fit")
def fit(
    train: Annotated[Path, Argument(help=f"Of the training data. {LAYOUT}")],
    output: Annotated[Path, Option("--output", "-o", help="File to write.")] = Path("model.qipf"),
    perturbed: Annotated[
        list[Path] | None,
        Option(
            help="The same arrays, without labels, for perturbed copies of all training examples "
            "in the same order. Can be repeated."
        ),
    ] = None,
    calibrate: Annotated[
        Path | None, Option(help="The same arrays for held-out data, with labels if known.")
    ] = None,
    max_risk: MaxRisk = None,
    max_centers: Annotated[
        int, Option(help="Maximum number of centres of a layer; distilled: 60000 means 1,500.")
    ] = 60_000,
    reduction: Annotated[str, Option(help="distilled (auto), random or coreset.")] = "auto",
    seed: Annotated[
        int, Option(help="Seed of all random choices.", min=0, max=LARGEST_SEED - 1)
    ] = 0,
    as_json: Json = False,
) -> None:
    """Fit a model to features and logits of any framework, and save it.

    Without perturbed copies, features and logits of held-out training examples are perturbed.

    Example: `qipf features fit train.npz --calibrate held_out.npz --max-risk 0.01 -o model.qipf`

    Example: `qipf features fit train.npz --perturbed noise.npz --perturbed blur.npz`
    """
    from qipf.io.atomic import checked_output
    from qipf.layered.features import FeatureQIPF
    from qipf.storage.save_load import save_fitted

    inputs = [train, *(perturbed or []), *([] if calibrate is None else [calibrate])]
    checked_output(output, inputs=inputs)
    features, logits, labels = _arrays(train)
    if labels is None:
        raise QIPFInputError(f"{train} has no array labels, which the fields of the classes need.")
    if not features:
        raise QIPFInputError(
            f"{train} has no array of a layer: add one array (n, d) per layer, by its name."
        )
    names = [path.stem for path in perturbed or []]
    if len(set(names)) < len(names):
        raise QIPFInputError(
            f"Two files of perturbed copies have the same name, which names the copy: "
            f"{', '.join(names)}. Rename one."
        )
    copies = {path.stem: _arrays(path)[:2] for path in perturbed or []}
    if max_risk is not None and calibrate is None:
        raise QIPFInputError("--max-risk needs held-out data: add --calibrate HELD_OUT.")
    model = FeatureQIPF(max_centers=max_centers, reduction=reduction, random_state=seed)
    model.fit(features, logits, labels, perturbed=copies)
    if calibrate is not None:
        model.calibrate(*_arrays(calibrate))
    if max_risk is not None:
        model.accept_rule(max_risk=max_risk)
    save_fitted(model, output)
    layers = [site.layer for site in model.layers_]
    result = {"output": output, "rows": len(logits), "layers": layers}
    print_result(as_json, result, f"wrote {output}:\n{model.summary()}")


@app.command("score")
def score(
    model: Annotated[Path, Argument(help="A model file of qipf features fit.")],
    test: Annotated[Path, Argument(help=f"Predictions to score. {LAYOUT} Labels are not needed.")],
    output: Annotated[
        Path, Option("--output", "-o", help="File to write: .csv, .parquet, .npz or .npy.")
    ],
    as_json: Json = False,
) -> None:
    """Write the predicted class, uncertainty and decisions for every prediction in a file.

    Columns: predicted, uncertainty, p_error, novelty, the mixture's class (mixture_class) and, as
    far as the model knows them, p_value, accepted and novelty_p_value.

    Example: `qipf features score model.qipf test.npz -o scored.csv`
    """
    from qipf.io.atomic import checked_output
    from qipf.io.logits.writing import table_writer
    from qipf.layered.features import FeatureQIPF
    from qipf.storage.save_load import load

    checked_output(output, inputs=[model, test])
    loaded = load(model)
    if not isinstance(loaded, FeatureQIPF):
        raise QIPFInputError(f"{model} was not written by qipf features fit. Use qipf score.")
    features, logits, _ = _arrays(test)
    found = loaded(features, logits)
    decisions = ("p_value", "accepted", "p_error", "novelty", "novelty_p_value", "mixture_class")
    names = ("predicted", "uncertainty", *decisions)
    columns = {name: getattr(found, name) for name in names if getattr(found, name) is not None}
    if output.suffix == ".npy":
        columns = {"uncertainty": found.uncertainty}
    with table_writer(output) as write:
        write(columns)
    rows = len(found.uncertainty)
    result = {"output": output, "rows": rows, "columns": list(columns)}
    print_result(as_json, result, f"wrote {output}: {rows:,} rows, {', '.join(columns)}")


def _arrays(path: Path) -> tuple[dict[str, Any], "np.ndarray", "np.ndarray | None"]:
    """Features by layer, logits and, if there are any, labels of a file."""
    from qipf.io.logits.numpy_files import read_arrays

    arrays = read_arrays(path)
    if "logits" not in arrays:
        raise QIPFInputError(f"{path} has no array logits; it has {', '.join(arrays) or 'none'}.")
    logits, labels = arrays.pop("logits"), arrays.pop("labels", None)
    return arrays, logits, labels
