"""The columns that scoring adds to a table: what they are called, and their values for a block."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from qipf.errors import QIPFInputError, unknown_name
from qipf.field.engines.base import blocks
from qipf.field.engines.fused import BLOCK_BYTES
from qipf.field.estimator import QIPF
from qipf.validation.arrays import as_tensor, blank, usable_rows
from qipf.validation.labels import class_logits
from qipf.validation.parameters import propagates

#: Columns and their types, in the order in which they are written. `uncertainty` is always written.
RESULTS: dict[str, type] = {
    "predicted": np.int64,  # class of the largest logit
    "uncertainty": np.float64,
    "p_value": np.float64,  # of the calibration set
    "outlier": np.bool_,  # whether the field's `predict` calls the row an outlier
    "accepted": np.bool_,  # by the accept rule
    "novelty": np.float64,
    "novelty_p_value": np.float64,  # of the calibration set's novelties
}

#: What a field needs for a column.
_NEEDS = {
    "p_value": ("is not calibrated", "qipf calibrate model.qipf held_out.npz"),
    "novelty_p_value": (
        "has no novelties of a calibration set",
        "qipf calibrate model.qipf held_out.npz",
    ),
    "accepted": ("has no accept rule", "qipf calibrate model.qipf held_out.npz --max-risk 0.01"),
}

#: Queries that PyTorch's attention processes at a time on the CPU, if there are at least FEWEST.
TILE, FEWEST = 256, 768


def result_names(
    field: QIPF, modes: bool = False, results: Sequence[str] | None = None
) -> tuple[str, ...]:
    """Names of the columns that scoring adds, in order.

    Parameters
    ----------
    field : a fitted field.
    modes : add the modes too, as `mode_1`, `mode_2`, … by their orders.
    results : which of `RESULTS` to add besides `uncertainty`; by default all that the field knows:
        p-values if it is calibrated, `accepted` if it has an accept rule.

    >>> field = QIPF().fit(np.random.default_rng(0).normal(size=(100, 3)))
    >>> result_names(field)
    ('predicted', 'uncertainty', 'outlier', 'novelty')
    """
    missing = set()
    if field.calibration_ is None:
        missing.add("p_value")
    if field.calibration_ is None or field.calibration_.novelty is None:
        missing.add("novelty_p_value")
    if field.rule_ is None:
        missing.add("accepted")
    wanted = set(RESULTS) - missing if results is None else {*results, "uncertainty"}
    for name in sorted(wanted):
        if name not in RESULTS:
            raise unknown_name("result", name, RESULTS)
        if name in missing:
            lack, remedy = _NEEDS[name]
            raise QIPFInputError(f"There is no {name}: the model {lack}. Make one with {remedy}.")
    orders = tuple(field.orders) if modes else ()
    return (*(name for name in RESULTS if name in wanted), *(f"mode_{order}" for order in orders))


def require_new_names(
    path: str, present: Sequence[str], chosen: Sequence[str], names: Sequence[str]
) -> None:
    """Raise if a column other than the logits, which are not written, has a result's name."""
    for name in names:
        if name in present and name not in chosen:
            others = "" if name == "uncertainty" else ", or choose other results with --results"
            raise QIPFInputError(f"{path} already has a column {name!r}. Rename it{others}.")


def steady_results(
    field: QIPF,
    logits: NDArray[Any],  # (n, d)
    names: Sequence[str],
) -> dict[str, NDArray[Any]]:
    """The results of a block by column, the same to the last bit for any number of threads.

    On the CPU, attention takes queries in tiles. Whole tiles of one size are computed alike, row by
    row, for any number of threads and any other rows in the block; small blocks and incomplete
    tiles are not. So the block is cut into whole tiles, the last one padded with copies of a row,
    whose scores are dropped. Only rows that float32 does not resolve, which the engine collects and
    computes once more, may still differ in the last digits of float64 from block to block.
    """
    parts = [block_results(field, piece, names) for piece in _whole_tiles(logits)]
    if not parts:
        return {name: np.empty(0, RESULTS.get(name, np.float64)) for name in names}
    return {
        name: np.concatenate([part[name] for part in parts])[: len(logits)] for name in parts[0]
    }


def _whole_tiles(logits: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """The rows in pieces of whole tiles, as many as the engine takes at a time."""
    count, dimension = logits.shape
    size = BLOCK_BYTES["cpu"] // (8 * (dimension + 2)) // TILE * TILE
    for part in blocks(count, max(size, FEWEST)):
        piece = logits[part]
        missing = max(FEWEST - len(piece), -len(piece) % TILE)
        yield np.concatenate([piece, np.repeat(piece[:1], missing, axis=0)])


def block_results(
    field: QIPF, logits: NDArray[Any], names: Sequence[str]
) -> dict[str, NDArray[Any]]:
    """The results of a block by column; rows with NaN or infinity as `nan_policy` says."""
    if not propagates(field.nan_policy):
        return _finite_results(field, logits, names)
    (rows,), missing = usable_rows([as_tensor(logits)])
    found = _finite_results(field, rows.numpy(), names)
    if missing is None:
        return found
    return {
        name: blank(torch.from_numpy(values), missing).numpy() for name, values in found.items()
    }


def _finite_results(
    field: QIPF, logits: NDArray[Any], names: Sequence[str]
) -> dict[str, NDArray[Any]]:
    found: dict[str, NDArray[Any]] = {}
    if any(name.startswith("mode_") for name in names):
        modes = field.modes(logits)
        found |= {f"mode_{order}": modes[:, k] for k, order in enumerate(tuple(field.orders))}
    if found and field.score_ == "modes":
        # torch's mean, as in field.uncertainty: numpy's may differ in the last digit
        uncertainty = torch.from_numpy(modes).mean(1).numpy()
    else:
        uncertainty, found["novelty"] = field.both_scores(logits)
    found["uncertainty"] = uncertainty
    found["outlier"] = uncertainty > field.outlier_limit_
    if "predicted" in names:
        found["predicted"] = class_logits(as_tensor(logits)).argmax(1).numpy()
    if "p_value" in names and field.calibration_ is not None:
        found["p_value"] = field.calibration_.p_values(uncertainty)
    if "novelty" not in found and {"novelty", "novelty_p_value", "accepted"} & {*names}:
        found["novelty"] = field.novelty(logits)
    if "novelty_p_value" in names and field.calibration_ is not None:
        by_novelty = field.calibration_.ranked_by("novelty")
        found["novelty_p_value"] = by_novelty.p_values(found["novelty"])
    if "accepted" in names and field.rule_ is not None:
        found["accepted"] = field.rule_(uncertainty, found["novelty"])
    return {name: found[name] for name in names}
