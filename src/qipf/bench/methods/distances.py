"""Mahalanobis distances in feature space, to the nearest class."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from qipf.bench.methods.feature_scores import class_means
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
        means = class_means(features, classes, len(present))
        self._whiten = whitening(features - means[classes])
        self._means = means @ self._whiten
        return self

    def score(self, batch: Batch) -> Tensor:  # (n,)
        """Not negative."""
        whitened = to_double(batch.features) @ self._learned(self._whiten)
        exact = "donot_use_mm_for_euclid_dist"  # expanding the square loses digits
        means = self._learned(self._means)
        return torch.cdist(whitened, means, compute_mode=exact).amin(dim=1)


@dataclass
class RMDS(Mahalanobis):
    r"""Squared distance to the nearest class, relative to one Gaussian for all (Ren et al., 2021).

    .. math:: \min_c d_c(z)^2 - d_0(z)^2

    :math:`d_c`: as in `Mahalanobis`; :math:`d_0`: distance to the mean of all training features
    under their own covariance.
    """

    name = "rmds"
    _mean: Tensor | None = field(default=None, init=False, repr=False)  # (width,)
    _whiten_all: Tensor | None = field(default=None, init=False, repr=False)  # (width, rank)

    def fit(self, clean: CleanData) -> "RMDS":
        """The Gaussians of the classes, and that of all."""
        super().fit(clean)
        features = to_double(clean.features)
        self._mean = features.mean(dim=0)
        self._whiten_all = whitening(features - self._mean)
        return self

    def score(self, batch: Batch) -> Tensor:  # (n,)
        """Any real number."""
        offsets = to_double(batch.features) - self._learned(self._mean)
        background = (offsets @ self._learned(self._whiten_all)).square().sum(dim=1)
        return super().score(batch).square() - background


def whitening(offsets: Tensor) -> Tensor:  # (n, width) -> (width, rank)
    """Directions scaled to unit variance, without those in which the offsets do not vary."""
    variances, directions = torch.linalg.eigh(offsets.T @ offsets / len(offsets))
    kept = variances > NEGLIGIBLE * variances[-1]
    return directions[:, kept] / variances[kept].sqrt()
