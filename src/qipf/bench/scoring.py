"""One network of a suite: trained, its methods fitted and scored on corrupted test inputs.

The seconds of a method cover all that it does after the prediction of the deterministic network,
for all test images of a level together. The scores of one sampler share its draws, and each counts
them in full, because either alone would need them. The forward pass of the deterministic network
is recorded apart (``network_seconds``).
"""

import platform
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from qipf._version import __version__
from qipf.bench.corruptions import corrupt
from qipf.bench.datasets import Dataset, TextDataset, load, load_unseen
from qipf.bench.methods import Batch, CleanData, LayeredNetwork, Method
from qipf.bench.methods.network import unit_range
from qipf.bench.methods.sampling import Sampled
from qipf.bench.networks import build
from qipf.bench.results import Record, ScoreStore, Task
from qipf.bench.suites import CLEAN, Suite, effective_options
from qipf.bench.training import Trainer
from qipf.errors import QIPFError, QIPFScoreWarning
from qipf.metrics.error_detection import evaluate

T = TypeVar("T")

#: Images that each method scores unmeasured, so that no first call's set-up is measured.
WARM_UP = 16


@dataclass(frozen=True)
class Setting:
    """The settings of a run; sent to worker processes."""

    suite: Suite
    out: Path
    device: str
    data: Path | None = None
    keep_scores: bool = True
    tf32: bool = False


class NetworkBench:
    """A network of a suite with everything that is learned for it, on one device."""

    def __init__(self, setting: Setting, name: str, dataset: Dataset | None = None) -> None:
        self.setting = setting
        self.spec = setting.suite.network(name)
        self.dataset = load(self.spec.dataset, setting.data) if dataset is None else dataset
        self._device = torch.device(setting.device)
        self._methods: dict[str, Method] = {}

    @cached_property
    def network(self) -> LayeredNetwork:
        """The deterministic network, trained now or read from its checkpoint."""
        data = self.dataset
        return self._trainer.network(data.train_images, data.train_labels)

    def _build(self, seed: int) -> LayeredNetwork:
        """The untrained network of a seed."""
        channels, size = self.dataset.dimensions
        return build(self.spec.network, channels, len(self.dataset.class_names), size, seed)[0]

    @cached_property
    def _trainer(self) -> Trainer:
        suite = self.setting.suite
        folder = self.setting.out / "networks" / f"seed{suite.seed}" / self.spec.name
        recipe = self.spec.full_recipe()
        return Trainer(recipe, suite.seed, self._device, folder, self._build)

    def method(self, name: str) -> Method:
        """A method of the suite, fitted on the clean training data."""
        if name not in self._methods:
            with warnings.catch_warnings():  # how well methods do is what is measured here
                warnings.simplefilter("ignore", QIPFScoreWarning)
                method = self.setting.suite.create(name).fit(self._clean)
            method.score(Batch.of(self.network, self._images[:WARM_UP]))
            self._methods[name] = method
        return self._methods[name]

    def results(self, corruption: str, level: float, methods: Sequence[str]) -> Iterator[Record]:
        """The results of these methods at one level, one after the other."""
        fitted = [self.method(name) for name in methods]
        inputs = self.inputs(corruption, level)
        batch, network_seconds = self._timed(lambda: Batch.of(self.network, inputs))
        unseen = corruption in self.setting.suite.unseen
        wrong, labels = np.ones(len(batch), bool), None
        if not unseen:
            labels = self.test_labels.to(batch.predicted.device)
            wrong = (batch.predicted != labels).cpu().numpy()
        for method in fitted:
            task = Task(self.spec.name, corruption, level, method.name, self.setting.suite.seed)
            uncertainty, seconds = self._scores(method, batch)
            if unseen:
                uncertainty, wrong = self._beside_known(method, uncertainty)
            try:
                metrics = evaluate(uncertainty, wrong)
            except QIPFError as error:
                raise QIPFError(f"{task}: {error}") from error
            if self.setting.keep_scores:
                self.store(corruption).keep(task, uncertainty, wrong)
            facts = {} if labels is None else method.facts(batch, labels)
            yield self._record(
                task, method, {**metrics, **facts}, len(batch), seconds, network_seconds
            )

    def store(self, corruption: str) -> ScoreStore:
        """Where this network's uncertainties under a corruption are kept."""
        seed = self.setting.suite.seed
        return ScoreStore(self.setting.out, self.spec.name, corruption, seed)

    @property
    def test_labels(self) -> Tensor:  # (n,)
        """Labels of the test inputs that the suite takes."""
        return self._part(self.dataset.test_labels)

    def inputs(self, corruption: str, level: float) -> Tensor:
        """The test inputs at one level, or those of an out-of-distribution set."""
        if corruption == CLEAN:
            return self._images
        if corruption in self.setting.suite.unseen:
            unseen = load_unseen(corruption, self.dataset, self.setting.data)
            return unit_range(self._part(unseen).to(self._device))
        if isinstance(self.dataset, TextDataset):
            rows = self._part(torch.arange(len(self.dataset.test_sentences))).tolist()
            part = tuple(self.dataset.test_sentences[row] for row in rows)
            sentences = corrupt(part, corruption, level)
            return self.dataset.vocabulary.encode(sentences).to(self._device)
        return corrupt(self._images, corruption, level)

    def _beside_known(self, method: Method, unseen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Uncertainties of the clean test inputs and of unseen ones, and which are unseen."""
        clean = self._clean_batch
        known = clean.memo(("scores", method.name), lambda: self._scores(method, clean)[0])
        flags = np.arange(len(known) + len(unseen)) >= len(known)
        return np.concatenate([known, unseen]), flags

    @cached_property
    def _clean_batch(self) -> Batch:
        return Batch.of(self.network, self._images)

    @cached_property
    def _clean(self) -> CleanData:
        data = self.dataset
        return self._trainer.clean_data(self.network, data.train_images, data.train_labels)

    @cached_property
    def _images(self) -> Tensor:  # (n, C, H, W) in [0, 1], on the device
        return unit_range(self._part(self.dataset.test_images).to(self._device))

    def _part(self, inputs: Tensor) -> Tensor:
        """The inputs that the suite takes of a test set: the same random ones for every seed."""
        most = self.setting.suite.most
        if most is None:
            return inputs
        order = np.random.RandomState(0).permutation(len(inputs))
        return inputs[torch.from_numpy(np.sort(order[:most]))]

    def _scores(self, method: Method, batch: Batch) -> tuple[np.ndarray, float]:
        """Uncertainties, and the seconds they took, shared draws included."""
        drawing = 0.0
        if isinstance(method, Sampled):
            drawing = batch.memo(
                ("seconds", method.sampler), lambda: self._timed(lambda: method.samples(batch))[1]
            )
        scores, scoring = self._timed(lambda: method.score(batch))
        return scores.cpu().numpy(), drawing + scoring

    def _timed(self, compute: Callable[[], T]) -> tuple[T, float]:
        """A result and the seconds it took, with the device's work completed."""
        self._synchronize()
        start = time.perf_counter()
        result = compute()
        self._synchronize()
        return result, time.perf_counter() - start

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _record(
        self,
        task: Task,
        method: Method,
        metrics: dict[str, float],
        count: int,
        seconds: float,
        network_seconds: float,
    ) -> Record:
        return {
            "suite": self.setting.suite.name,
            "network": task.network,
            "dataset": self.dataset.name,
            "corruption": task.corruption,
            "level": task.level,
            "method": task.method,
            "seed": task.seed,
            **metrics,
            "seconds": seconds,
            "milliseconds_per_prediction": 1000 * seconds / count,
            "network_seconds": network_seconds,
            "forward_passes": method.forward_passes,
            "test_images": count,
            "dataset_note": self.dataset.note,
            "parameters": parameters(self.setting.suite, task),
            "fitted": method.chosen(),
            "device": _device_name(self._device, self.setting.tf32),
            "versions": _versions(),
        }


def parameters(suite: Suite, task: Task) -> dict[str, Any]:
    """Everything that determines a task's numbers, except seed and versions."""
    spec = suite.network(task.network)
    return {
        "network": spec.network,
        "recipe": spec.full_recipe().settings(),
        "options": effective_options(suite.create(task.method)),
        **({} if suite.most is None else {"most": suite.most, "part": "random"}),
    }


def _device_name(device: torch.device, tf32: bool) -> str:
    if device.type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(device)}{', TF32' if tf32 else ''})"
    return f"{device.type} ({platform.machine()})"


def _versions() -> dict[str, str]:
    return {
        "qipf": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
