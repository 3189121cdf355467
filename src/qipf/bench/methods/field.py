"""The quantum information potential field as one method among the others."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from qipf.bench.methods.protocol import Batch, CleanData, Method, to_double
from qipf.field.estimator import QIPF


@dataclass
class Field(Method):
    """`qipf.QIPF` over the training logits, with the paper's 6000 centres and four modes.

    The options are those of `QIPF`; the subsample of the centres follows the clean data's seed.
    """

    orders: tuple[int, ...] = (1, 2, 3, 4)
    bandwidth: float | str = "cv"
    max_centers: int = 6000
    reduction: str = "random"
    softening: float = 0.0
    engine: str = "auto"
    name = "qipf"
    field_: QIPF | None = field(default=None, init=False, repr=False)

    def fit(self, clean: CleanData) -> "Field":
        """Build the field, choosing its bandwidth on clean data."""
        self.field_ = QIPF(
            orders=self.orders,
            bandwidth=self.bandwidth,
            max_centers=self.max_centers,
            reduction=self.reduction,
            softening=self.softening,
            engine=self.engine,
            random_state=clean.seed,
        ).fit(clean.logits, clean.labels)
        return self

    def score(self, batch: Batch) -> Tensor:  # (n,)
        """The mean of the modes at each prediction's logits."""
        return to_double(self._learned(self.field_).uncertainty(batch.logits))

    def chosen(self) -> dict[str, Any]:
        """Bandwidth and number of centres."""
        field = self._learned(self.field_)
        return {
            "bandwidth": float(field.bandwidth_),
            "bandwidth_factor": float(field.bandwidth_factor_),
            "centers": len(field.centers_),
        }
