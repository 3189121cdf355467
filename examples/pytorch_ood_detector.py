"""A detector with the interface of pytorch-ood: its metrics and benchmarks take it as their own.

detector = QIPFDetector(net).fit(train_loader)
metrics = pytorch_ood.utils.OODMetrics()
for x, y in test_loader:                 # y < 0 for inputs of unknown classes
    metrics.update(detector(x), y)
print(metrics.compute())
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor, nn

import qipf

try:
    from pytorch_ood.api import Detector
except ImportError:
    Detector = object


class QIPFDetector(Detector):
    """Outlier scores of a network's inputs; higher is more unusual, as pytorch-ood expects.

    Parameters
    ----------
    net : a trained network that returns logits.
    score : ``"novelty"``: inputs unlike the training data; ``"uncertainty"``: probable errors.
    make : makes the model from the network, such as `qipf.LayeredQIPF` or `qipf.wrap`.
    """

    requires_fit = True

    def __init__(
        self,
        net: nn.Module,
        score: str = "novelty",
        make: Callable[[nn.Module], Any] = qipf.LayeredQIPF,
    ) -> None:
        if score not in ("novelty", "uncertainty"):
            raise ValueError(f"score must be 'novelty' or 'uncertainty', got {score!r}.")
        super().__init__()
        self.score, self.model = score, make(net)

    def fit(self, data_loader: Iterable[tuple[Tensor, Tensor]]) -> QIPFDetector:
        """Fit to training data; inputs of unknown classes (labels below 0) are left out."""
        self.model.fit(_Known(data_loader))
        return self

    def predict(self, x: Tensor) -> Tensor:  # (n, ...) -> (n,)
        """Outlier score of each input."""
        scores: Tensor = getattr(self.model, self.score)(x)
        return scores

    def __call__(self, x: Tensor) -> Tensor:
        """Outlier score of each input."""
        return self.predict(x)


class _Known:
    """Batches without the inputs of unknown classes."""

    def __init__(self, loader: Iterable[tuple[Tensor, Tensor]]) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in self.loader:
            if (y >= 0).any():
                yield x[y >= 0], y[y >= 0]
