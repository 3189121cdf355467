"""Distance to the nearest training features."""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from qipf.bench.methods.protocol import Batch, CleanData, Method, check_positive, to_double

#: Cosines held at once: queries times training rows.
PAIRS = 50_000_000


@dataclass
class KNN(Method):
    r"""Distance to the k-th nearest training feature, on the unit sphere (Sun et al., 2022).

    .. math:: \Big\| \frac{z}{\|z\|} - \frac{z_{(k)}}{\|z_{(k)}\|} \Big\|

    :math:`z`: penultimate features. k = 50, the authors' choice for CIFAR-10; all training rows
    when there are fewer.
    """

    k: int = 50
    name = "knn"
    _features: Tensor | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        check_positive(self.name, k=self.k)

    def fit(self, clean: CleanData) -> "KNN":
        """Keep the normalised training features."""
        self._features = functional.normalize(clean.features, dim=1)
        return self

    def score(self, batch: Batch) -> Tensor:  # (n,)
        """Between 0 and 2."""
        known = self._learned(self._features)
        queries = functional.normalize(batch.features, dim=1)
        rows = max(1, PAIRS // len(known))
        return torch.cat([self._distance(part, known) for part in queries.split(rows)])

    def _distance(self, queries: Tensor, known: Tensor) -> Tensor:
        k = min(self.k, len(known))
        nearest = (queries @ known.T).topk(k, dim=1).indices[:, -1]
        # from the vectors, not from 2 - 2 cos, which loses the digits of small distances
        return (to_double(queries) - to_double(known[nearest])).norm(dim=1)
