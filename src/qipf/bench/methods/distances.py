"""Distances in feature space: to the nearest training features, and to the nearest class."""

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


#: Directions with less than this share of the largest variance carry rounding, not data.
NEGLIGIBLE = 1e-8


@dataclass
class Mahalanobis(Method):
    r"""Distance to the nearest class mean under one shared covariance (Lee et al., 2018).

    .. math:: \min_c \sqrt{(z - \mu_c)^\top \Sigma^{+} (z - \mu_c)}

    :math:`z`: penultimate features; :math:`\mu_c`: their mean in class c; :math:`\Sigma`: their
    mean covariance about these means, pseudo-inverted, because some features never vary.
    """

    name = "mahalanobis"
    _means: Tensor | None = field(default=None, init=False, repr=False)  # (classes, rank)
    _whiten: Tensor | None = field(default=None, init=False, repr=False)  # (width, rank)

    def fit(self, clean: CleanData) -> "Mahalanobis":
        """Class means and the shared covariance of the training features."""
        features = to_double(clean.features)
        present, classes = clean.labels.to(features.device).unique(return_inverse=True)
        members = functional.one_hot(classes, len(present)).to(features.dtype)
        means = (members.T @ features) / members.sum(dim=0)[:, None]
        offsets = features - means[classes]
        variances, directions = torch.linalg.eigh(offsets.T @ offsets / len(offsets))
        kept = variances > NEGLIGIBLE * variances[-1]
        self._whiten = directions[:, kept] / variances[kept].sqrt()
        self._means = means @ self._whiten
        return self

    def score(self, batch: Batch) -> Tensor:  # (n,)
        """Not negative."""
        whitened = to_double(batch.features) @ self._learned(self._whiten)
        exact = "donot_use_mm_for_euclid_dist"  # expanding the square loses digits
        means = self._learned(self._means)
        return torch.cdist(whitened, means, compute_mode=exact).amin(dim=1)
