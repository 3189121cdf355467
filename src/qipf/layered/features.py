"""FeatureQIPF: fields of the classes over features that were computed elsewhere."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.export import ExportedProgram

from qipf.calibration.outcomes import Outcomes
from qipf.calibration.prediction import Prediction, prediction_as
from qipf.calibration.rule import AcceptRule
from qipf.calibration.snapshots import on_snapshot
from qipf.calibration.training_rows import KEPT_ROWS, TrainingSample
from qipf.errors import QIPFInputError
from qipf.export.onnx import OnnxFile, checked_path, expected, write_onnx
from qipf.export.program import ROWS, traced
from qipf.io.container import Arrays
from qipf.layered.base import MOST_EXAMPLES, LayeredModel
from qipf.layered.explanation import Explanation
from qipf.layered.fitting import fit_layers, fits_centers
from qipf.layered.graph import FeaturesGraph
from qipf.layered.holdout import LABELS, ONE_IN, PLACES, Examples
from qipf.layered.predictions import (
    Features,
    Predictions,
    checked_copies,
    checked_predictions,
    noisy_copies,
)
from qipf.layered.scorer import FieldEvidence
from qipf.layered.state import copy_names, layered_state, restore_layers
from qipf.layered.tuning import COPIED, FEWEST, Tuning
from qipf.validation.arrays import as_given, blank, refuse_missing
from qipf.validation.labels import checked_labels, class_logits
from qipf.validation.not_fitted import QIPFNotFittedError
from qipf.validation.parameters import propagates, require_positive_integer

if TYPE_CHECKING:
    from typing_extensions import Self

#: Most examples whose differences perturb others, where no perturbed copies are given.
PAIRED = 2000


class FeatureQIPF(LayeredModel):
    r"""`LayeredQIPF` for features that were computed elsewhere: any framework, any classifier.

    Takes the outputs of layers, or other embeddings of the inputs such as the leaves of trees,
    beside the logits, as NumPy arrays or anything that converts to them. The score is that of
    `LayeredQIPF`: the log-odds, against the predicted class, of a mixture of the softmax and one
    posterior per layer.

    The mixture is learned from held-out examples and perturbed copies of them. Copies are best made
    by perturbing the inputs (noise, blur, lost values) and running the classifier again. Without
    any, features and logits of the held-out examples are perturbed directly, by differences of
    other examples of one class; `summary` says so.

    Parameters
    ----------
    max_centers, reduction, max_dimension, max_tuning, effort, random_state, nan_policy : as in
        `LayeredQIPF`.

    Attributes
    ----------
    layers_ : the layers that are read; those with little weight are left out.
    fields_, weights_ : as in `LayeredQIPF`; examples are positions in the arrays.
    perturbed_ : names of the perturbed copies that the weights were learned from.
    calibration_, detection_, rule_ : see `calibrate` and `accept_rule`; None before.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(3, size=400)
    >>> features = {"hidden": np.eye(3)[labels] + 0.3 * rng.normal(size=(400, 3))}
    >>> logits = 4 * features["hidden"] + rng.normal(size=(400, 3))
    >>> model = FeatureQIPF().fit(features, logits, labels)
    >>> model.uncertainty({"hidden": features["hidden"][:5]}, logits[:5]).shape
    (5,)
    """

    layers = "auto"  # as in the file of a `LayeredQIPF`
    takes = ("features", "logits", "labels")
    perturbed_: tuple[str, ...]

    def __init__(
        self,
        *,
        max_centers: int = MOST_EXAMPLES,
        reduction: str = "auto",
        max_dimension: int = 128,
        max_tuning: int = 1000,
        effort: str = "full",
        random_state: int = 0,
        nan_policy: str = "raise",
    ) -> None:
        self.max_centers = max_centers
        self.reduction = reduction
        self.max_dimension = max_dimension
        self.max_tuning = max_tuning
        self.effort = effort
        self.random_state = random_state
        self.nan_policy = nan_policy
        self._example: Predictions | None = None

    def fit(
        self,
        features: Features,
        logits: Any,  # (n, classes)
        labels: Any,  # (n,)
        *,
        held_out: tuple[Features, Any, Any] | None = None,
        perturbed: Mapping[str, tuple[Features, Any]] | None = None,
    ) -> "Self":
        """Build the fields of all layers and weight them.

        Parameters
        ----------
        features, logits, labels : of the classifier's training examples.
        held_out : (features, logits, labels) of other examples, to choose bandwidths and weights;
            by default a random fifth of the training examples, at most `max_tuning`.
        perturbed : by name, (features, logits) of perturbed copies: of all held-out examples in the
            same order, or, without `held_out`, of all training examples.
        """
        self._check_sizes()
        whole = checked_predictions(features, logits)
        classes, device = whole.logits.shape[1], whole.logits.device
        truth = checked_labels(labels, len(whole), classes, "labels").to(device)
        if len(whole) < 2:
            raise QIPFInputError(
                f"There are {len(whole)} examples; FeatureQIPF needs at least a few dozen."
            )
        other, other_truth = whole, truth
        if held_out is not None:
            other = checked_predictions(*held_out[:2], like=whole, name="held-out ")
            other_truth = checked_labels(held_out[2], len(other), classes, "held-out labels")
        copies = checked_copies(perturbed or {}, whole, len(other), held_out is not None)
        random = np.random.RandomState(int(self.random_state))
        order, chosen = self._split(len(whole), None if held_out is None else len(other), random)
        order = order[: self._examples()]
        tuning = Tuning({}, other_truth[chosen].to(device))
        seed = int(self.random_state)
        pool = whole[order[:PAIRED]], truth[order[:PAIRED]]
        if len(chosen) >= FEWEST:
            sets = {"clean": other[chosen], **{name: c[chosen] for name, c in copies.items()}}
            if not copies:
                sets |= noisy_copies(sets["clean"], tuning.labels, *pool, seed)
            tuning.sets.update((name, (found.logits, found.rows)) for name, found in sets.items())
        if fits_centers(self, len(order), classes):
            few = order[:COPIED]
            made = {name: copy[few] for name, copy in copies.items() if held_out is None}
            if not copies:
                made = noisy_copies(whole[few], truth[few], *pool, seed + 1)
            if made:
                tuning.copied = few.repeat(len(made))
                tuning.copies = {
                    site: torch.cat([copy.rows[site] for copy in made.values()])
                    for site in whole.rows
                }
        sample: Examples = {PLACES: order, LABELS: truth[order]}
        sample |= {site: rows[order] for site, rows in whole.rows.items()}
        with self._changed() as model:
            model.perturbed_ = tuple(copies)
            model._example = whole[torch.arange(min(ROWS, len(whole)))]  # copies, no views
            fit_layers(model, sample, tuning, tuple(whole.rows), classes, len(whole))
            if held_out is not None:  # training examples and held-out ones at the same rate
                step = len(whole) / len(order)
                also = torch.arange(0, len(other), step, dtype=torch.float64).long()
                seen = torch.cat([whole.logits[order], other.logits[also]]).cpu()
                few = torch.from_numpy(random.permutation(len(seen)))[:KEPT_ROWS]
                total = len(whole) + len(other)
                model._training = TrainingSample(class_logits(seen[few]), total)
        return self

    def _split(
        self, examples: int, others: int | None, random: np.random.RandomState
    ) -> tuple[Tensor, Tensor]:
        """Places of the centres, in random order, and of examples to tune with.

        These are among the `others`; without any, training examples that are no centres.
        """
        order = torch.from_numpy(random.permutation(examples))
        if others is None:
            count = min(self._most_tuning(), examples // ONE_IN)
            return order[count:], order[:count]
        return order, torch.from_numpy(random.permutation(others))[: self._most_tuning()]

    def _require_fitted(self) -> None:
        if "weights_" not in self.__dict__:
            raise QIPFNotFittedError(
                "This FeatureQIPF is not fitted yet. Call fit(features, logits, labels) first."
            )

    @on_snapshot
    def __call__(self, features: Features, logits: Any) -> Prediction:
        """Predicted class, uncertainty and decisions; see `Prediction`."""
        given = self._checked(features, logits)
        found = self._row_scores(given.logits, given.rows)
        prediction = self._prediction(
            blank(given.logits, given.missing),
            found.uncertainty,
            found.novelty,
            found.probabilities,
            p_error=found.p_error,
            missing=given.missing,
        )
        return prediction_as(prediction, logits)

    @on_snapshot
    def uncertainty(self, features: Features, logits: Any) -> Any:  # (n,)
        """Uncertainty of each prediction; higher is less trustworthy."""
        return self.both_scores(features, logits)[0]

    @on_snapshot
    def novelty(self, features: Features, logits: Any) -> Any:  # (n,)
        """Novelty of each input; higher is less like the training data."""
        return self.both_scores(features, logits)[1]

    @on_snapshot
    def both_scores(self, features: Features, logits: Any) -> tuple[Any, Any]:  # (n,), (n,)
        """Uncertainty and novelty of each prediction, from one evaluation of the fields."""
        given = self._checked(features, logits)
        uncertainty, novelty = (blank(score, given.missing) for score in self._both(given))
        return as_given(uncertainty, logits), as_given(novelty, logits)

    @on_snapshot
    def p_values(self, features: Features, logits: Any) -> Any:  # (n,)
        """Conformal p-value of each prediction; small is unusual. See `qipf.Calibration`."""
        return self._result(lambda p: self._p_values(self._both(p)[0]), features, logits)

    @on_snapshot
    def novelty_p_values(self, features: Features, logits: Any) -> Any:  # (n,)
        """Conformal p-value of each input's novelty; small is unlike the held-out data."""
        return self._result(lambda p: self._p_values(self._both(p)[1], "novelty"), features, logits)

    @on_snapshot
    def accepts(self, features: Features, logits: Any) -> Any:  # (n,)
        """True where the accept rule accepts the prediction, false where it abstains."""
        return self._result(lambda p: self._accepted(*self._both(p)), features, logits)

    @on_snapshot
    def log_density(self, features: Features, logits: Any) -> Any:  # (n, layers)
        """Log density of each layer's whole field, log ρ ≤ 0; low for unusual inputs."""
        return self._result(lambda p: self._found(p).densities, features, logits)

    @on_snapshot
    def posteriors(self, features: Features, logits: Any) -> Any:  # (n, 1 + layers, classes)
        """Class probabilities of the softmax, first, and of every layer."""
        return self._result(lambda p: self._found(p).posteriors, features, logits)

    @on_snapshot
    def explain(self, features: Features, logits: Any, nearest: int = 3) -> list[Explanation]:
        """Explain each prediction's uncertainty; see `LayeredQIPF.explain`."""
        require_positive_integer(nearest, "nearest")
        given = self._checked(features, logits)
        refuse_missing(given.missing, "logits or features")
        return self._explained(given.logits, given.rows, self._found(given), int(nearest))

    def calibrate(self, features: Features, logits: Any, labels: Any = None) -> "Self":
        """Keep the scores of held-out data, for p-values, accept rules and monitors.

        With labels for `accept_rule` and accuracy estimates. The data must not have been used to
        train the classifier or to fit the model.
        """
        self._set_calibration(self._outcomes(features, logits, labels))
        return self

    def _outcomes(self, features: Features, logits: Any, labels: Any = None) -> Outcomes:
        given = self._checked(features, logits)
        refuse_missing(given.missing, "logits or features")
        if not len(given):
            raise QIPFInputError("There are no predictions: pass at least one.")
        rows, truth, wrong = given.logits.cpu(), None, None
        if labels is not None:
            truth = checked_labels(labels, len(rows), rows.shape[1], "labels").cpu()
            wrong = rows.argmax(1) != truth
        uncertainty, novelty = self._both(given)
        return Outcomes(rows, uncertainty.cpu(), novelty.cpu(), wrong, truth)

    def _result(
        self, compute: Callable[[Predictions], Tensor], features: Features, logits: Any
    ) -> Any:  # (n, ...)
        """What is computed of the predictions, blank where they are missing, as `logits` is."""
        given = self._checked(features, logits)
        return as_given(blank(compute(given), given.missing), logits)

    def _both(self, given: Predictions) -> tuple[Tensor, Tensor]:  # (n,), (n,)
        found = self._row_scores(given.logits, given.rows)
        return found.uncertainty, found.novelty

    def _found(self, given: Predictions) -> FieldEvidence:
        return self._scorer(given.logits.device).posteriors(given.logits, given.rows)

    def _checked(self, features: Features, logits: Any) -> Predictions:
        self._require_fitted()
        propagate = propagates(self.nan_policy)
        given = checked_predictions(features, logits, wanted=self.layers_, propagate=propagate)
        self._check_widths(given.logits, given.rows)
        return given

    def __repr__(self) -> str:
        about = ["not fitted"]
        if "weights_" in self.__dict__:
            about = [site.layer for site in self.layers_]
        return f"{type(self).__name__}({', '.join([*about, *self._about()])})"

    def export_onnx(
        self,
        path: Path | str,
        example: tuple[Features, Any] | None = None,
        *,
        rule: AcceptRule | None = None,
        check: bool = True,
    ) -> OnnxFile:
        """Write an ONNX file with the input ``logits`` and one input per layer, by its name.

        The outputs are ``uncertainty``, ``p_error``, ``novelty``, ``probabilities`` and, with a
        rule, ``accepted``.

        Parameters
        ----------
        path : the file, ``.onnx``; written atomically, after the check.
        example : (features, logits) of a few predictions; by default some that `fit` has seen.
        rule : its threshold adds the output ``accepted``; by default the model's own, if any.
        check : run the file in ONNX Runtime, if installed, and compare with PyTorch.
        """
        path = checked_path(path)
        few = self._few(example)
        program, metadata = self._traced(few, rule)
        feeds = self._inputs(few)
        cases = [(feeds, expected(*self._both(few), None))] if check else []
        return write_onnx(program, feeds, metadata, path, cases)

    def export(
        self, example: tuple[Features, Any] | None = None, *, rule: AcceptRule | None = None
    ) -> ExportedProgram:
        """The same graph as a `torch.export` program of logits and features, in order of layers."""
        return self._traced(self._few(example), rule)[0]

    def _few(self, example: tuple[Features, Any] | None) -> Predictions:
        self._require_fitted()
        if example is not None:
            few = self._checked(*example)[:ROWS]
        elif self._example is not None:
            few = self._example
        else:
            raise QIPFInputError(
                "This model was loaded and has seen no features. Pass example=(features, logits) "
                "of a few predictions."
            )
        # traced with one row, a graph takes only one
        return few[[0, 0]] if len(few) == 1 else few

    def _inputs(self, few: Predictions) -> dict[str, Tensor]:
        logits = few.logits[:, 1:] if few.one_logit else few.logits  # as they are given
        return {"logits": logits, **{site.layer: few.given[site] for site in self.layers_}}

    def _traced(
        self, few: Predictions, rule: AcceptRule | None
    ) -> tuple[ExportedProgram, dict[str, Any]]:
        metadata = self._graph_metadata(rule, None)
        graph = FeaturesGraph(
            self.layer_fields(),
            self.weights_,
            (self.error_model_, self.lengths_, self.novelty_model_),
            self._limits(rule),
            few.logits.device,
        )
        return traced(graph, self._inputs(few).values()), metadata

    def facts(self) -> dict[str, str]:
        """Lines of the summary, by name."""
        copies = ", ".join(self.perturbed_) or "none given: features and logits were perturbed"
        return {**super().facts(), "kind": "fields of given features", "perturbed": copies}

    def state(self) -> tuple[dict[str, Any], Arrays]:
        """Header and arrays of the model's file."""
        header, arrays = layered_state(self)
        return {"kind": "features", **header, "perturbed": list(self.perturbed_)}, arrays

    @classmethod
    def from_state(cls, header: dict[str, Any], arrays: Arrays, path: str) -> "FeatureQIPF":
        """The model in a file's header and arrays, which are checked; for `qipf.load`."""
        model = cls()
        model.perturbed_ = copy_names(header, path)
        restore_layers(model, header, arrays, path)
        return model
