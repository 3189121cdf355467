"""Checks that calibration rows are not those that a model was fitted on, and not repeated."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qipf.errors import QIPFInputError, QIPFScoreWarning, warn

#: Training rows that a model keeps to recognise them, also in its file.
KEPT_ROWS = 1000

#: Columns by which rows are compared: those that vary most. More would differ more often by the
#: last digits, which depend on the size of a batch.
COMPARED_COLUMNS = 3

#: Two numbers are equal in a step of this many standard deviations of their column.
STEP = 2.0**-16

#: Steps by which chance matches are estimated, in those steps.
COARSER = 64

#: Largest share of the calibration rows that may be training rows, and fewest that prove it.
LARGEST_SHARE, FEWEST_EQUAL = 0.2, 3

#: Share of distinct sampled rows that are found only if all training rows are given.
NEARLY_ALL = 0.9


class TrainingSample(NamedTuple):
    """A uniform sample of the training rows."""

    rows: Tensor  # (s, d)
    total: int  # number of training rows that it is a sample of


def refuse_training_rows(rows: Tensor, training: TrainingSample) -> None:
    """Raise `QIPFInputError` if a large part of calibration rows are training rows."""
    share = training_share(rows, training)
    if share is not None:
        raise QIPFInputError(
            f"About {share:.0%} of the calibration rows are training rows, which are less "
            "uncertain than new ones: no guarantee would hold. Calibrate with predictions that the "
            "model was not fitted on."
        )


def warn_of_repeated_rows(rows: Tensor, training: TrainingSample) -> None:
    """Warn if calibration rows equal each other more often than by chance.

    The chance that a row equals one of so many others is known from the training sample; among more
    others than that it rises in proportion at most. Its error rises with it: of many rows, and with
    a small sample of fewer, repetitions are not told from chance. Rows that are rounded or discrete
    may be equal more often than the sample shows, without any repetition.
    """
    given, sample = _in_steps(rows, training)
    if len(sample) < 2:
        return
    count = len(given)
    repeated = count - len(np.unique(np.round(given), axis=0))
    rows_each = max(1.0, count / len(sample))
    expected, error = (count * rows_each * value for value in _chance(sample))
    if repeated >= expected + FEWEST_EQUAL + 5 * (expected + error**2) ** 0.5:
        warn(
            f"{repeated:,} of {count:,} calibration rows equal others. If examples were passed "
            "more than once (several epochs, drawing with replacement), rules and p-values promise "
            "too much: pass each of them once. Rounded or discrete inputs may be equal without "
            "that.",
            QIPFScoreWarning,
        )


def training_share(rows: Tensor, training: TrainingSample) -> float | None:
    """Share of rows that are training rows; None unless it is certainly large.

    The number of rows that equal a row of the sample is compared with the number expected by
    chance: rows of few distinct values are often equal, such as the margins of boosted trees, and
    so are many rows of a single number. What exceeds chance by five standard errors, of
    the count and of the estimate of chance, is scaled up to all training rows. The error of that
    estimate does not matter where nearly all rows of the sample are distinct and are found.
    """
    given, sample = _in_steps(rows, training)
    if len(sample) < 2 or not len(given):
        return None
    expected, error = _chance(sample)
    chance = len(given) * expected
    excess = _share_in(given, sample) * len(given) - chance
    share = excess / len(given) * training.total / len(sample)
    deviation = (chance + (len(given) * error) ** 2) ** 0.5
    distinct = (_equal_rows(sample) == 1).mean()
    if min(distinct, _share_in(sample, given)) > NEARLY_ALL:  # by chance never, however few
        deviation = chance**0.5
    if excess >= FEWEST_EQUAL + 5 * deviation and share > LARGEST_SHARE:
        return min(share, 1.0)
    return None


def distinct_training_share(rows: Tensor, training: TrainingSample) -> float | None:
    """As `training_share`, but of the rows that equal each other only one counts as found."""
    if not len(rows):
        return None
    given, _ = _in_steps(rows, training)
    _, first = np.unique(np.round(given), axis=0, return_index=True)
    share = training_share(rows[torch.from_numpy(first).to(rows.device)], training)
    share = 0.0 if share is None else share * len(first) / len(rows)
    return share if share > LARGEST_SHARE else None


def _in_steps(
    rows: Tensor, training: TrainingSample
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The compared columns of rows and of the sample, in steps in which they are compared."""
    sample = training.rows.detach().double().cpu().numpy()
    given = rows.detach().double().cpu().numpy()
    spread = sample.std(0)
    columns = np.argsort(-spread, kind="stable")[:COMPARED_COLUMNS]
    steps = spread[columns] * STEP
    steps = np.maximum(steps, np.abs(sample[:, columns]).max(0, initial=1.0) * np.finfo(float).eps)
    return given[:, columns] / steps, sample[:, columns] / steps


def _chance(sample: NDArray[np.float64]) -> tuple[float, float]:
    """Probability that a new row equals one of the sample, and the standard error of it.

    It is the share of the rows that equal another one. Adding or removing a row changes that number
    by two if it forms a pair, by one in a larger group (Efron and Stein's bound of the variance).
    Matches in coarser steps are more frequent and thus better known; of continuous numbers at most
    one in `COARSER` of them, plus their sampling error, is a match in fine steps.
    """
    equal = _equal_rows(sample)
    matches = int((_equal_rows(sample / COARSER) > 1).sum())
    coarse = (matches + 3 + 3 * (matches + 1) ** 0.5) / len(sample) / COARSER
    changes = (equal > 1).sum() + 3 * (equal == 2).sum() + 4  # as if one pair more were there
    error = float(changes) ** 0.5 / len(sample)
    return max(float((equal > 1).mean()), coarse), error


def _equal_rows(rows: NDArray[np.float64]) -> NDArray[np.intp]:  # (n,)
    """How many rows, itself included, each row equals in whole steps."""
    _, place, counts = np.unique(np.round(rows), axis=0, return_inverse=True, return_counts=True)
    return counts[place.reshape(-1)]


def _share_in(rows: NDArray[np.float64], others: NDArray[np.float64]) -> float:
    """Share of the rows that equal one of the others in whole steps."""
    known = {row.tobytes() for row in np.round(others)}
    return sum(row.tobytes() in known for row in np.round(rows)) / len(rows)
