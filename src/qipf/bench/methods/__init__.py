"""Every method that scores predictions, behind one interface.

>>> create("softmax").forward_passes, create("mc_dropout", passes=20).forward_passes
(1, 20)
"""

import inspect
from collections.abc import Callable
from typing import Any, cast

from qipf.bench.methods.augmentation import TestTimeAugmentation
from qipf.bench.methods.distances import RMDS, Mahalanobis
from qipf.bench.methods.dropout import MCDropout, MCDropoutLastLayer
from qipf.bench.methods.feature_scores import ASH, FDBD, NCI, SHE, SIRC, ReAct, Scale, ViM
from qipf.bench.methods.fields import (
    DefaultField,
    Field,
    FieldDensity,
    FieldPotential,
    Layers,
    LayersNovelty,
    NormalizedField,
    StandardizedField,
)
from qipf.bench.methods.laplace import Laplace
from qipf.bench.methods.log_odds import LogOdds
from qipf.bench.methods.logit_scores import (
    GEN,
    Doctor,
    Energy,
    Entropy,
    KLMatching,
    MaxLogit,
    Softmax,
)
from qipf.bench.methods.neighbours import KNN, NUQ, NNGuide, TrustScore
from qipf.bench.methods.network import LayeredNetwork, Outputs, predict
from qipf.bench.methods.protocol import Batch, CleanData, Method
from qipf.bench.methods.sampling import (
    Ensemble,
    OwnClassSpread,
    PredictiveEntropy,
    Sampled,
    Sampler,
    Spread,
)
from qipf.bench.methods.svi import SVI, SVILastLayer
from qipf.bench.methods.tuned import MaxLogitPNorm, Stacked, Temperature
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
    "qipf_normalized": NormalizedField,
    "qipf_standardized": StandardizedField,
    "qipf_default": DefaultField,
    "qipf_potential": FieldPotential,
    "qipf_density": FieldDensity,
    "qipf_plus": Layers,
    "qipf_plus_novelty": LayersNovelty,
    "gen": GEN,
    "doctor": Doctor,
    "max_logit_pnorm": MaxLogitPNorm,
    "temperature": Temperature,
    "kl_matching": KLMatching,
    "she": SHE,
    "nci": NCI,
    "fdbd": FDBD,
    "vim": ViM,
    "sirc": SIRC,
    "react": ReAct,
    "ash": ASH,
    "scale": Scale,
    "nnguide": NNGuide,
    "trust_score": TrustScore,
    "nuq": NUQ,
    "rmds": RMDS,
    "laplace_ll": Laplace,
    "stacked": Stacked,
}

#: Methods that draw several predictions.
SAMPLERS: dict[str, Callable[..., Sampler]] = {
    "mc_dropout": MCDropout,
    "mc_dropout_ll": MCDropoutLastLayer,
    "svi": SVI,
    "svi_ll": SVILastLayer,
    "ensemble": Ensemble,
    "tta": TestTimeAugmentation,
}

#: Scores of a sampling method, by what they add to its name.
SAMPLED_SCORES: dict[str, type[Sampled]] = {
    score.suffix: score for score in (Spread, PredictiveEntropy, OwnClassSpread, LogOdds)
}

#: All names that `create` knows.
METHODS: tuple[str, ...] = (
    *ONE_PASS,
    *(name + suffix for suffix in SAMPLED_SCORES for name in SAMPLERS),
)


def create(name: str, **options: Any) -> Method:
    """A method by its name, not yet fitted; its options are those of its class.

    >>> create("energy", temperature=2.0)
    Energy(temperature=2.0)
    """
    if name not in METHODS:
        raise unknown_name("method", name, METHODS)
    base = base_name(name)
    makers: dict[str, Callable[..., Any]] = {**ONE_PASS, **SAMPLERS}
    known = inspect.signature(makers[base]).parameters
    for option in options:
        if option not in known:
            raise unknown_name(f"option of {name}", option, known)
    made: Any = makers[base](**options)
    if name in ONE_PASS:
        return cast(Method, made)
    return SAMPLED_SCORES[name.removeprefix(base)](base, made)


def base_name(method: str) -> str:
    """The method whose options a method has: ``svi`` for ``svi_entropy``."""
    if method in ONE_PASS:
        return method
    suffix = next((s for s in SAMPLED_SCORES if s and method.endswith(s)), "")
    return method.removesuffix(suffix)


__all__ = [
    "METHODS",
    "ONE_PASS",
    "SAMPLERS",
    "Batch",
    "CleanData",
    "LayeredNetwork",
    "Method",
    "Outputs",
    "base_name",
    "create",
    "predict",
]
