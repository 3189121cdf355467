"""What all models around a network share: calls, calibration by a loader, export."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from qipf.calibration.mixin import CalibrationMixin
from qipf.calibration.one_per_input import one_per_input
from qipf.calibration.outcomes import Outcomes
from qipf.calibration.prediction import Prediction
from qipf.calibration.rule import AcceptRule
from qipf.calibration.snapshots import on_snapshot
from qipf.errors import QIPFInputError
from qipf.export.onnx import Expected, OnnxFile, checked_path, expected, write_onnx
from qipf.export.program import (
    Example,
    checked_example,
    shortened,
    traced,
    varying_tokens,
    with_tokens,
)
from qipf.network.batches import READ_ONCE, arguments, batches, few_rows, refuse_labels
from qipf.network.forward import (
    Parts,
    device_of,
    evaluating,
    fingerprint,
    parts_of,
    unchanged,
    uncompiled,
)
from qipf.network.tasks import Task
from qipf.validation.arrays import blank, refuse_missing
from qipf.validation.labels import class_logits
from qipf.validation.not_fitted import QIPFNotFittedError

if TYPE_CHECKING:
    from typing_extensions import Self


T = TypeVar("T")


class Scores(NamedTuple):
    """Output of the network for a batch, and the uncertainty of its predictions."""

    output: Tensor  # (n, classes), or as `qipf.network.tasks` says
    uncertainty: Tensor  # (n,), or the shape of the task's predictions
    novelty: Tensor  # the same shape
    probabilities: Tensor | None = None  # (n, classes)
    p_error: Tensor | None = None  # (n,)
    missing: Tensor | None = None  # (n,) predictions that have no scores, by `nan_policy`
    checksum: Tensor | None = None  # () of a replayed call: finite only if all numbers are


def _is_finite(replayed: Scores) -> bool:
    return replayed.checksum is not None and math.isfinite(float(replayed.checksum))


class NetworkModel(CalibrationMixin, ABC):
    """A trained network and a score for its predictions.

    The network runs in evaluation mode and is left as it was: mode, gradients and hooks. For a
    compiled network (`torch.compile`), the original module is run. Threads that run one network at
    the same time wait for each other.

    A model defines `fit`, `_scores`, `_graph`, `facts`, `state` and `from_state`. `fit` ends
    with `_set_fitted`.
    """

    net: nn.Module

    def __init__(self, net: nn.Module) -> None:
        if net is not None and not isinstance(net, nn.Module):  # None: a file is only described
            kind = f"the class {net.__name__}" if isinstance(net, type) else type(net).__name__
            raise QIPFInputError(f"net must be a torch.nn.Module, got {kind}.")
        self.net = net if net is None else uncompiled(net)
        self.fitted_with: str | None = None  # fingerprint of the network's weights at `fit`
        self._versions: tuple[tuple[int, int], ...] | None = None  # when that was last compared
        self._example: Example | None = None  # inputs that `fit` has seen, for export

    @abstractmethod
    def fit(self, loader: Iterable[Any]) -> "Self":
        """Fit to the network's training data."""

    @abstractmethod
    def _scores(self, example: Example) -> Scores:
        """Run the network, which is in evaluation mode, and score its predictions."""

    @abstractmethod
    def _task_of(self, output: Tensor) -> Task:
        """How predictions lie in the network's output."""

    @abstractmethod
    def _graph(
        self, example: Example, rule: AcceptRule | None, max_centers: int | None
    ) -> tuple[nn.Module, dict[str, Any]]:
        """The model as a module of plain tensor operations, and what a file says about it."""

    @on_snapshot
    def __call__(self, *inputs: Any, **options: Any) -> Prediction:
        """Run the network and score each prediction.

        Arguments are the network's inputs, or one batch: a tuple of several inputs, a dict of
        keyword inputs or a `transformers.BatchEncoding`, in which labels are left out.
        """
        return self._made_of_scores(self._predicted, inputs, options)

    def _predicted(self, found: Scores) -> Prediction:
        task = self._task_of(found.output)
        predicted = class_logits(task.rows(found.output)).argmax(1)
        return self._prediction(
            task.logits(found.output),
            found.uncertainty,
            found.novelty,
            found.probabilities,
            task.shaped(predicted, found.output),
            found.p_error,
            found.missing,
        )

    @on_snapshot
    def uncertainty(self, *inputs: Any, **options: Any) -> Tensor:  # (n,)
        """Uncertainty of each prediction; higher is less trustworthy."""
        return self._made_of_scores(
            lambda found: blank(found.uncertainty, found.missing), inputs, options
        )

    @on_snapshot
    def novelty(self, *inputs: Any, **options: Any) -> Tensor:  # (n,)
        """Novelty of each input; higher is less like the training data."""
        return self._made_of_scores(
            lambda found: blank(found.novelty, found.missing), inputs, options
        )

    @on_snapshot
    def both_scores(self, *inputs: Any, **options: Any) -> tuple[Tensor, Tensor]:  # (n,), (n,)
        """Uncertainty and novelty of each prediction, from one pass."""
        return self._made_of_scores(
            lambda found: (
                blank(found.uncertainty, found.missing),
                blank(found.novelty, found.missing),
            ),
            inputs,
            options,
        )

    @on_snapshot
    def p_values(self, *inputs: Any, **options: Any) -> Tensor:  # (n,)
        """Conformal p-value of each prediction; small is unusual.

        For a prediction like those of the calibration set, P(p ≤ t) ≤ t for every t; see
        `qipf.Calibration`.
        """
        return self._made_of_scores(
            lambda found: blank(self._p_values(found.uncertainty), found.missing), inputs, options
        )

    @on_snapshot
    def novelty_p_values(self, *inputs: Any, **options: Any) -> Tensor:  # (n,)
        """Conformal p-value of each input's novelty; small is unlike the held-out data."""
        return self._made_of_scores(
            lambda found: blank(self._p_values(found.novelty, "novelty"), found.missing),
            inputs,
            options,
        )

    @on_snapshot
    def accepts(self, *inputs: Any, **options: Any) -> Tensor:  # (n,)
        """True where the accept rule accepts the prediction, false where it abstains."""
        return self._made_of_scores(
            lambda found: blank(self._accepted(found.uncertainty, found.novelty), found.missing),
            inputs,
            options,
        )

    def __repr__(self) -> str:
        about = [type(self.net).__name__]
        try:
            self._require_fitted()
        except QIPFNotFittedError:
            about.append("not fitted")
        return f"{type(self).__name__}({', '.join([*about, *self._about()])})"

    def _p_values(self, values: Any, score: str = "uncertainty") -> Any:
        return super()._p_values(values.flatten(), score).reshape(values.shape)

    def _accepted(self, uncertainty: Any, novelty: Any) -> Any:
        accepted = super()._accepted(uncertainty.flatten(), novelty.flatten())
        return accepted.reshape(uncertainty.shape)

    def _arguments(self, inputs: tuple[Any, ...], options: dict[str, Any]) -> Example:
        """The network's inputs on its device; raises if its weights have changed since `fit`."""
        self._require_fitted()
        self._require_unchanged(parts_of(self.net))
        return self._placed(arguments(self.net, inputs, options))

    def _require_unchanged(self, parts: Parts) -> None:
        now = parts.versions
        if self.fitted_with is not None and now != self._versions:
            unchanged(self.net, self.fitted_with)
            self._versions = now

    def _made_of_scores(
        self, make: Callable[[Scores], T], inputs: tuple[Any, ...], options: dict[str, Any]
    ) -> T:
        """What `make` makes of the scores of a call; raises if the weights have changed.

        Without p-values and a rule, which wait for the scores, a replayed call is synchronised
        after `make`.
        """
        self._require_fitted()
        parts = parts_of(self.net)
        example = self._placed(arguments(self.net, inputs, options))
        if self.calibration_ is not None or self.rule_ is not None:
            return make(self._found(example, parts))
        replayed = self._replayed(example)
        if replayed is not None:
            made = make(replayed)
            if _is_finite(replayed):
                return made
        self._require_unchanged(parts)
        return make(self._scored(example, parts))

    def _found(self, example: Example, parts: Parts) -> Scores:
        """The scores by a CUDA graph where there is one and all numbers are finite, or without."""
        replayed = self._replayed(example)
        if replayed is not None and _is_finite(replayed):
            return replayed
        self._require_unchanged(parts)
        return self._scored(example, parts)

    def _replayed(self, example: Example) -> Scores | None:
        """The scores by a CUDA graph of network and model; None where there is none."""
        return None

    def _scored(self, example: Example, parts: Parts | None = None) -> Scores:
        with evaluating(self.net, parts):
            return self._scores(example)

    def calibrate(self, loader: Iterable[Any], labels: None = None) -> "Self":
        """Keep the scores of held-out data, for p-values, accept rules and monitors.

        Batches as in `fit`, with labels for `accept_rule` and accuracy estimates. The data must
        not have been used to train the network or to fit the model. Of an input with several
        predictions (pixels, labels) one is drawn at random, because predictions of one input
        depend on each other.
        """
        refuse_labels(labels, "calibrate")
        self._set_calibration(self._outcomes(loader))
        return self

    def _outcomes_of(self, data: Any) -> Outcomes:
        return self._outcomes(data, "report")

    def _outcomes(self, loader: Iterable[Any], purpose: str = "calibrate") -> Outcomes:
        self._require_fitted()
        unchanged(self.net, self.fitted_with)
        logits, scores, novelties, truth = [], [], [], []
        seen = 0
        with torch.no_grad():
            for batch in batches(loader, self.net, purpose, "reading predictions"):
                found = self._found(self._placed(batch.inputs), parts_of(self.net))
                refuse_missing(found.missing, f"the network's output for batch {batch.number}")
                output, uncertainty = found.output, found.uncertainty
                task = self._task_of(output)
                rows, labels = class_logits(task.rows(output)), None
                if batch.labels is not None:
                    labels = task.labels(batch.labels, output, f"labels of batch {batch.number}")
                index: Any = slice(None)
                if task.dense:
                    known = None if labels is None else labels != task.ignore_index
                    index = one_per_input(uncertainty.shape, seen, known).to(rows.device)
                seen += len(uncertainty)
                logits.append(rows[index].cpu())
                scores.append(uncertainty.flatten()[index].cpu())
                novelties.append(found.novelty.flatten()[index].cpu())
                if labels is not None:
                    truth.append(labels[index].cpu())
        if not scores or not sum(map(len, scores)):
            raise QIPFInputError(
                f"The loader is empty: {purpose} needs at least one prediction. {READ_ONCE}"
            )
        outputs, labels = torch.cat(logits), torch.cat(truth) if truth else None
        wrong = None if labels is None else outputs.argmax(1) != labels
        return Outcomes(outputs, torch.cat(scores), torch.cat(novelties), wrong, labels)

    def export_onnx(
        self,
        path: Path | str,
        example: Any = None,
        *,
        rule: AcceptRule | None = None,
        max_centers: int | None = None,
        check: bool = True,
    ) -> OnnxFile:
        """Write the network and its uncertainty as one ONNX file, for a batch of any length.

        Tokens, that is inputs of integers (n, tokens), may be of any number too, unless the
        network takes only one.

        Parameters
        ----------
        path : the file, ``.onnx``; written atomically, after the check.
        example : a batch of the network's inputs: a tensor, a tuple of several, or a dict of
            keyword inputs. By default a few inputs that `fit` has seen.
        rule : its threshold adds the output ``accepted``; by default the model's own, if any.
        max_centers : condense the field to so many weighted centres, for a smaller, faster file;
            not for `LayeredQIPF`, whose own `max_centers` limits them.
        check : run the file in ONNX Runtime, if installed, and compare with PyTorch.

        The outputs are ``logits``, ``uncertainty`` and more; see docs/export.md.
        """
        path = checked_path(path)
        program, few, metadata = self._traced(example, rule, max_centers)
        metadata["fingerprint"] = unchanged(self.net, self.fitted_with)
        cases = (few, shortened(few, varying_tokens(program, few))) if check else ()
        wanted = [(case.tensors, self._expected(case, max_centers)) for case in cases if case]
        return write_onnx(program, few.tensors, metadata, path, wanted)

    def export(
        self, example: Any = None, *, rule: AcceptRule | None = None, max_centers: int | None = None
    ) -> ExportedProgram:
        """The same graph as a `torch.export` program; ``program.module()(inputs)`` gives a dict.

        Parameters as in `export_onnx`.
        """
        return self._traced(example, rule, max_centers)[0]

    def _traced(
        self, example: Any, rule: AcceptRule | None, max_centers: int | None
    ) -> tuple[ExportedProgram, Example, dict[str, Any]]:
        self._require_fitted()
        if example is None and self._example is None:
            raise QIPFInputError(
                "This model has seen no inputs: it was loaded, or its field was fitted elsewhere. "
                "Pass example=<a batch of the network's inputs>."
            )
        given = self._arguments((self._example if example is None else example,), {})
        few = checked_example(given)
        tokens = with_tokens(few)
        shorter = shortened(few, tokens)
        with torch.no_grad():
            predictions = self._scored(few).uncertainty
            try:
                if shorter is not None:
                    self._scored(shorter)
            except Exception:  # of the network's own too: columns of categories, not tokens
                tokens = []
        if predictions.ndim > 1:  # a graph needs memory for all predictions times the centres
            few = few.take(slice(2))
        graph, metadata = self._graph(few, rule, max_centers)
        tensors = few.tensors.values()
        with evaluating(graph), evaluating(self.net):
            return traced(graph, tensors, tokens), few, metadata

    def _expected(self, few: Example, max_centers: int | None) -> Expected:
        with torch.no_grad():
            found = self._scored(few)
        return expected(found.uncertainty, found.novelty, found.output)

    def _placed(self, example: Example) -> Example:
        """The example with all tensors on the network's device."""
        return example.on(device_of(self.net))

    def _set_fitted(self, example: Example) -> None:
        self.fitted_with, self._versions = fingerprint(self.net), parts_of(self.net).versions
        self._example = few_rows(example)

    def _require_module(self) -> None:
        if not isinstance(self.net, nn.Module):
            raise QIPFInputError(f"net must be a torch.nn.Module, got {type(self.net).__name__}.")
        if any(part.is_meta for part in parts_of(self.net).tensors):
            raise QIPFInputError(
                "net has weights without data, on the device meta. Load its weights first."
            )
