"""Scores from the nearest training features."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from qipf.bench.methods.protocol import Batch, CleanData, Method, check_positive, to_double

#: Numbers held at once: queries times training rows.
PAIRS = 50_000_000


def by_parts(queries: Tensor, known: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
    """`compute` on parts of the queries, so that few pairs with known rows are held at once."""
    rows = max(1, PAIRS // len(known))
    return torch.cat([compute(part) for part in queries.split(rows)])


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
        return by_parts(queries, known, self._distance)

    def _distance(self, queries: Tensor) -> Tensor:
        known = self._learned(self._features)
        k = min(self.k, len(known))
        nearest = (queries @ known.T).topk(k, dim=1).indices[:, -1]
        # from the vectors, not from 2 - 2 cos, which loses the digits of small distances
        return (to_double(queries) - to_double(known[nearest])).norm(dim=1)


@dataclass
class NNGuide(Method):
    r"""Energy times similarity to the training features (Park et al., 2023), negated.

    .. math:: -E(x) \cdot \tfrac1k \sum_{i \in N_k} E(x_i) \cos(z, z_i), \quad
              E = \log \sum_j e^{l_j}

    :math:`N_k`: the k training examples with the largest :math:`E(x_i)\cos(z, z_i)`.
    """

    k: int = 10
    name = "nnguide"
    _bank: Tensor | None = field(default=None, init=False, repr=False)  # (N, d)

    def __post_init__(self) -> None:
        check_positive(self.name, k=self.k)

    def fit(self, clean: CleanData) -> "NNGuide":
        """Normalised training features, scaled by their energies."""
        energy = torch.logsumexp(clean.logits, dim=1, keepdim=True)
        self._bank = functional.normalize(clean.features, dim=1) * energy
        return self

    def score(self, batch: Batch) -> Tensor:  # (n,)
        """Any real number."""
        bank = self._learned(self._bank)
        k = min(self.k, len(bank))

        def guidance(queries: Tensor) -> Tensor:
            return to_double((queries @ bank.T).topk(k, dim=1).values).mean(dim=1)

        found = by_parts(functional.normalize(batch.features, dim=1), bank, guidance)
        return -found * torch.logsumexp(to_double(batch.logits), dim=1)


@dataclass
class TrustScore(Method):
    """Distance to the predicted class over distance to the nearest other (Jiang et al., 2018).

    Distances are to the nearest training feature of a class. The authors' filter of rare examples
    is left out, as in their main experiments with trained features.
    """

    name = "trust_score"
    _features: Tensor | None = field(default=None, init=False, repr=False)  # (N, d) by class
    _counts: tuple[int, ...] = field(default=(), init=False, repr=False)

    def fit(self, clean: CleanData) -> "TrustScore":
        """Keep the training features, ordered by class."""
        labels = clean.labels.to(clean.features.device)
        self._features = clean.features[labels.argsort(stable=True)]
        self._counts = tuple(labels.bincount(minlength=clean.logits.shape[1]).tolist())
        return self

    def score(self, batch: Batch) -> Tensor:  # (n,)
        """Between 0 and infinity, which is cut off at 1e6."""
        known = self._learned(self._features)

        def distances(queries: Tensor) -> Tensor:  # (n, C)
            parts = torch.cdist(queries, known).split(self._counts, dim=1)
            none = queries.new_full((len(queries),), torch.inf)
            return torch.stack([part.amin(dim=1) if part.shape[1] else none for part in parts], 1)

        nearest = to_double(by_parts(batch.features, known, distances))
        own = batch.predicted[:, None]
        others = nearest.scatter(1, own, torch.inf).amin(dim=1)
        ratio = nearest.gather(1, own)[:, 0] / others.clamp(min=torch.finfo(torch.float32).tiny)
        return ratio.clamp(max=1e6)


#: Factors on the median distance to the neighbours, among which NUQ's bandwidth is chosen.
WIDTHS = (0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.4)


@dataclass
class NUQ(Method):
    r"""Uncertainty of a kernel classifier over the features (Kotelevskii et al., 2022).

    .. math:: \log\Big( 1 - \max_c \hat p_c + 2\sqrt{\tfrac2\pi}\, \tau \Big), \quad
              \tau^2 = \max_c \hat p_c (1 - \hat p_c)\, \frac{2^{-d/2}}{\sum_i e^{-r_i^2/2h^2}}

    :math:`\hat p_c`: share of class c in the kernel-weighted `k` nearest training examples,
    :math:`r_i`: their distances, d: number of features. The first term is aleatoric, the second
    the standard error of :math:`\hat p`, epistemic. The bandwidth h is the one that predicts the
    classes of training examples best when they are left out (likelihood), of `WIDTHS`.
    """

    k: int = 100
    name = "nuq"
    _features: Tensor | None = field(default=None, init=False, repr=False)  # (N, d)
    _labels: Tensor | None = field(default=None, init=False, repr=False)  # (N,)
    _classes: int = field(default=0, init=False, repr=False)
    bandwidth_: float | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        check_positive(self.name, k=self.k)

    def fit(self, clean: CleanData) -> "NUQ":
        """Choose the bandwidth on at most 1000 training examples."""
        self._features, self._classes = clean.features, clean.logits.shape[1]
        self._labels = clean.labels.to(clean.features.device)
        picked = torch.arange(0, len(self._features), max(1, len(self._features) // 1000))
        distances, labels = self._neighbours(self._features[picked], self.k + 1)
        distances, labels = distances[:, 1:], labels[:, 1:]  # each is its own nearest neighbour
        typical = float(distances.median().clamp(min=1e-6))
        truth = self._labels[picked.to(self._labels.device), None]

        def likelihood(width: float) -> float:
            shares = self._log_shares(distances, labels, width)[0]
            floor = math.log(1e-4 / self._classes)  # a class without neighbours is not impossible
            return float(shares.gather(1, truth).clamp(min=floor).mean())

        self.bandwidth_ = max((factor * typical for factor in WIDTHS), key=likelihood)
        return self

    def chosen(self) -> dict[str, float]:
        """The bandwidth."""
        return {"bandwidth": self._learned(self.bandwidth_)}

    def score(self, batch: Batch) -> Tensor:  # (n,)
        """Finite; grows without bound with the distance to the training examples."""
        width = self._learned(self.bandwidth_)
        distances, labels = self._neighbours(batch.features, self.k)
        shares, log_sum = self._log_shares(distances, labels, width)
        top = shares.amax(dim=1)
        complement = (-torch.expm1(top)).clamp(min=1e-300).log()
        variance = shares + torch.log((-torch.expm1(shares)).clamp(min=1e-300))
        dimensions = batch.features.shape[1]
        log_tau = (variance.amax(dim=1) - dimensions / 2 * math.log(2) - log_sum) / 2
        return torch.logaddexp(complement, math.log(2 * math.sqrt(2 / math.pi)) + log_tau)

    def _neighbours(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:  # (n, k), (n, k)
        known, labels = self._learned(self._features), self._learned(self._labels)
        k = min(k, len(known))

        rows = max(1, PAIRS // len(known))
        found = [torch.cdist(part, known).topk(k, largest=False) for part in queries.split(rows)]
        distances, places = (torch.cat(part) for part in zip(*found, strict=True))
        return to_double(distances), labels[places]

    def _log_shares(self, distances: Tensor, labels: Tensor, width: float) -> tuple[Tensor, Tensor]:
        """Log shares of the classes (n, C), and the log of the kernel sum (n,)."""
        logs = -distances.square() / (2 * width * width)
        total = torch.logsumexp(logs, dim=1)
        weights = (logs - total[:, None]).exp()
        shares = weights.new_zeros(len(weights), self._classes).scatter_add(1, labels, weights)
        return shares.clamp(min=1e-300).log().clamp(max=0), total
