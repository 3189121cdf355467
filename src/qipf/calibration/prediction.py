"""Prediction: the results of a model for a batch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from qipf.calibration.conformal import Calibration
from qipf.display import Shown, percent
from qipf.errors import QIPFInputError
from qipf.validation.arrays import as_given
from qipf.validation.scores import checked_scores

#: Rows that `print` shows.
FIRST = 5

#: P-values up to here are counted.
SMALL = 0.05


@dataclass(frozen=True, repr=False)
class Prediction:
    """Predictions on a batch; tensors on the network's device, or arrays if arrays were passed.

    ``print(prediction)`` shows counts, shares and the first rows.
    """

    logits: Any  # (n, classes); [0, z] of a network with one logit z
    predicted: Any  # (n,) class of the largest logit; other shapes for pixels and labels
    uncertainty: Any  # (n,) higher is less trustworthy
    p_value: Any = None  # (n,) conformal p-value of the uncertainty; None before `calibrate`
    accepted: Any = None  # (n,) booleans of the accept rule; None without a rule
    probabilities: Any = None  # (n, classes) of the layers' mixture; None without layers
    p_error: Any = None  # (n,) estimated probability of an error; None if nothing estimates it
    novelty: Any = None  # (n,) higher is less like the training data
    novelty_p_value: Any = None  # (n,) conformal p-value of the novelty
    mixture_class: Any = None  # (n,) most probable class of the layers' mixture, likewise

    def __repr__(self) -> str:
        return self._shown().text()

    def _repr_html_(self) -> str:
        return self._shown().html()

    def _shown(self) -> Shown:
        values = {name: _array(value) for name, value in vars(self).items() if value is not None}
        count, *places = values["predicted"].shape
        inputs = "1 input" if count == 1 else f"{count:,} inputs"
        title = f"Prediction of {inputs}, {values['logits'].shape[1]} classes"
        if places:
            title += f", {' × '.join(map(str, places))} predictions each"
        facts = {}
        for name, describe in _FACTS.items():
            if name in values and values[name].size:
                facts[name] = describe(values[name])
        missing = int(np.isnan(values["uncertainty"]).sum())
        if missing:
            facts["without scores"] = f"{missing:,} (NaN or infinity in the logits)"
        if places:
            return Shown(title, facts)
        columns = {name: values[name][:FIRST] for name in _COLUMNS if name in values}
        rows = [
            [str(row), *(_COLUMNS[name](column[row]) for name, column in columns.items())]
            for row in range(min(count, FIRST))
        ]
        note = f"… and {count - FIRST:,} more" if count > FIRST else ""
        return Shown(title, facts, ["", *columns], rows, note)


def _array(value: Any) -> NDArray:
    """An array of any tensor, also in half precision."""
    found = torch.as_tensor(value).detach().cpu()
    return (found.double() if found.is_floating_point() else found).numpy()


def _spread(values: NDArray) -> str:
    finite = values[np.isfinite(values)]
    if not finite.size:
        return "none"
    low, middle, high = np.quantile(finite, [0.05, 0.5, 0.95])
    if low == high:
        return f"{middle:.3g}"
    return f"median {middle:.3g}, nine of ten from {low:.3g} to {high:.3g}"


def _counted(values: NDArray) -> str:
    return f"{int(values.sum()):,} ({percent(float(values.mean()))})"


def _small(values: NDArray) -> str:
    return f"at most {SMALL:g}: {_counted(values <= SMALL)}"


def _mean(values: NDArray) -> str:
    finite = values[np.isfinite(values)]
    return f"mean {percent(float(finite.mean()))}" if finite.size else "none"


#: What is said of all rows, by field.
_FACTS: dict[str, Callable[[NDArray], str]] = {
    "uncertainty": _spread,
    "p_value": _small,
    "p_error": _mean,
    "novelty": _spread,
    "novelty_p_value": _small,
    "accepted": _counted,
}

#: How the value of a row is written, by field.
_COLUMNS: dict[str, Callable[[Any], str]] = {
    "predicted": str,
    "uncertainty": "{:.3g}".format,
    "p_value": "{:.3f}".format,
    "p_error": "{:.1%}".format,
    "novelty": "{:.3g}".format,
    "novelty_p_value": "{:.3f}".format,
    "accepted": lambda accepted: "yes" if accepted else "no",
}


def require_same_model(prediction: Prediction, calibration: Calibration, whose: str) -> None:
    """Raise if a prediction has p-values of another calibration set than that of `whose` model."""
    if prediction.p_value is None:  # made before `calibrate`
        return
    given = checked_scores(prediction.p_value.reshape(-1), "p_value")
    uncertainty = checked_scores(prediction.uncertainty.reshape(-1), "uncertainty")
    known = ~np.isnan(given)  # those that nan_policy leaves out have none
    if not np.allclose(calibration.p_values(uncertainty)[known], given[known]):
        raise QIPFInputError(
            "This Prediction was made by another model, or with another calibration set, than "
            f"{whose}. Pass a Prediction of {whose} model."
        )


def prediction_as(prediction: Prediction, like: Any) -> Prediction:
    """The prediction as arrays if `like` is an array, else as tensors on the device of `like`."""
    values = {
        name: None if value is None else as_given(value, like)
        for name, value in vars(prediction).items()
    }
    return Prediction(**values)
