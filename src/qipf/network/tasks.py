"""Kinds of classification: how the output of a network becomes rows of logits, one a prediction.

================  ==================  ==============  ================================
task              output              predictions     row of the field
================  ==================  ==============  ================================
``multiclass``    (n, classes)        (n,)            the logits of an input
``binary``        (n, 1) or (n,)      (n,)            one logit, of class 1 against 0
``multilabel``    (n, labels)         (n, labels)     one logit of an input and a label
``segmentation``  (n, classes, H, W)  (n, H, W)       the logits of a pixel
================  ==================  ==============  ================================

A row of one logit z has the class logits [0, z]; class 1 is predicted where z > 0.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qipf.errors import QIPFInputError, unknown_name
from qipf.validation.labels import REGRESSION, checked_labels, class_logits

#: Known tasks.
TASKS = ("multiclass", "binary", "multilabel", "segmentation")

#: Tasks with several predictions for an input.
DENSE = ("multilabel", "segmentation")

#: Label of a prediction whose class is unknown, as in `torch.nn.CrossEntropyLoss`.
IGNORED = -100


@dataclass(frozen=True)
class Task:
    """How predictions lie in the output of a network."""

    name: str
    ignore_index: int = IGNORED

    @property
    def dense(self) -> bool:
        """Whether there are several predictions for an input."""
        return self.name in DENSE

    def shape(self, output: Tensor) -> tuple[int, ...]:
        """Shape of the predictions; raises for an output of another task."""
        sizes, axes = tuple(output.shape), output.ndim
        one = axes == 1 or (axes == 2 and sizes[1] == 1)
        fits = {
            "multiclass": axes == 2 and not one,
            "binary": one,
            "multilabel": axes == 2,
            "segmentation": axes >= 4,
        }
        if not fits[self.name]:
            raise QIPFInputError(
                f"The network's logits have shape {sizes}, which does not fit the task "
                f"{self.name!r}. Needed: (n, classes) for multiclass, (n, 1) or (n,) for binary, "
                "(n, labels) for multilabel, (n, classes, height, width) for segmentation."
            )
        return sizes if self.name == "multilabel" else sizes[:1] + sizes[2:]

    def rows(self, output: Tensor) -> Tensor:  # (r, classes) or (r, 1)
        """The logits of each prediction, in the order of the flattened predictions."""
        self.shape(output)
        if self.name == "multiclass":
            return output
        if self.name == "segmentation":
            return output.movedim(1, -1).reshape(-1, output.shape[1])
        return output.reshape(-1, 1)

    def logits(self, output: Tensor) -> Tensor:
        """The logits to show: those of both classes for a binary network, else the output."""
        return class_logits(self.rows(output)) if self.name == "binary" else output

    def shaped(self, values: Tensor, output: Tensor) -> Tensor:  # (r, ...) -> (*shape, ...)
        """Values of the rows in the shape of the predictions."""
        return values.reshape(*self.shape(output), *values.shape[1:]) if self.dense else values

    def labels(self, labels: Any, output: Tensor, name: str) -> Tensor:  # (r,)
        """Checked class of each row; `ignore_index` where it is unknown."""
        shape, rows = self.shape(output), self.rows(output)
        classes = max(2, rows.shape[1])
        values = labels if isinstance(labels, Tensor) else np.asarray(labels)
        if values.ndim == len(shape) + 1 and values.shape[1] == 1:  # (n, 1) or (n, 1, H, W)
            values = values[:, 0]
        if not self.dense:
            return checked_labels(values, len(rows), classes, name).to(rows.device)
        if tuple(values.shape) != shape:
            raise QIPFInputError(
                f"{name} must have shape {shape}, one class per prediction of the task "
                f"{self.name!r}, got {tuple(values.shape)}."
            )
        flat = checked_labels(values.reshape(-1), len(rows), None, name).to(rows.device)
        known = flat[flat != self.ignore_index]
        checked_labels(known, len(known), classes, f"{name}, {self.ignore_index} left out,")
        return flat


def task_of(task: Any, output: Tensor, labels: Any, ignore_index: int = IGNORED) -> Task:
    """The task that a user names, or for ``"auto"`` the one that output and labels fit.

    >>> task_of("auto", torch.zeros(5, 1), None).name
    'binary'
    """
    check_task(task)
    if task != "auto":
        return Task(task, ignore_index)
    shape = () if labels is None else tuple(np.shape(labels))
    if output.ndim == 1 or (output.ndim == 2 and output.shape[1] == 1):
        if labels is not None and not _zeros_and_ones(labels):
            raise QIPFInputError(
                "The network has one logit per input, and the labels are not 0 and 1. For more "
                f"classes it needs a logit for each. {REGRESSION}"
            )
        return Task("binary", ignore_index)
    if output.ndim >= 4:
        return Task("segmentation", ignore_index)
    if output.ndim == 2 and shape == tuple(output.shape):
        if bool((torch.as_tensor(labels) == 1).sum(1).eq(1).all()):
            raise QIPFInputError(
                f"labels of shape {shape} have a single 1 in each row. Pass their argmax(1) if "
                "they are classes, or task='multilabel' if an input can have several labels."
            )
        return Task("multilabel", ignore_index)
    return Task("multiclass", ignore_index)


def check_task(task: Any) -> None:
    """Raise unless the task is known."""
    if task == "regression":
        raise QIPFInputError(REGRESSION)
    if not isinstance(task, str) or task not in ("auto", *TASKS):
        raise unknown_name("task", task, ("auto", *TASKS))


def _zeros_and_ones(labels: Any) -> bool:
    values = np.asarray(labels.cpu() if isinstance(labels, Tensor) else labels)
    return values.dtype.kind not in "biuf" or bool(np.isin(values, (0, 1)).all())


def single_logits(output: Tensor) -> Tensor:  # (n, classes) or (n, 1) or (n,) -> (n, ≥ 2)
    """The class logits of a network with one prediction per input; raises for others."""
    if output.ndim == 1:
        output = output[:, None]
    if output.ndim != 2:
        raise QIPFInputError(
            f"The network's logits have shape {tuple(output.shape)}; LayeredQIPF needs one "
            "prediction per input, (n, classes), (n, 1) or (n,). For one value a pixel use "
            "qipf.wrap(net, task='segmentation')."
        )
    return class_logits(output)
