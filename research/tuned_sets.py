"""What `error_data.py` wrote of a network, and scores that are fitted on it.

Every candidate for a score is fitted on perturbed training images with one group of perturbations
left out, and judged on that group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from qipf.layered.mixture import odds_columns
from qipf.layered.mixture_fit import LEAST

#: Perturbations that resemble each other, left out together: a test corruption is further from all
#: of them than two of a group are from each other.
GROUPS = (("fade", "tone"), ("shift", "warp"), ("blur", "coarsen"), ("noise", "drop", "hole"))
FAMILIES = tuple(family for group in GROUPS for family in group)

#: Shares of the accuracy that perturbed images keep: of the sets that are fitted, and judged.
FITTED, JUDGED = ("0.9", "0.7", "0.5"), ("0.97", "0.9", "0.7", "0.5")

#: The column of log densities at the layers' own bandwidth, of the five that are written.
OWN_BANDWIDTH = 3


@dataclass(frozen=True)
class Rows:
    """What was said of the inputs of a set."""

    logits: Tensor  # (n, classes)
    posteriors: Tensor  # (n, 1 + layers, classes)
    densities: Tensor  # (n, layers)
    labels: Tensor  # (n,)
    kept: list[int]  # layers with a mixture weight of at least `LEAST`
    others: dict[str, Tensor] = field(default_factory=dict)  # further columns of the file

    @property
    def wrong(self) -> Tensor:  # (n,)
        return self.logits.argmax(1) != self.labels

    @property
    def unusual(self) -> Tensor:  # (n, 1 + layers)
        return torch.cat([-self.logits.logsumexp(1, keepdim=True), -self.densities], 1)

    def odds(self, weights: Tensor, kept: list[int]) -> Tensor:  # (n, 2 + kept layers)
        """Log-odds of mixture, softmax and kept layers; column 0 of `kept` is the softmax."""
        predicted = self.logits.argmax(1)[:, None, None]
        own = self.posteriors.gather(2, predicted.expand(-1, self.posteriors.shape[1], 1))[..., 0]
        against = (self.posteriors.sum(2) - own).clamp(min=0)
        own[:, 0], against[:, 0] = softmax(self.logits)  # exact, not from half precision
        return odds_columns(own[:, kept], against[:, kept], weights)

    def truth(self) -> Tensor:  # (n, 1 + layers)
        place = self.labels[:, None, None].expand(-1, self.posteriors.shape[1], 1)
        return self.posteriors.gather(2, place)[..., 0]


def softmax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Probability of the predicted class, and of all others."""
    p = logits.softmax(1)
    own = p.amax(1)
    return own, p.scatter(1, logits.argmax(1, keepdim=True), 0).sum(1)


class Network:
    """All sets of a network, by name."""

    def __init__(self, path: Path) -> None:
        arrays = np.load(path)
        self.name = path.stem.rsplit("-", 1)[0]
        names = {key.split("|")[0] for key in arrays.files if "|" in key}
        columns = {key.split("|")[1] for key in arrays.files if "|" in key}
        self.sets = {name: self._rows(arrays, name, columns) for name in sorted(names)}

    @staticmethod
    def _rows(arrays: np.lib.npyio.NpzFile, name: str, columns: set[str]) -> Rows:
        read = {k: torch.from_numpy(arrays[f"{name}|{k}"]).double() for k in columns}
        layers = read["log_posteriors"].shape[1] - 1
        densities = read["densities"].view(-1, layers, read["densities"].shape[1] // layers)
        return Rows(
            read["logits"],
            read["log_posteriors"].exp(),
            densities[:, :, OWN_BANDWIDTH],
            read["labels"].long(),
            np.flatnonzero(arrays["weights"][1:] >= LEAST).tolist(),
            {k: v for k, v in read.items() if k not in COLUMNS},
        )

    def tuning(self, families: Sequence[str]) -> list[Rows]:
        """The clean set, first, and the perturbed ones of these families."""
        names = ["clean", *(f"{family}/{share}" for family in families for share in FITTED)]
        return [self.sets[f"tuning/{name}"] for name in names]


COLUMNS = ("logits", "log_posteriors", "densities", "labels")

#: Fitted on sets, the clean one first: a score of rows.
Score = Callable[[Rows], Tensor]
Candidate = Callable[[list[Rows]], Score]


def left_out(network: Network, candidate: Candidate) -> Iterator[tuple[Score, Rows]]:
    """A score that was fitted without a group, and each set of that group."""
    for group in GROUPS:
        score = candidate(network.tuning([f for f in FAMILIES if f not in group]))
        for family in group:
            for share in JUDGED:
                yield score, network.sets[f"tuning/{family}/{share}"]
