"""How far to trust each prediction of a trained neural network, in one forward pass."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from qipf._version import __version__
from qipf.errors import QIPFError, QIPFFileError, QIPFInputError, QIPFWarning

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
    "__version__",
    "accept_rule",
    "estimate_accuracy",
    "export_field_onnx",
    "load",
    "risk_coverage",
    "save",
    "wrap",
]

if TYPE_CHECKING:
    from qipf.calibration.accept_rule import accept_rule
    from qipf.calibration.accuracy import AccuracyEstimate, AccuracyEstimator, estimate_accuracy
    from qipf.calibration.risk_coverage import RiskCoverage, risk_coverage
    from qipf.calibration.rule import AcceptRule
    from qipf.export import export_field_onnx
    from qipf.field.estimator import QIPF
    from qipf.layered import Explanation, LayeredPrediction, LayeredQIPF
    from qipf.monitor.monitor import ShiftMonitor, Verdict
    from qipf.network.wrapped import Prediction, WrappedModel, wrap
    from qipf.storage.save_load import load, save
    from qipf.validation.not_fitted import QIPFNotFittedError
else:
    # torch and scikit-learn take seconds to import, so what needs them is imported at its first
    # use (PEP 562): `qipf --help` and usage errors answer at once
    _HOMES = {
        "AcceptRule": "qipf.calibration.rule",
        "QIPF": "qipf.field.estimator",
        "AccuracyEstimate": "qipf.calibration.accuracy",
        "AccuracyEstimator": "qipf.calibration.accuracy",
        "Explanation": "qipf.layered",
        "LayeredPrediction": "qipf.layered",
        "LayeredQIPF": "qipf.layered",
        "Prediction": "qipf.network.wrapped",
        "QIPFNotFittedError": "qipf.validation.not_fitted",
        "RiskCoverage": "qipf.calibration.risk_coverage",
        "ShiftMonitor": "qipf.monitor.monitor",
        "Verdict": "qipf.monitor.monitor",
        "WrappedModel": "qipf.network.wrapped",
        "estimate_accuracy": "qipf.calibration.accuracy",
        "accept_rule": "qipf.calibration.accept_rule",
        "export_field_onnx": "qipf.export",
        "load": "qipf.storage.save_load",
        "risk_coverage": "qipf.calibration.risk_coverage",
        "save": "qipf.storage.save_load",
        "wrap": "qipf.network.wrapped",
    }

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = getattr(import_module(_HOMES[name]), name)
        return globals()[name]

    def __dir__() -> list[str]:
        return sorted({*globals(), *_HOMES})
