"""Every way to score a prediction, behind one protocol.

>>> create("softmax").forward_passes, create("mc_dropout", passes=20).forward_passes
(1, 20)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from qipf.bench.methods.dropout import MCDropout, MCDropoutLastLayer
from qipf.bench.methods.ensemble import Ensemble
from qipf.bench.methods.field import Field
from qipf.bench.methods.knn import KNN
from qipf.bench.methods.layers import Layers
from qipf.bench.methods.logit_scores import Energy, Entropy, MaxLogit, Softmax
from qipf.bench.methods.mahalanobis import Mahalanobis
from qipf.bench.methods.network import LayeredNetwork, Outputs, predict
from qipf.bench.methods.protocol import Batch, CleanData, Method, Trainer
from qipf.bench.methods.sampling import PredictiveEntropy, Sampler, Spread
from qipf.bench.methods.svi import SVI, SVILastLayer
from qipf.errors import unknown_name

#: Methods that score a prediction from one pass.
ONE_PASS: dict[str, Callable[..., Method]] = {
    "softmax": Softmax,
    "entropy": Entropy,
    "max_logit": MaxLogit,
    "energy": Energy,
    "knn": KNN,
    "mahalanobis": Mahalanobis,
    "qipf": Field,
    "qipf_plus": Layers,
}

#: Methods that draw several predictions; each is scored by spread and by predictive entropy.
SAMPLERS: dict[str, Callable[..., Sampler]] = {
    "mc_dropout": MCDropout,
    "mc_dropout_ll": MCDropoutLastLayer,
    "svi": SVI,
    "svi_ll": SVILastLayer,
    "ensemble": Ensemble,
}

#: All names that `create` knows.
METHODS: tuple[str, ...] = (*ONE_PASS, *SAMPLERS, *(f"{name}_entropy" for name in SAMPLERS))


def create(name: str, **options: Any) -> Method:
    """A method by its name, not yet fitted; its options are those of its class.

    >>> create("energy", temperature=2.0)
    Energy(temperature=2.0)
    """
    if name not in METHODS:
        raise unknown_name("method", name, METHODS)
    if name in ONE_PASS:
        return ONE_PASS[name](**_checked(name, ONE_PASS[name], options))
    scored_by = Spread if name in SAMPLERS else PredictiveEntropy
    base = name.removesuffix(scored_by.suffix)
    return scored_by(base, SAMPLERS[base](**_checked(name, SAMPLERS[base], options)))


def _checked(name: str, make: Callable[..., object], options: dict[str, Any]) -> dict[str, Any]:
    known = inspect.signature(make).parameters
    for option in options:
        if option not in known:
            raise unknown_name(f"option of {name}", option, known)
    return options


__all__ = [
    "METHODS",
    "ONE_PASS",
    "SAMPLERS",
    "Batch",
    "CleanData",
    "LayeredNetwork",
    "Method",
    "Outputs",
    "Trainer",
    "create",
    "predict",
]
