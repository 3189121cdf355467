"""A check that calibration rows are not the rows that a model was fitted on."""

from typing import NamedTuple

from torch import Tensor

from qipf.calibration.quantization import rounded
from qipf.errors import QIPFInputError

#: Columns by which rows are compared with training rows: more would differ by rounding more often.
COMPARED_COLUMNS = 8

#: Largest share of the calibration rows that may be training rows.
LARGEST_SHARE = 0.2


class TrainingSample(NamedTuple):
    """A uniform sample of the training rows."""

    rows: Tensor  # (s, d)
    total: int  # number of training rows that it is a sample of


def refuse_training_rows(rows: Tensor, training: TrainingSample) -> None:
    """Raise `QIPFInputError` if a large part of calibration rows are training rows.

    The share of the calibration rows in the sample is scaled up to all training rows. Rows are
    compared by the columns that vary most, in steps of 1e-4, because batches of another size change
    the last digits. Data of few distinct values, where equal rows prove nothing, is not checked.
    """
    deviation = training.rows.double().std(0)
    columns = deviation.topk(min(COMPARED_COLUMNS, len(deviation))).indices
    known = _hashes(training.rows[:, columns])
    if len(known) < 0.99 * len(training.rows):
        return
    given = _hashes(rows[:10_000, columns.to(rows.device)])
    share = len(given & known) / max(len(given), 1) * training.total / len(training.rows)
    if len(given & known) >= 3 and share > LARGEST_SHARE:
        raise QIPFInputError(
            f"About {min(share, 1):.0%} of the calibration rows are training rows, which are less "
            "uncertain than new ones: no guarantee would hold. Calibrate with predictions that the "
            "model was not fitted on."
        )


def _hashes(rows: Tensor) -> set[bytes]:
    return {row.tobytes() for row in rounded(rows.detach().double().cpu().numpy())}
