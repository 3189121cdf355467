"""Uncertainty of each prediction of a trained neural network, in one forward pass."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from qipf._version import __version__
from qipf.errors import QIPFError, QIPFFileError, QIPFInputError, QIPFScoreWarning, QIPFWarning

if TYPE_CHECKING:
    from qipf.calibration.accept_rule import accept_rule as accept_rule
    from qipf.calibration.accuracy import AccuracyEstimate as AccuracyEstimate
    from qipf.calibration.accuracy import AccuracyEstimator as AccuracyEstimator
    from qipf.calibration.accuracy import estimate_accuracy as estimate_accuracy
    from qipf.calibration.conformal import Calibration as Calibration
    from qipf.calibration.prediction import Prediction as Prediction
    from qipf.calibration.risk_coverage import RiskCoverage as RiskCoverage
    from qipf.calibration.risk_coverage import risk_coverage as risk_coverage
    from qipf.calibration.rule import AcceptRule as AcceptRule
    from qipf.field.coreset import coreset as coreset
    from qipf.field.estimator import QIPF as QIPF
    from qipf.field.kernel import Coreset as Coreset
    from qipf.layered.explanation import Explanation as Explanation
    from qipf.layered.features import FeatureQIPF as FeatureQIPF
    from qipf.layered.model import LayeredQIPF as LayeredQIPF
    from qipf.monitor.monitor import ShiftMonitor as ShiftMonitor
    from qipf.monitor.verdict import Verdict as Verdict
    from qipf.network.wrapped import WrappedModel as WrappedModel
    from qipf.network.wrapped import wrap as wrap
    from qipf.reporting.own.page import report as report
    from qipf.storage.save_load import load as load
    from qipf.storage.save_load import save as save
    from qipf.validation.not_fitted import QIPFNotFittedError as QIPFNotFittedError

#: Modules of the public names that need torch or scikit-learn. Those take seconds to import, so
#: a name is imported at its first use (PEP 562): `qipf --help` answers at once.
_MODULES = {
    "qipf.calibration.accept_rule": ("accept_rule",),
    "qipf.calibration.accuracy": ("AccuracyEstimate", "AccuracyEstimator", "estimate_accuracy"),
    "qipf.calibration.conformal": ("Calibration",),
    "qipf.calibration.prediction": ("Prediction",),
    "qipf.calibration.risk_coverage": ("RiskCoverage", "risk_coverage"),
    "qipf.calibration.rule": ("AcceptRule",),
    "qipf.field.coreset": ("coreset",),
    "qipf.field.estimator": ("QIPF",),
    "qipf.field.kernel": ("Coreset",),
    "qipf.layered.explanation": ("Explanation",),
    "qipf.layered.features": ("FeatureQIPF",),
    "qipf.layered.model": ("LayeredQIPF",),
    "qipf.monitor.monitor": ("ShiftMonitor",),
    "qipf.monitor.verdict": ("Verdict",),
    "qipf.network.wrapped": ("WrappedModel", "wrap"),
    "qipf.reporting.own.page": ("report",),
    "qipf.storage.save_load": ("load", "save"),
    "qipf.validation.not_fitted": ("QIPFNotFittedError",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "QIPFError",
    "QIPFFileError",
    "QIPFInputError",
    "QIPFScoreWarning",
    "QIPFWarning",
    "__version__",
    *_HOMES,
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = getattr(import_module(_HOMES[name]), name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({name for name in globals() if name.startswith("__")} | set(__all__))
