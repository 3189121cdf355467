"""Distance to the nearest class in the features' own metric."""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from qipf.bench.methods.protocol import Batch, CleanData, Method, to_double

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
