"""Scores with parameters fitted on the same perturbed training inputs as `qipf_plus`.

They test whether its lead comes from these inputs: other methods are fitted to the same ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor
from torch.nn import functional

from qipf.bench.methods.logit_scores import Energy, Entropy, MaxLogit
from qipf.bench.methods.neighbours import KNN
from qipf.bench.methods.protocol import Batch, CleanData, Method, to_double
from qipf.errors import QIPFInputError
from qipf.layered.holdout import sample_examples
from qipf.layered.tuning import tuning_sets
from qipf.metrics.error_detection import roc_auc
from qipf.network.batches import batches
from qipf.network.features import LayerSite, run_in_batches
from qipf.network.forward import evaluating

#: Held-out examples, at most: the default of LayeredQIPF.
EXAMPLES = 1000


class TuningData(NamedTuple):
    """Outputs of the network on held-out training inputs and their perturbed copies."""

    batch: Batch
    labels: Tensor  # (n,)

    @property
    def wrong(self) -> Tensor:  # (n,)
        """Where the network errs."""
        return self.batch.predicted != self.labels


def tuning_data(clean: CleanData, method: str) -> TuningData:
    """The inputs that `qipf_plus` with the same seed is tuned on; made once."""
    return clean.memo(("tuning data", EXAMPLES), lambda: _tuning_data(clean, method))


def _tuning_data(clean: CleanData, method: str) -> TuningData:
    net, random = clean.network, np.random.RandomState(clean.seed)
    features = LayerSite("head", "input")
    with evaluating(net), torch.no_grad():
        _, held, classes, _ = sample_examples(
            batches(clean.batches(), net, method, "reading layers"),
            lambda inputs: run_in_batches(net, inputs, ()),
            0,
            EXAMPLES,
            random,
        )
        tuning = tuning_sets(net, held, [features], classes, clean.seed)
    if not tuning.sets:
        raise QIPFInputError(
            f"{method} is tuned on held-out training examples, and {len(clean.labels)} are too few "
            "to hold some out. Give at least 100."
        )
    logits = torch.cat([logits for logits, _ in tuning.sets.values()])
    rows = torch.cat([rows[features] for _, rows in tuning.sets.values()])
    batch = Batch(logits.new_zeros(len(logits), 0), logits, rows)
    return TuningData(batch, tuning.labels.repeat(len(tuning.sets)))


#: Temperatures and exponents that are tried.
TEMPERATURES = tuple(float(t) for t in np.geomspace(0.1, 10, 81))
EXPONENTS = tuple(range(1, 11))


@dataclass
class Temperature(Method):
    r"""One minus the largest class probability at the temperature T (Guo et al., 2017).

    .. math:: 1 - \max_k \mathrm{softmax}(l / T)_k

    T minimises the cross-entropy on the tuning inputs.
    """

    name = "temperature"
    temperature_: float | None = field(default=None, init=False, repr=False)

    def fit(self, clean: CleanData) -> "Temperature":
        """Choose the temperature."""
        batch, labels = tuning_data(clean, self.name)
        logits = to_double(batch.logits)
        self.temperature_ = min(
            TEMPERATURES, key=lambda t: float(functional.cross_entropy(logits / t, labels))
        )
        return self

    def chosen(self) -> dict[str, Any]:
        """The temperature."""
        return {"temperature": self._learned(self.temperature_)}

    def score(self, batch: Batch) -> Tensor:  # (n,)
        """Between 0 and 1 - 1/classes."""
        scaled = to_double(batch.logits) / self._learned(self.temperature_)
        return -torch.expm1(torch.log_softmax(scaled, dim=1).amax(dim=1))


@dataclass
class MaxLogitPNorm(Method):
    r"""Largest centred logit over their p-norm (Cattelan & Silva, 2024), negated.

    .. math:: -\max_k \tilde l_k / \|\tilde l\|_p, \quad \tilde l = l - \mathrm{mean}(l)

    p is the exponent of 1 to 10 that detects errors on the tuning inputs best (ROC-AUC).
    """

    name = "max_logit_pnorm"
    p_: int | None = field(default=None, init=False, repr=False)

    def fit(self, clean: CleanData) -> "MaxLogitPNorm":
        """Choose p."""
        data = tuning_data(clean, self.name)
        wrong = data.wrong.cpu().numpy()

        def detection(p: int) -> float:
            area = roc_auc(_scaled_largest(data.batch.logits, p).cpu().numpy(), wrong)
            return -1.0 if np.isnan(area) else area

        self.p_ = max(EXPONENTS, key=detection)
        return self

    def chosen(self) -> dict[str, Any]:
        """The exponent."""
        return {"p": self._learned(self.p_)}

    def score(self, batch: Batch) -> Tensor:  # (n,)
        """Between -1 and 0."""
        return _scaled_largest(batch.logits, self._learned(self.p_))


def _scaled_largest(logits: Tensor, p: int) -> Tensor:  # (n,)
    centred = to_double(logits)
    centred = centred - centred.mean(dim=1, keepdim=True)
    norm = torch.linalg.vector_norm(centred, p, dim=1).clamp(min=1e-300)
    return -centred.amax(dim=1) / norm


@dataclass
class Stacked(Method):
    """Logistic regression of the errors on the tuning inputs.

    Its four regressors, standardised, are entropy, minus the largest logit, energy and the
    distance to the 50th nearest training feature. The score is its log-odds of an error.
    """

    name = "stacked"
    _parts: tuple[Method, ...] = field(default=(), init=False, repr=False)
    _regression: Any = field(default=None, init=False, repr=False)

    def fit(self, clean: CleanData) -> "Stacked":
        """Fit the regression."""
        data = tuning_data(clean, self.name)
        wrong = data.wrong.cpu().numpy()
        if wrong.all() or not wrong.any():
            raise QIPFInputError(
                "stacked learns to tell errors from correct predictions; on the tuning inputs "
                "all predictions are the same in that. Train the network further, or less."
            )
        self._parts = tuple(part.fit(clean) for part in (Entropy(), MaxLogit(), Energy(), KNN()))
        regression = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        self._regression = regression.fit(_columns(self._parts, data.batch), wrong)
        return self

    def chosen(self) -> dict[str, Any]:
        """The coefficients of the standardised regressors."""
        coefficients = self._learned(self._regression)[-1].coef_[0]
        return {
            part.name: float(weight) for part, weight in zip(self._parts, coefficients, strict=True)
        }

    def score(self, batch: Batch) -> Tensor:  # (n,)
        """Any real number."""
        regression = self._learned(self._regression)
        log_odds = regression.decision_function(_columns(self._parts, batch))
        return torch.from_numpy(log_odds).to(batch.logits.device)


def _columns(parts: Sequence[Method], batch: Batch) -> np.ndarray:  # (n, parts)
    return torch.stack([part.score(batch) for part in parts], dim=1).cpu().numpy()
