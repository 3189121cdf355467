"""Scores of the penultimate features together with the last layer.

:math:`z`: features; :math:`w_c, b_c`: weights of the last layer; :math:`\\mu`: mean training
feature; :math:`\\hat y`: the predicted class. ReLU networks have features that are not negative,
for which ASH and SCALE were made; where features have both signs, their magnitudes take part.
"""

from abc import abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from qipf.bench.methods.protocol import Batch, CleanData, Method, check_positive, to_double
from qipf.errors import QIPFInputError

#: Lower bound of norms and sums that are divided by.
TINY = 1e-12


def last_layer(clean: CleanData, method: str) -> tuple[Tensor, Tensor]:  # (C, d), (C,)
    """Weight and bias of the network's last layer, in float64."""
    head = clean.network.head
    if not isinstance(head, nn.Linear):
        raise QIPFInputError(
            f"{method} reads the weights of a last layer of type nn.Linear; the network's is "
            f"{type(head).__name__}."
        )
    weight = to_double(head.weight.detach())
    bias = weight.new_zeros(len(weight)) if head.bias is None else to_double(head.bias.detach())
    return weight, bias


def class_means(features: Tensor, classes: Tensor, count: int) -> Tensor:  # (count, d)
    """Mean feature of each class; zero for classes without an example."""
    members = functional.one_hot(classes, count).to(features.dtype)
    return (members.T @ features) / members.sum(dim=0).clamp(min=1)[:, None]


@dataclass
class SHE(Method):
    r"""Minus the inner product with the mean feature of the predicted class (Zhang et al., 2023).

    The mean is over the training examples that the network classifies correctly.
    """

    name = "she"
    _patterns: Tensor | None = field(default=None, init=False, repr=False)  # (C, d)

    def fit(self, clean: CleanData) -> "SHE":
        """Mean features of the correct predictions."""
        labels = clean.labels.to(clean.logits.device)
        right = clean.logits.argmax(dim=1) == labels
        features, count = to_double(clean.features[right]), clean.logits.shape[1]
        self._patterns = class_means(features, labels[right], count)
        return self

    def score(self, batch: Batch) -> Tensor:  # (n,)
        """Any real number."""
        patterns = self._learned(self._patterns)[batch.predicted]
        return -(to_double(batch.features) * patterns).sum(dim=1)


@dataclass
class NCI(Method):
    r"""Minus the alignment with the predicted class's weights (Liu & Qin, 2025).

    .. math:: -\frac{(z - \mu) \cdot w_{\hat y}}{\|z - \mu\|} - \alpha \|z\|_1
    """

    alpha: float = 0.0
    name = "nci"
    _mean: Tensor | None = field(default=None, init=False, repr=False)  # (d,)
    _weight: Tensor | None = field(default=None, init=False, repr=False)  # (C, d)

    def fit(self, clean: CleanData) -> "NCI":
        """The mean feature."""
        self._weight = last_layer(clean, self.name)[0]
        self._mean = to_double(clean.features).mean(dim=0)
        return self

    def score(self, batch: Batch) -> Tensor:  # (n,)
        """Any real number."""
        features = to_double(batch.features)
        offset = features - self._learned(self._mean)
        weights = self._learned(self._weight)[batch.predicted]
        aligned = (offset * weights).sum(dim=1) / offset.norm(dim=1).clamp(min=TINY)
        return -aligned - self.alpha * features.abs().sum(dim=1)


@dataclass
class FDBD(Method):
    r"""Minus the mean distance to the decision boundaries, regularised (Liu & Qin, 2024).

    .. math:: -\frac{1}{(C - 1)\,\|z - \mu\|} \sum_{c \ne \hat y}
              \frac{|l_{\hat y} - l_c|}{\|w_{\hat y} - w_c\|}

    :math:`l`: logits.
    """

    name = "fdbd"
    _mean: Tensor | None = field(default=None, init=False, repr=False)  # (d,)
    _between: Tensor | None = field(default=None, init=False, repr=False)  # (C, C)

    def fit(self, clean: CleanData) -> "FDBD":
        """The mean feature and the distances between the classes' weights."""
        weight = last_layer(clean, self.name)[0]
        between = (weight[:, None] - weight).norm(dim=2)
        self._between = between.fill_diagonal_(1.0)
        self._mean = to_double(clean.features).mean(dim=0)
        return self

    def score(self, batch: Batch) -> Tensor:  # (n,)
        """Not positive."""
        logits = to_double(batch.logits)
        gaps = logits.amax(dim=1, keepdim=True) - logits
        distances = gaps / self._learned(self._between)[batch.predicted].clamp(min=TINY)
        reach = (to_double(batch.features) - self._learned(self._mean)).norm(dim=1)
        return -distances.sum(dim=1) / ((logits.shape[1] - 1) * reach.clamp(min=TINY))


@dataclass
class ViM(Method):
    r"""Residual outside the principal subspace, as one more logit (Wang et al., 2022).

    .. math:: \alpha \|R^\top (z - o)\| - \log \sum_k e^{l_k}

    :math:`o = -W^{+} b`; :math:`R`: the directions about o with the least training variance, all
    but `dimension` (0: 512 of at least 768 features, else half of them); :math:`\alpha`: mean
    largest training logit over mean training residual.
    """

    dimension: int = 0
    name = "vim"
    _origin: Tensor | None = field(default=None, init=False, repr=False)  # (d,)
    _residual: Tensor | None = field(default=None, init=False, repr=False)  # (d, d - dimension)

    def fit(self, clean: CleanData) -> "ViM":
        """Origin, residual space and its scale."""
        weight, bias = last_layer(clean, self.name)
        width = weight.shape[1]
        kept = self.dimension or (512 if width >= 768 else width // 2)
        if not 0 < kept < width:
            raise QIPFInputError(f"vim: dimension must be between 1 and {width - 1}; got {kept}.")
        self._origin = -torch.linalg.pinv(weight) @ bias
        offsets = to_double(clean.features) - self._origin
        directions = torch.linalg.eigh(offsets.T @ offsets / len(offsets))[1][:, : width - kept]
        residual = (offsets @ directions).norm(dim=1).mean().clamp(min=TINY)
        scale = to_double(clean.logits).amax(dim=1).mean() / residual
        self._residual = directions * scale
        return self

    def score(self, batch: Batch) -> Tensor:  # (n,)
        """Any real number."""
        offsets = to_double(batch.features) - self._learned(self._origin)
        residual = (offsets @ self._learned(self._residual)).norm(dim=1)
        return residual - torch.logsumexp(to_double(batch.logits), dim=1)


@dataclass
class SIRC(Method):
    r"""Softmax, raised where the features are small (Xia & Bouganis, 2022).

    .. math:: \log(1 - \max_k p_k) + \log\big(1 + e^{-b (\|z\|_1 - a)}\big)

    :math:`a`: mean of :math:`\|z\|_1` over the training data minus three of its standard
    deviations; :math:`b`: one over that deviation. The logarithm ranks as the authors' product.
    """

    name = "sirc"
    _start: Tensor | None = field(default=None, init=False, repr=False)  # ()
    _slope: Tensor | None = field(default=None, init=False, repr=False)  # ()

    def fit(self, clean: CleanData) -> "SIRC":
        """Mean and deviation of the features' size."""
        size = to_double(clean.features).abs().sum(dim=1)
        deviation = size.std().clamp(min=TINY)
        self._start, self._slope = size.mean() - 3 * deviation, 1 / deviation
        return self

    def score(self, batch: Batch) -> Tensor:  # (n,)
        """Any real number."""
        size = to_double(batch.features).abs().sum(dim=1)
        low = -self._learned(self._slope) * (size - self._learned(self._start))
        log_p = torch.log_softmax(to_double(batch.logits), dim=1)
        own = batch.predicted[:, None]
        others = torch.logsumexp(log_p.scatter(1, own, -torch.inf), dim=1)  # log(1 - max p)
        return others + functional.softplus(low)


@dataclass
class _Shaped(Method):
    """Energy of the logits that the last layer gives for changed features."""

    _weight: Tensor | None = field(default=None, init=False, repr=False)  # (C, d)
    _bias: Tensor | None = field(default=None, init=False, repr=False)  # (C,)

    def fit(self, clean: CleanData) -> "_Shaped":
        """Keep the last layer."""
        self._weight, self._bias = last_layer(clean, self.name)
        return self

    def score(self, batch: Batch) -> Tensor:  # (n,)
        """Any real number."""
        weight = self._learned(self._weight)
        logits = self._changed(to_double(batch.features)) @ weight.T + self._learned(self._bias)
        return -torch.logsumexp(logits, dim=1)

    @abstractmethod
    def _changed(self, features: Tensor) -> Tensor:
        """The features that the last layer gets."""


@dataclass
class ReAct(_Shaped):
    """Features clipped at a quantile of all training activations (Sun et al., 2021)."""

    quantile: float = 0.9
    name = "react"
    _limit: float | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        _check_share(self.name, self.quantile)

    def fit(self, clean: CleanData) -> "ReAct":
        """The quantile."""
        super().fit(clean)
        values = clean.features.detach().flatten()
        # by sorting: torch.quantile takes at most 16 million values
        place = self.quantile * (len(values) - 1)
        low, high = (
            values.sort().values[[int(place), min(int(place) + 1, len(values) - 1)]].tolist()
        )
        self._limit = low + (place - int(place)) * (high - low)
        return self

    def _changed(self, features: Tensor) -> Tensor:
        return features.clamp(max=self._learned(self._limit))


@dataclass
class ASH(_Shaped):
    r"""The largest features alone, rescaled (Djurisic et al., 2023, ASH-S).

    All but the largest :math:`1 - \text{share}` of an example's features become zero, the others
    are multiplied by :math:`e^{s_1/s_2}`; :math:`s_1, s_2`: sums before and after.
    """

    share: float = 0.65
    name = "ash"

    def __post_init__(self) -> None:
        _check_share(self.name, self.share)

    def _changed(self, features: Tensor) -> Tensor:
        kept, factor = _largest(features, self.share)
        return features * kept * factor


@dataclass
class Scale(_Shaped):
    """All features, rescaled as in ASH (Xu et al., 2024)."""

    share: float = 0.85
    name = "scale"

    def __post_init__(self) -> None:
        _check_share(self.name, self.share)

    def _changed(self, features: Tensor) -> Tensor:
        return features * _largest(features, self.share)[1]


def _largest(features: Tensor, share: float) -> tuple[Tensor, Tensor]:  # (n, d), (n, 1)
    """Which features are among the largest, and exp of the ratio of the sums."""
    sizes = features.abs()
    width = features.shape[1]
    places = sizes.topk(max(1, width - round(width * share)), dim=1).indices
    kept = torch.zeros_like(features).scatter(1, places, 1.0)
    ratio = sizes.sum(dim=1) / (sizes * kept).sum(dim=1).clamp(min=TINY)
    return kept, ratio.exp()[:, None]


def _check_share(method: str, share: float) -> None:
    check_positive(method, share=share)
    check_positive(method, **{"1 - share": 1 - share})
