r"""Why a prediction is uncertain: which layers prefer another class, and nearby training examples.

The mixture's probability of the classes other than the predicted class k is a sum over the
posteriors, so that each has a share of it; the shares sum to one:

.. math:: 1 - \bar p_k = \sum_l \alpha_l\,(1 - q_{l,k}), \qquad
          \text{share}_l = \frac{\alpha_l\,(1 - q_{l,k})}{1 - \bar p_k}

Uncertainty and novelty are sums of terms (`qipf.layered.error_model`, `qipf.layered.novelty`),
which are listed too.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from qipf.calibration.prediction import SMALL
from qipf.display import Shown
from qipf.layered.class_field import ClassField
from qipf.layered.error_model import ErrorModel, Evidence
from qipf.layered.mixture import own_and_others
from qipf.layered.novelty import NoveltyModel, named_terms
from qipf.network.features import LayerSite, Rows

#: Name of the softmax among the layers.
SOFTMAX = "softmax"

#: Centres that are looked at for each training example that is named.
CENTERS = 8

#: Parts of a sum, with their names.
Terms = tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class LayerPosterior:
    """Posterior of the softmax or of a layer for one input."""

    name: str  # "softmax", or the layer
    weight: float  # in the mixture
    label: int  # its most probable class
    confidence: float  # probability of that class
    support: float  # probability of the predicted class
    share: float  # its share of the mixture's probability of the other classes


@dataclass(frozen=True)
class Neighbor:
    """A training example near an input, in the layer with the largest share.

    Of a weighted centre, the example of its class nearest to it; the cosine is that of the centre.
    """

    index: int  # in the loader's order, from 0
    label: int  # its true class
    cosine: float  # 1 = the same direction


@dataclass(frozen=True, repr=False)
class Explanation:
    """Why one prediction is certain or uncertain; `str` formats it as text."""

    predicted: int  # the predicted class
    uncertainty: float
    probability: float  # of the predicted class in the mixture
    posteriors: tuple[LayerPosterior, ...]  # the softmax's first, then the layers' in order
    layer: str | None  # that with the largest share, or least sure of the class; None without any
    rival: int | None  # the most probable other class in that layer
    nearest: tuple[Neighbor, ...]  # training examples of the predicted class, nearest first
    nearest_rival: tuple[Neighbor, ...]  # and of the rival
    novelty: float | None = None
    terms: Terms = ()  # of the uncertainty, which is their sum
    novelty_terms: Terms = ()  # and of the novelty
    novelty_p_value: float | None = None  # of a calibrated model

    @property
    def p_error(self) -> float:
        """Estimated probability of an error."""
        return 1 / (1 + math.exp(-self.uncertainty)) if self.uncertainty > -700 else 0.0

    @property
    def verdict(self) -> str:
        """Which of the two scores is high.

        The uncertainty is if it is above zero: it is a log-odds. The novelty is if its p-value is
        at most 0.05, and before calibration if it is above zero, which is not rare.
        """
        found = ["probably wrong"] if self.uncertainty > 0 else []
        if self._novel:
            known = self.novelty_p_value is not None
            found.append("unlike the training data" if known else "novelty above zero")
        return ", ".join(found) or "nothing unusual"

    @property
    def _why_layer(self) -> str:
        """What the layer with the neighbours is chosen by."""
        used = any(posterior.weight > 0 for posterior in self.posteriors[1:])
        return "largest share" if used else f"least sure of class {self.predicted}"

    @property
    def _novel(self) -> bool:
        if self.novelty_p_value is not None:
            return self.novelty_p_value <= SMALL
        return self.novelty is not None and self.novelty > 0

    @property
    def _shown_p_value(self) -> str:
        return "" if self.novelty_p_value is None else f" (p-value {self.novelty_p_value:.3f})"

    @property
    def reason(self) -> str:
        """Main evidence for the verdict: a posterior, a term of the novelty, or both."""
        found = []
        if self.uncertainty > 0 and self.posteriors:
            top = max(self.posteriors, key=lambda posterior: posterior.share)
            prefers = f"prefers class {top.label} ({top.confidence:.1%})"
            if top.label == self.predicted:
                prefers = f"gives class {self.predicted} no more than {top.support:.1%}"
            found.append(f"{top.name} {prefers}")
        if self._novel:
            terms = [term for term in self.novelty_terms if term[0] != "constant"]
            name, value = max(terms, key=lambda term: term[1], default=("constant", 0.0))
            found.append(f"the largest term of the novelty is that of {name} ({value:.3g})")
        if not found:
            found = [f"the mixture gives class {self.predicted} {self.probability:.1%}"]
        return ", and ".join(found)

    @property
    def disagreeing(self) -> tuple[str, ...]:
        """Names of the posteriors that prefer another class than the predicted one."""
        return tuple(o.name for o in self.posteriors if o.label != self.predicted)

    def __str__(self) -> str:
        against = ", ".join(self.disagreeing) or "none"
        wide = max(len(posterior.name) for posterior in self.posteriors)
        lines = [
            f"class {self.predicted}, uncertainty {self.uncertainty:.3g}: the network and its "
            f"layers give it {self.probability:.1%}",
            f"  prefer another class: {against}",
            f"  {'layer':<{wide}}  weight  prefers            class {self.predicted:<5}  share",
        ]
        for o in self.posteriors:
            prefers = f"class {o.label} ({o.confidence:.1%})"
            lines.append(
                f"  {o.name:<{wide}}  {o.weight:>6.1%}  {prefers:<17}  {o.support:>11.1%}  "
                f"{o.share:>5.1%}"
            )
        if self.novelty is not None:
            lines[1:1] = [
                f"  {self.verdict}: {self.reason}",
                f"  probability of an error {self.p_error:.1%}, novelty {self.novelty:.3g}"
                f"{self._shown_p_value}",
                f"  uncertainty = {_sum(self.terms)}",
                f"  novelty = {_sum(self.novelty_terms)}",
            ]
        if self.layer is not None:
            lines.append(f"  nearest training examples in {self.layer} ({self._why_layer}):")
            for label, near in ((self.predicted, self.nearest), (self.rival, self.nearest_rival)):
                lines.append(f"    of class {label}: {_near(near)}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        known = "" if self.novelty is None else f", {self.verdict}"
        return f"Explanation(class {self.predicted}, uncertainty {self.uncertainty:.3g}{known})"

    def _repr_html_(self) -> str:
        facts = {"class": f"{self.predicted}, {self.probability:.1%} by the network and its layers"}
        if self.novelty is not None:
            facts["uncertainty"] = f"{self.uncertainty:.3g} = {_sum(self.terms)}"
            terms = _sum(self.novelty_terms)
            facts["novelty"] = f"{self.novelty:.3g}{self._shown_p_value} = {terms}"
            facts["p_error"] = f"{self.p_error:.1%}"
        if self.layer is not None:
            facts["nearest"] = f"in {self.layer}, of class {self.predicted}: {_near(self.nearest)}"
            facts["rival"] = f"class {self.rival}: {_near(self.nearest_rival)}"
        header = ("layer", "weight", "prefers", f"class {self.predicted}", "share")
        rows = [
            (
                each.name,
                f"{each.weight:.1%}",
                f"class {each.label} ({each.confidence:.1%})",
                f"{each.support:.1%}",
                f"{each.share:.1%}",
            )
            for each in self.posteriors
        ]
        return Shown(repr(self), facts, header, rows).html()


def _near(neighbors: tuple[Neighbor, ...]) -> str:
    return ", ".join(f"{n.index} (cosine {n.cosine:.3f})" for n in neighbors) or "none"


def _sum(terms: Terms) -> str:
    return " + ".join(f"{value:.3g} ({name})" for name, value in terms if value) or "0"


def explanations(
    logits: Tensor,  # (n, classes)
    rows: Rows,
    posteriors: Tensor,  # (n, 1 + layers, classes)
    found: tuple[Tensor, Evidence],  # the mixture's probabilities, and the evidence with lengths
    weights: Tensor,  # (1 + layers,)
    scores: tuple[ErrorModel, NoveltyModel],
    fields: Mapping[LayerSite, ClassField],
    count: int,
    p_values: Callable[[Tensor], Tensor] | None,  # of novelties (n,); None before calibration
) -> list[Explanation]:
    """One explanation per prediction, with `count` neighbours of either class."""
    predicted = logits.argmax(1)
    probabilities, evidence = found
    support, others = own_and_others(posteriors, predicted)
    share = shares(others.sum(2), weights)  # not of 1 - p, which loses digits near one
    confidence, preferred = posteriors.max(2)
    names = [SOFTMAX, *map(str, fields)]
    values = (weights.expand_as(share), preferred, confidence, support, share)
    of_error = ("constant", "mixture", *names)
    novelty, last = scores[1](evidence), names[-1] if fields else None
    columns = zip(
        predicted.tolist(),
        scores[0](evidence).tolist(),
        probabilities.gather(1, predicted[:, None])[:, 0].tolist(),
        zip(*(value.tolist() for value in values), strict=True),
        _nearby(rows, predicted, others[:, 1:], share[:, 1:], fields, count),
        novelty.tolist(),
        [tuple(zip(of_error, own, strict=True)) for own in scores[0].terms(evidence).tolist()],
        [named_terms(own, last) for own in scores[1].terms(evidence).tolist()],
        [None] * len(novelty) if p_values is None else p_values(novelty).tolist(),
        strict=True,
    )
    return [
        Explanation(
            k, uncertainty, probability, tuple(map(LayerPosterior, names, *own)), *nearby, *rest
        )
        for k, uncertainty, probability, own, nearby, *rest in columns
    ]


def shares(against: Tensor, weights: Tensor) -> Tensor:  # (n, L), (L,) -> (n, L)
    """Each posterior's share of the mixture's probability of other classes; the weights if zero.

    >>> shares(torch.tensor([[0.1, 0.3], [0.0, 0.0]]), torch.tensor([0.75, 0.25]))
    tensor([[0.5000, 0.5000], [0.7500, 0.2500]])
    """
    parts = against * weights
    total = parts.sum(1, keepdim=True)
    return torch.where(total > 0, parts / total, weights)


Nearby = tuple[str | None, int | None, tuple[Neighbor, ...], tuple[Neighbor, ...]]


def _nearby(
    rows: Rows,
    predicted: Tensor,  # (n,)
    others: Tensor,  # (n, layers, classes) the layers' posteriors of the other classes
    share: Tensor,  # (n, layers)
    fields: Mapping[LayerSite, ClassField],
    count: int,
) -> list[Nearby]:
    """For each input: the layer with the largest share, its rival class, neighbours of both."""
    found: list[Nearby] = [(None, None, (), ())] * len(predicted)
    if not fields:
        return found
    # of layers with equal shares, such as those without weight, the one least sure of the class
    top = share == share.amax(1, keepdim=True)
    largest = torch.where(top, others.sum(2), -1.0).argmax(1)
    for number, (site, field) in enumerate(fields.items()):
        chosen = (largest == number).nonzero()[:, 0]
        if not len(chosen):
            continue
        near, own, rival = rows[site][chosen], predicted[chosen], others[chosen, number].argmax(1)
        pairs = [_neighbors(field, near, classes, count) for classes in (own, rival)]
        for i, label, *neighbors in zip(chosen.tolist(), rival.tolist(), *pairs, strict=True):
            found[i] = (str(site), label, *neighbors)
    return found


def _neighbors(
    field: ClassField, rows: Tensor, classes: Tensor, count: int
) -> list[tuple[Neighbor, ...]]:
    # one example can be the nearest of several centres
    centers, cosines = field.nearest(rows, classes, CENTERS * count)
    found = []
    for near, similar, label in zip(
        centers.tolist(), cosines.tolist(), classes.tolist(), strict=True
    ):
        largest: dict[int, float] = {}
        for center, cosine in zip(near, similar, strict=True):
            if cosine > -2:  # -inf where the class has too few centres
                largest.setdefault(int(field.examples[center]), cosine)
        pairs = list(largest.items())[:count]
        found.append(tuple(Neighbor(example, label, cosine) for example, cosine in pairs))
    return found
