r"""Laplace approximation of the last layer, with a Kronecker-factored Hessian.

.. math:: H = n\,A \otimes B + \delta I, \quad A = \tfrac1n \sum_i \phi_i \phi_i^\top, \quad
          B = \tfrac1n \sum_i \mathrm{diag}(p_i) - p_i p_i^\top

:math:`\phi`: penultimate features and a 1 for the bias. The logits of an input then have the
covariance :math:`V_\phi = (\phi \otimes I)^\top H^{-1} (\phi \otimes I)`, and

.. math:: p \approx \mathrm{softmax}\Big( l / \sqrt{1 + \tfrac\pi8 \mathrm{diag} V_\phi} \Big)

(Daxberger et al., 2021). In the eigenvectors of A and B everything is diagonal, so that this takes
a few lines; laplace-torch computes the same with several dependencies.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from qipf.bench.methods.feature_scores import last_layer
from qipf.bench.methods.protocol import Batch, CleanData, Method, to_double


@dataclass
class Laplace(Method):
    """Entropy of the predictive probabilities of the last layer's posterior.

    The prior precision maximises the marginal likelihood, over powers of ten and their roots.
    """

    name = "laplace_ll"
    _inputs: Tensor | None = field(default=None, init=False, repr=False)  # (d + 1, d + 1)
    _outputs: Tensor | None = field(default=None, init=False, repr=False)  # (C, C)
    _precision: Tensor | None = field(default=None, init=False, repr=False)  # (d + 1, C)
    prior_: float | None = field(default=None, init=False, repr=False)

    def fit(self, clean: CleanData) -> "Laplace":
        """The two factors, and the prior."""
        features, n = _with_one(clean.features), len(clean.features)
        p = torch.softmax(to_double(clean.logits), dim=1)
        a, self._inputs = torch.linalg.eigh(features.T @ features / n)
        b, self._outputs = torch.linalg.eigh(torch.diag(p.mean(dim=0)) - p.T @ p / n)
        curvature = n * a.clamp(min=0)[:, None] * b.clamp(min=0)  # (d + 1, C)
        size = sum(float(part.square().sum()) for part in last_layer(clean, self.name))

        def evidence(prior: float) -> float:
            shrunk = (curvature / prior).log1p().sum()  # log det H - log det of the prior
            return -(prior * size + float(shrunk)) / 2

        self.prior_ = max((10 ** (i / 2) for i in range(-8, 13)), key=evidence)
        self._precision = curvature + self.prior_
        return self

    def chosen(self) -> dict[str, float]:
        """The prior precision."""
        return {"prior_precision": self._learned(self.prior_)}

    def score(self, batch: Batch) -> Tensor:  # (n,)
        """Between 0 and log(classes)."""
        log_p = torch.log_softmax(self._scaled(batch), dim=1)
        return -(log_p.exp() * log_p).sum(dim=1)

    def _scaled(self, batch: Batch) -> Tensor:  # (n, C)
        """Logits, divided by what their variance demands."""
        along = (_with_one(batch.features) @ self._learned(self._inputs)).square()
        variances = along @ (1 / self._learned(self._precision))  # (n, C), in B's directions
        variance = variances @ self._learned(self._outputs).square().T  # (n, C), of each logit
        return to_double(batch.logits) / (1 + math.pi / 8 * variance).sqrt()


def _with_one(features: Tensor) -> Tensor:  # (n, d + 1)
    return functional.pad(to_double(features), (0, 1), value=1.0)
