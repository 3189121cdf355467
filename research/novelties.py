"""Candidates for the novelty, by the names of their columns.

Each is a logistic regression of perturbed against clean rows over some columns and the Mahalanobis
distance of others from clean rows, as `qipf.layered.novelty` has it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from sklearn.covariance import ledoit_wolf
from torch import Tensor
from tuned_sets import Rows, Score, softmax

from qipf.layered.error_model import CONSTANT, balanced, fit_log_odds
from qipf.layered.novelty import standardised_mean


def _odds(rows: Rows) -> Tensor:  # (n, 1)
    own, against = softmax(rows.logits)
    return (against.clamp(min=1e-12).log() - own.log())[:, None]


def _angle(rows: Rows) -> Tensor:  # (n, 1) of the largest logit, with the length of the last row
    centred = rows.logits - rows.logits.mean(1, keepdim=True)
    return -centred.amax(1, keepdim=True) / rows.others["lengths"][:, -1:].exp()


def _class_density(rows: Rows) -> Tensor:  # (n, 1) of the predicted class in the last layer
    own = rows.posteriors[:, -1].gather(1, rows.logits.argmax(1, keepdim=True))
    return -rows.densities[:, -1:] - own.log()


def _residual(rows: Rows) -> Tensor:  # (n, 1)
    if "residual" in rows.others:
        return rows.others["residual"]
    part = rows.others["peers"][:, 1:] + rows.logits.logsumexp(1, keepdim=True)
    return part.clamp(min=1e-9).log()  # ViM is the energy and this, with a factor


#: Columns by name, (n, some) each. "density": of the last layer that is kept; "last density": of
#: the last layer; "densities": of those that are kept.
COLUMNS: dict[str, Callable[[Rows], Tensor]] = {
    "energy": lambda rows: rows.unusual[:, :1],
    "density": lambda rows: -rows.densities[:, rows.kept[-1:]],
    "last density": lambda rows: -rows.densities[:, -1:],
    "densities": lambda rows: -rows.densities[:, rows.kept],
    "all densities": lambda rows: -rows.densities,
    "kept lengths": lambda rows: rows.others["lengths"][:, rows.kept],
    "lengths": lambda rows: rows.others["lengths"],
    "residual": _residual,
    "odds": _odds,
    "angle": _angle,
    "class density": _class_density,
    "neighbours": lambda rows: rows.others["peers"][:, :1],
    "vim": lambda rows: rows.others["peers"][:, 1:],
    "mahalanobis": lambda rows: rows.others["mahalanobis"],
    "log mahalanobis": lambda rows: rows.others["mahalanobis"].log(),
    "whitened": lambda rows: rows.others["whitened"],
    "kept whitened": lambda rows: rows.others["whitened"][:, rows.kept],
    "last whitened": lambda rows: rows.others["whitened"][:, -1:],
    "class distances": lambda rows: rows.others["class_distances"],
    "kept class distances": lambda rows: rows.others["class_distances"][:, rows.kept],
    "last class distance": lambda rows: rows.others["class_distances"][:, -1:],
    "alignment": lambda rows: rows.others["alignment"],
}


def columns_of(names: tuple[str, ...], rows: Rows) -> Tensor:
    return torch.cat([COLUMNS[name](rows) for name in names], 1)


@dataclass(frozen=True)
class Novelty:
    """A candidate, fitted by calling it with sets of rows, the clean one first."""

    columns: tuple[str, ...]
    distance: tuple[str, ...] = ()  # of what the distance is taken, the last column

    def available(self, rows: Rows) -> bool:
        """Whether the file has all that is needed: earlier ones have less."""
        try:
            columns_of(self.columns + self.distance, rows)
        except KeyError:
            return False
        return True

    def __call__(self, sets: list[Rows]) -> Score:
        if not self.distance and len(self.columns) == 1:  # a peer: nothing is fitted
            return lambda rows: columns_of(self.columns, rows)[:, 0]
        whitened = whitening(columns_of(self.distance, sets[0])) if self.distance else None

        def seen(rows: Rows) -> Tensor:
            own = columns_of(self.columns, rows)
            if whitened is None:
                return own
            far = whitened(columns_of(self.distance, rows)).norm(dim=1, keepdim=True)
            return torch.cat([own, far], 1)

        columns = torch.cat([seen(rows) for rows in sets])
        perturbed = torch.arange(len(columns)) >= len(sets[0].logits)
        fitted = fit_log_odds(columns, perturbed, balanced(perturbed))
        found = fitted or standardised_mean(columns[~perturbed])
        return lambda rows: found(seen(rows))


def whitening(clean: Tensor) -> Callable[[Tensor], Tensor]:
    """To unit covariance of clean rows."""
    mean, deviation = clean.mean(0), clean.std(0, correction=0)
    scale = torch.where(deviation > CONSTANT, 1 / deviation, 0.0)
    covariance = torch.from_numpy(ledoit_wolf(((clean - mean) * scale).numpy())[0])
    values, vectors = torch.linalg.eigh(covariance)
    usable = torch.where(values > CONSTANT, values.clamp(min=CONSTANT).rsqrt(), 0.0)
    return lambda rows: (rows - mean) @ (scale[:, None] * vectors * usable)


_BASE, _FAR = ("energy", "density"), ("energy", "densities")
_PART, _LONG = (*_BASE, "residual"), (*_FAR, "lengths")

#: In the order in which they were tried.
NOVELTIES: dict[str, Novelty] = {
    "energy": Novelty(("energy",)),
    "last layer": Novelty(("last density",)),
    "regression of energy and all layers": Novelty(("energy", "all densities")),
    "energy, last layer, distance": Novelty(_BASE, _FAR),
    "class density instead": Novelty(("energy", "class density"), _FAR),
    "class density too": Novelty((*_BASE, "class density"), _FAR),
    "log-odds too": Novelty((*_BASE, "odds"), _FAR),
    "log-odds in the distance": Novelty(_BASE, (*_FAR, "odds")),
    "lengths of kept layers": Novelty(_BASE, (*_FAR, "kept lengths")),
    "lengths": Novelty(_BASE, _LONG),
    "lengths, neighbours": Novelty((*_BASE, "neighbours"), _LONG),
    "lengths of kept layers, residual": Novelty(_PART, (*_FAR, "kept lengths")),
    "lengths, residual": Novelty(_PART, _LONG),
    "the same, residual in the distance": Novelty(_BASE, (*_LONG, "residual")),
    "the same, all densities": Novelty(_PART, ("energy", "all densities", "lengths")),
    "the same, angle too": Novelty((*_PART, "angle"), _LONG),
    "the same, angle, also in the distance": Novelty((*_PART, "angle"), (*_LONG, "angle")),
    "the same, log-odds too": Novelty((*_PART, "odds"), _LONG),
    "the same, last density too": Novelty((*_PART, "last density"), _LONG),
    "the same, without densities in the distance": Novelty(_PART, ("energy", "lengths")),
    "Mahalanobis too": Novelty((*_PART, "mahalanobis"), _LONG),
    "log Mahalanobis too": Novelty((*_PART, "log mahalanobis"), _LONG),
    "Mahalanobis in the distance": Novelty(_PART, (*_LONG, "log mahalanobis")),
    "Mahalanobis in both": Novelty((*_PART, "log mahalanobis"), (*_LONG, "log mahalanobis")),
    "Mahalanobis instead of the residual": Novelty((*_BASE, "log mahalanobis"), _LONG),
    "whitened lengths instead": Novelty(_PART, (*_FAR, "whitened")),
    "whitened lengths too": Novelty(_PART, (*_LONG, "whitened")),
    "whitened lengths of kept layers too": Novelty(_PART, (*_LONG, "kept whitened")),
    "the same without the residual": Novelty(_BASE, (*_LONG, "kept whitened")),
    "the same without lengths": Novelty(_PART, (*_FAR, "kept whitened")),
    "class distances of kept layers too": Novelty(_PART, (*_LONG, "kept class distances")),
    "last whitened length, a column": Novelty((*_PART, "last whitened"), _LONG),
    "class distances in the distance": Novelty(_PART, (*_LONG, "class distances")),
    "class distances instead of lengths": Novelty(_PART, (*_FAR, "class distances")),
    "last class distance, a column": Novelty((*_PART, "last class distance"), _LONG),
    "Mahalanobis, whitened lengths": Novelty((*_BASE, "log mahalanobis"), (*_FAR, "whitened")),
    "Mahalanobis, both lengths": Novelty((*_PART, "log mahalanobis"), (*_LONG, "whitened")),
    "alignment too": Novelty((*_PART, "alignment"), _LONG),
    "alignment, Mahalanobis": Novelty((*_PART, "alignment", "log mahalanobis"), _LONG),
}

#: What is shipped, and scores of others.
SHIPPED = NOVELTIES["whitened lengths of kept layers too"]
PEERS: dict[str, Novelty] = {
    "KNN": Novelty(("neighbours",)),
    "ViM": Novelty(("vim",)),
    "Mahalanobis": Novelty(("mahalanobis",)),
    "NCI": Novelty(("alignment",)),
}
