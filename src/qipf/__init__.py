"""How far to trust each prediction of a trained neural network, in one forward pass."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from qipf.errors import QIPFError, QIPFFileError, QIPFInputError, QIPFWarning

__version__ = "0.1.0.dev0"

__all__ = [
    "QIPF",
    "AcceptRule",
    "AccuracyEstimate",
    "AccuracyEstimator",
    "Explanation",
    "LayeredPrediction",
    "LayeredQIPF",
    "Prediction",
    "QIPFError",
    "QIPFFileError",
    "QIPFInputError",
    "QIPFNotFittedError",
    "QIPFWarning",
    "RiskCoverage",
    "ShiftMonitor",
    "Verdict",
    "WrappedModel",
    "accept_rule",
    "estimate_accuracy",
    "export_field_onnx",
    "load",
    "risk_coverage",
    "save",
    "wrap",
]

if TYPE_CHECKING:
    from qipf.accuracy import AccuracyEstimate, AccuracyEstimator, estimate_accuracy
    from qipf.decision import accept_rule
    from qipf.estimator import QIPF
    from qipf.export import export_field_onnx
    from qipf.layered import Explanation, LayeredPrediction, LayeredQIPF
    from qipf.model import Prediction, WrappedModel, wrap
    from qipf.monitor import ShiftMonitor, Verdict
    from qipf.risk import RiskCoverage, risk_coverage
    from qipf.rule import AcceptRule
    from qipf.storage import load, save
    from qipf.unfitted import QIPFNotFittedError
else:
    # torch and scikit-learn take seconds to import, so what needs them is imported at its first
    # use (PEP 562): `qipf --help` and usage errors answer at once
    _HOMES = {
        "AcceptRule": "qipf.rule",
        "QIPF": "qipf.estimator",
        "AccuracyEstimate": "qipf.accuracy",
        "AccuracyEstimator": "qipf.accuracy",
        "Explanation": "qipf.layered",
        "LayeredPrediction": "qipf.layered",
        "LayeredQIPF": "qipf.layered",
        "Prediction": "qipf.model",
        "QIPFNotFittedError": "qipf.unfitted",
        "RiskCoverage": "qipf.risk",
        "ShiftMonitor": "qipf.monitor",
        "Verdict": "qipf.monitor",
        "WrappedModel": "qipf.model",
        "estimate_accuracy": "qipf.accuracy",
        "accept_rule": "qipf.decision",
        "export_field_onnx": "qipf.export",
        "load": "qipf.storage",
        "risk_coverage": "qipf.risk",
        "save": "qipf.storage",
        "wrap": "qipf.model",
    }

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = getattr(import_module(_HOMES[name]), name)
        return globals()[name]

    def __dir__() -> list[str]:
        return sorted({*globals(), *_HOMES})
