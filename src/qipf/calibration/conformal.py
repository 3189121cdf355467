"""Conformal p-values: how unusual a prediction is among held-out predictions."""

import hashlib
import math
from functools import cached_property
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from qipf.calibration.quantization import highest, rounded
from qipf.errors import QIPFInputError, unknown_name
from qipf.validation.arrays import as_given
from qipf.validation.not_fitted import QIPFNotFittedError
from qipf.validation.scores import checked_counts, checked_flags, checked_scores, finite_scores

#: What predictions can be ranked by.
SCORES = ("uncertainty", "novelty")

#: Largest number of scores that are kept (8 MiB); p-values go down to one in a million.
MOST_SCORES = 2**20


class Calibration:
    r"""Uncertainties of a calibration set, against which other predictions are ranked.

    With held-out scores :math:`s_1, \dots, s_n` and a new score :math:`s`,

    .. math:: p = \frac{1 + \#\{i : s_i \ge s\}}{n + 1}, \qquad
              p_u = \frac{\#\{i : s_i > s\} + u\,(1 + \#\{i : s_i = s\})}{n + 1}

    If the new prediction is exchangeable with the held-out ones, then :math:`P(p \le t) \le t` for
    every :math:`t`, ties or not, and with :math:`u` uniform on (0, 1) the smoothed :math:`p_u` is
    exactly uniform. Both hold on average over calibration sets: predictions ranked against the
    same set are not independent of each other. All scores are compared as
    `qipf.calibration.quantization` rounds them.

    Parameters
    ----------
    scores : (n,) uncertainties of held-out predictions, higher = more unusual. Of more than
        2²⁰ a random part of that size is kept, chosen without looking at the scores: a random
        part of exchangeable scores is exchangeable, so the p-values stay exact.
    wrong : (n,) booleans, where the model erred on them; optional, for `qipf.calibration.accuracy`.
    origin : constant in the scores that is subtracted before they are rounded.
    novelty : (n,) of the same predictions; optional, to rank others by their novelty.
    class_counts : (classes,) how many of them are of each predicted class; optional, for
        `qipf.calibration.accuracy`.

    Attributes
    ----------
    scores : (n,) the scores, sorted, float64.
    wrong : (n,) booleans in the same order, or None.
    novelty : (n,) novelties in the same order, or None.
    class_counts : (classes,) int64, or None.

    Examples
    --------
    >>> held_out = Calibration([0.1, 0.2, 0.3, 0.4])
    >>> held_out.p_values([0.05, 0.25, 9.0]).tolist()
    [1.0, 0.6, 0.2]
    """

    scores: NDArray[np.float64]
    wrong: NDArray[np.bool_] | None
    novelty: NDArray[np.float64] | None
    class_counts: NDArray[np.int64] | None

    def __init__(
        self,
        scores: Any,
        wrong: Any = None,
        origin: float = 0.0,
        novelty: Any = None,
        class_counts: Any = None,
    ) -> None:
        values = finite_scores(scores, "scores")
        flags = None if wrong is None else checked_flags(wrong, len(values), "scores")
        others = None if novelty is None else finite_scores(novelty, "novelty")
        if others is not None and others.shape != values.shape:
            raise QIPFInputError(
                f"novelty must have shape {values.shape}, one per score, got {others.shape}."
            )
        kept = np.arange(len(values))
        if len(values) > MOST_SCORES:
            kept = np.random.default_rng(0).choice(len(values), MOST_SCORES, replace=False)
        kept = kept[np.argsort(values[kept], kind="stable")]
        self.scores, self.origin = values[kept], origin
        self.wrong = None if flags is None else flags[kept]
        self.novelty = None if others is None else others[kept]
        self.class_counts = (
            None if class_counts is None else checked_counts(class_counts, "class_counts")
        )

    def __len__(self) -> int:
        return len(self.scores)

    def __repr__(self) -> str:
        errors = "" if self.wrong is None else f", {int(self.wrong.sum())} of them wrong"
        return f"Calibration({len(self)} scores{errors})"

    @overload
    def p_values(self, scores: Tensor, uniforms: Any = None) -> Tensor: ...
    @overload
    def p_values(self, scores: ArrayLike, uniforms: Any = None) -> NDArray[np.float64]: ...
    def p_values(self, scores: Any, uniforms: Any = None) -> Any:  # (n,)
        """Conformal p-value of each score; small is unusual, NaN gets the smallest.

        Parameters
        ----------
        scores : (n,) uncertainties, an array or a tensor; p-values are returned as the same kind.
        uniforms : (n,) independent uniform numbers in (0, 1) that break ties at random and make
            the p-values exactly uniform; without them p-values are conservative.
        """
        values = checked_scores(scores, "scores")
        at_least, above = self._counts(values)
        if uniforms is None:
            ranks = 1.0 + at_least
        else:
            u = checked_scores(uniforms, "uniforms")
            if u.shape != values.shape:
                raise QIPFInputError(
                    f"uniforms must have shape {values.shape}, one per score, got {u.shape}."
                )
            if not ((u > 0) & (u < 1)).all():
                raise QIPFInputError("uniforms must lie strictly between 0 and 1.")
            ranks = above + u * (1.0 + at_least - above)
        return as_given(torch.from_numpy(ranks / (len(self) + 1.0)), scores)

    def outlier_limit(self, share: float) -> float:
        r"""The score above which the p-value is at most `share`; infinite for too few scores.

        A prediction like the held-out ones lies above it with probability `share` at most.

        >>> limit = Calibration(range(1, 10)).outlier_limit(0.2)
        >>> bool(8 <= limit < 8.001)
        True
        """
        # an outlier has fewer held-out scores than this at least as high as its own
        fewer = math.floor(share * (len(self) + 1))
        if not fewer:
            return math.inf
        return highest(float(self.rounded_scores[len(self) - fewer]), self.origin)

    def _counts(self, values: NDArray[np.float64]) -> tuple[NDArray, NDArray]:
        """How many held-out scores are at least as high as each value, and how many are higher."""
        ranked, held_out = self.rounded(values), self.rounded_scores
        at_least = len(self) - np.searchsorted(held_out, ranked, side="left")
        above = len(self) - np.searchsorted(held_out, ranked, side="right")
        return at_least, above

    @cached_property
    def rounded_scores(self) -> NDArray[np.float64]:  # (n,)
        """The sorted scores as `qipf.calibration.quantization` rounds them."""
        return self.rounded(self.scores)

    def rounded(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Scores as they are compared with `rounded_scores`."""
        return rounded(scores, self.origin)

    def ranked_by(self, score: str) -> "Calibration":
        """The same predictions, ranked by their ``"uncertainty"`` or their ``"novelty"``.

        >>> held_out = Calibration([0.1, 0.2, 0.3], novelty=[7.0, 5.0, 6.0])
        >>> held_out.ranked_by("novelty").scores.tolist()
        [5.0, 6.0, 7.0]
        """
        if score not in SCORES:
            raise unknown_name("score", score, SCORES)
        if score == "uncertainty":
            return self
        if self.novelty is None:
            raise QIPFInputError(
                "This calibration set has no novelties: it is a Calibration of uncertainties "
                "alone. Call calibrate() of a model, or use score='uncertainty'."
            )
        return self._by_novelty

    @cached_property
    def _by_novelty(self) -> "Calibration":
        return Calibration(self.novelty, self.wrong)

    @cached_property
    def digest(self) -> str:
        """Digest of the scores, errors and novelties.

        >>> Calibration([1.0, 2.0]).digest == Calibration([2.0, 1.0]).digest
        True
        """
        digest = hashlib.blake2b(self.scores.astype("<f8").tobytes(), digest_size=16)
        if self.wrong is not None:
            digest.update(np.packbits(self.wrong).tobytes())
        if self.novelty is not None:
            digest.update(self.novelty.astype("<f8").tobytes())
        return digest.hexdigest()


def calibration_of(model: Any) -> Calibration:
    """The calibration set of a calibrated model, or the `Calibration` itself."""
    if isinstance(model, Calibration):
        return model
    calibration = getattr(model, "calibration_", None)
    if isinstance(calibration, Calibration):
        return calibration
    if hasattr(model, "calibrate"):
        if hasattr(model, "_require_fitted"):
            model._require_fitted()
        raise QIPFNotFittedError(
            f"This {type(model).__name__} is not calibrated. Call calibrate() with held-out data "
            "first."
        )
    raise QIPFInputError(
        f"A calibrated model or a Calibration is needed, got {type(model).__name__}."
    )
