"""A trained network of a run with its field and its data, for figures of single predictions."""

from functools import cached_property
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from qipf.bench.corruptions import corrupt
from qipf.bench.datasets import Dataset, TextDataset, load
from qipf.bench.methods import Batch
from qipf.bench.methods.fields import Field
from qipf.bench.methods.network import unit_range
from qipf.bench.scoring import NetworkBench, Setting
from qipf.bench.suites import CLEAN, BenchNetwork, Suite
from qipf.errors import QIPFInputError
from qipf.field.estimator import QIPF
from qipf.reporting.run.results import Run


class TrainedNetwork:
    """A network of a run, read from its checkpoint."""

    def __init__(
        self, run: Run, network: str, data: Path | str | None = None, seed: int | None = None
    ) -> None:
        chosen = run.seed(network, seed)
        home = run.folder_of(network, chosen)
        if not (home / "networks" / f"seed{chosen}" / network / "network.pt").is_file():
            raise QIPFInputError(
                f"{home} does not hold the trained {network}. Use the folder in which the run was "
                "made."
            )
        suite = _suite(run, network, chosen)
        self.has_field = "qipf" in suite.options
        folder = None if data is None else Path(data)
        self.dataset: Dataset = load(suite.networks[0].dataset, folder, download=False)
        if isinstance(self.dataset, TextDataset):
            raise QIPFInputError(f"{network} reads sentences; single predictions show images.")
        setting = Setting(suite, home, "cpu", folder, keep_scores=False)
        self._bench = NetworkBench(setting, network, self.dataset)

    @cached_property
    def field(self) -> QIPF:
        """The field over the network's training logits, fitted as in the run."""
        return self.field_of("qipf")

    def field_of(self, method: str) -> QIPF:
        """The field of another row of the tables, such as ``qipf_normalized``."""
        return cast(QIPF, cast(Field, self._bench.method(method)).field_)

    @property
    def labels(self) -> NDArray:  # (n,)
        """True classes of the test images."""
        return self.dataset.test_labels.numpy()

    def predict(self, corruption: str, level: float, rows: NDArray | None = None) -> Batch:
        """Predictions for test images (those of `rows`, or all) at one level."""
        chosen = self.dataset.test_images
        if rows is not None:
            chosen = chosen[torch.from_numpy(np.asarray(rows, np.int64))]
        images = unit_range(chosen)
        if corruption != CLEAN:
            images = corrupt(images, corruption, level)
        return Batch.of(self._bench.network, images)


def _suite(run: Run, network: str, seed: int) -> Suite:
    """The part of the suite that can be recovered from the results."""
    own = [r for r in run.records if (r["network"], r["seed"]) == (network, seed)]
    made = own[0]["parameters"]
    return Suite(
        "reported",
        (BenchNetwork(network, own[0]["dataset"], made["network"], made["recipe"]),),
        options={r["method"]: r["parameters"]["options"] for r in own if r["method"] == "qipf"},
        seed=seed,
    )
