"""The fields of this library as methods: of the logits, and of all layers."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from qipf.bench.methods.network import ROWS, unit_range
from qipf.bench.methods.protocol import Batch, CleanData, Method, to_double
from qipf.field.estimator import QIPF
from qipf.layered.base import MOST_EXAMPLES
from qipf.layered.model import LayeredQIPF

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass
class Field(Method):
    """`qipf.QIPF` over the training logits as in the paper: 6000 random centres, exact modes.

    The paper does not say which constant its kernel has; here it is 1 at its peak.
    The options are those of `QIPF`; the subsample of the centres follows the clean data's seed.
    """

    orders: tuple[int, ...] = (1, 2, 3, 4)
    bandwidth: float | str = "cv"
    max_centers: int = 6000
    reduction: str = "random"
    softening: float = 0.0
    engine: str = "auto"
    normalization: str = "peak"
    name = "qipf"
    field_: QIPF | None = field(default=None, init=False, repr=False)

    def fit(self, clean: CleanData) -> "Field":
        """Build the field, choosing its bandwidth on clean data."""
        self.field_ = QIPF(
            orders=self.orders,
            bandwidth=self.bandwidth,
            max_centers=self.max_centers,
            reduction=self.reduction,
            softening=self.softening,
            engine=self.engine,
            normalization=self.normalization,
            fallback=False,
            random_state=clean.seed,
        ).fit(clean.logits, clean.labels)
        return self

    def score(self, batch: Batch) -> Tensor:  # (n,)
        """The mean of the modes at each prediction's logits."""
        return to_double(self._learned(self.field_).uncertainty(batch.logits))

    def chosen(self) -> dict[str, Any]:
        """Bandwidth and number of centres."""
        return _facts(self._learned(self.field_))


@dataclass
class NormalizedField(Field):
    """The same with a kernel that integrates to one, so that the field is a density."""

    normalization: str = "density"
    name = "qipf_normalized"


@dataclass
class StandardizedField(Field):
    """The same with the standard normal density of the distance in bandwidths as its kernel."""

    normalization: str = "standard"
    name = "qipf_standardized"


@dataclass
class FieldPotential(Field):
    """The potential of the field alone; it is the same under either normalization."""

    orders: tuple[int, ...] = (1,)
    name = "qipf_potential"

    def score(self, batch: Batch) -> Tensor:  # (n,)
        """The potential at each prediction's logits."""
        return to_double(self._learned(self.field_).potential(batch.logits))


@dataclass
class FieldDensity(Field):
    """Minus the logarithm of the field; its bandwidth is that of `qipf_potential`."""

    orders: tuple[int, ...] = (1,)
    name = "qipf_density"

    def score(self, batch: Batch) -> Tensor:  # (n,)
        """Minus the log density at each prediction's logits."""
        return -to_double(self._learned(self.field_).log_density(batch.logits))


@dataclass
class DefaultField(Method):
    """`qipf.QIPF` as it comes, without any option."""

    name = "qipf_default"
    field_: QIPF | None = field(default=None, init=False, repr=False)

    def fit(self, clean: CleanData) -> "DefaultField":
        """Build the field; its seed is that of the clean data."""
        self.field_ = QIPF(random_state=clean.seed).fit(clean.logits, clean.labels)
        return self

    def score(self, batch: Batch) -> Tensor:  # (n,)
        """Its uncertainty at each prediction's logits."""
        return to_double(self._learned(self.field_).uncertainty(batch.logits))

    def chosen(self) -> dict[str, Any]:
        """Bandwidth, number of centres, and the options that are the default."""
        field = self._learned(self.field_)
        options = {name: str(value) for name, value in sorted(field.get_params().items())}
        return {**_facts(field), "options": options}


def _facts(field: QIPF) -> dict[str, Any]:
    return {
        "bandwidth": float(field.bandwidth_),
        "bandwidth_factor": float(field.bandwidth_factor_),
        "centers": len(field.centers_),
        "score": field.score_,
    }


@dataclass
class Layers(Method):
    """`qipf.LayeredQIPF` over the network's own layers; the options are its own.

    It reads the layers in a pass of its own, because the shared outputs are those of the last
    layers only; a user of `LayeredQIPF` has the prediction from that same pass.
    """

    max_centers: int = MOST_EXAMPLES
    reduction: str = "distilled"  # not "auto", which has meant something else in older results
    max_dimension: int = 128
    max_tuning: int = 1000
    name = "qipf_plus"
    model_: LayeredQIPF | None = field(default=None, init=False, repr=False)

    def fit(self, clean: CleanData) -> "Self":
        """Fit the fields and their weights on clean training data and perturbed copies of it."""
        options: dict[str, Any] = {
            "max_centers": self.max_centers,
            "reduction": self.reduction,
            "max_dimension": self.max_dimension,
            "max_tuning": self.max_tuning,
        }

        def fitted() -> LayeredQIPF:
            model = LayeredQIPF(clean.network, random_state=clean.seed, **options)
            return model.fit(clean.batches())

        self.model_ = clean.memo(("layers", *options.values()), fitted)
        return self

    def chosen(self) -> dict[str, Any]:
        """Which layers it kept, their weights, widths and centres."""
        model = self._learned(self.model_)
        assert model.weights_ is not None  # it is fitted
        softmax, *weights = model.weights_.tolist()
        return {
            "softmax_weight": softmax,
            "layers": {
                str(site): {
                    "weight": w,
                    "bandwidth": field.bandwidth,
                    "centers": len(field.embeddings),
                }
                for site, field, w in zip(model.layers_, model.fields_, weights, strict=True)
            },
        }

    def score(self, batch: Batch) -> Tensor:  # (n,)
        """Log-odds of an error, by the network and its layers."""
        return self._scores(batch).uncertainty

    def facts(self, batch: Batch, labels: Tensor) -> dict[str, float]:
        """The accuracy that the probabilities of error promise, and that of the mixture."""
        scores = self._scores(batch)
        return {
            "estimated_accuracy": float(1 - scores.p_error.mean()),
            "mixture_accuracy": float((scores.mixture == labels).double().mean()),
        }

    def _scores(self, batch: Batch) -> "LayersScores":
        model = self._learned(self.model_)

        def computed() -> LayersScores:
            found = [model(unit_range(part)) for part in batch.images.split(ROWS)]
            mixture = torch.cat([part.probabilities.argmax(1) for part in found])
            names = LayersScores._fields[:3]
            scores = (torch.cat([getattr(part, name) for part in found]) for name in names)
            uncertainty, p_error, novelty = map(to_double, scores)
            return LayersScores(uncertainty, p_error, novelty, mixture)

        return batch.memo(("layers", id(model)), computed)


class LayersScores(NamedTuple):
    """Scores of a `LayeredQIPF` for a batch."""

    uncertainty: Tensor  # (n,)
    p_error: Tensor  # (n,)
    novelty: Tensor  # (n,)
    mixture: Tensor  # (n,) the mixture's classes


@dataclass
class LayersNovelty(Layers):
    """Novelty by the same `qipf.LayeredQIPF`: how unlike the training data an input is."""

    name = "qipf_plus_novelty"

    def score(self, batch: Batch) -> Tensor:  # (n,)
        """Log-odds of a perturbed input."""
        return self._scores(batch).novelty

    def facts(self, batch: Batch, labels: Tensor) -> dict[str, float]:
        """Those of qipf_plus are not repeated."""
        return {}
