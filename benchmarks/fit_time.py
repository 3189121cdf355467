"""Seconds of `LayeredQIPF.fit` by stage, and what `effort="fast"` loses.

    python benchmarks/fit_time.py --run runs/paper --data DATA --networks mnist_lenet cifar10_vgg3

Passes of the network are counted apart: those over the training images, and those over held-out
and perturbed ones. Mean ROC-AUC and PR-AUC of error detection are over the levels of the paper's
corruptions, on the first `--images` test images. On the CPU, seconds are those of the processor
with `--threads` threads (1: other load does not count), or of the clock with `--clock`, for a
machine that does nothing else; on a GPU they are of the clock, of a second
fit; `first_fit` is the one before, which for the first network also loads the kernels. Writes
results/fit-time-DEVICE.csv; rows of other networks stay.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

import qipf
from qipf.bench.corruptions import corrupt
from qipf.bench.methods.network import unit_range
from qipf.bench.scoring import NetworkBench, Setting
from qipf.bench.suites import CLEAN, find
from qipf.layered import fitting
from qipf.layered import model as layered_model
from qipf.metrics.error_detection import evaluate
from qipf.network import features

#: Columns that tell rows apart.
KEY = ("network", "effort", "seconds")

#: Stages by the functions that they are, and the modules that call these.
STAGES = {
    (layered_model, "sample_examples"): "reading",
    (layered_model, "tuning_sets"): "perturbing",
    (fitting, "chosen_fields"): "choosing",
    (fitting, "fit_mixture"): "weighting",
    (fitting, "distilled_mixture"): "distilling",
}


class Clock:
    """Seconds by stage; those of the network's passes apart."""

    def __init__(self, device: str, by_clock: bool = False) -> None:
        self.device, self.by_clock = device, by_clock
        self.seconds: dict[str, float] = {}
        self._stage = ""

    def now(self) -> float:
        """Seconds since some time."""
        if self.device == "cpu" and not self.by_clock:
            return time.process_time()
        if self.device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter()

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as a stage of this name; without one, as the network in the stage."""

        def run(*given: Any, **options: Any) -> Any:
            before, self._stage = self._stage, name or f"{self._stage}_network"
            start, inner = self.now(), sum(self.seconds.values())
            try:
                return function(*given, **options)
            finally:
                spent = self.now() - start - (sum(self.seconds.values()) - inner)
                self.seconds[self._stage] = self.seconds.get(self._stage, 0.0) + spent
                self._stage = before

        return run

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While fits are timed."""
        with ExitStack() as stack:
            for (module, name), stage in STAGES.items():
                timed = self.timed(stage, getattr(module, name))
                stack.enter_context(patch.object(module, name, timed))
            stack.enter_context(patch.object(features, "call", self.timed("", features.call)))
            yield


def rows_of(
    bench: NetworkBench, efforts: list[str], images: int, by_clock: bool = False
) -> Iterator[dict[str, str]]:
    """A line for each effort."""
    data, net, device = bench.dataset, bench.network, bench.setting.device
    parts = zip(data.train_images.split(1000), data.train_labels.split(1000), strict=True)
    train = [(unit_range(part), labels) for part, labels in parts]
    shown, truth = unit_range(data.test_images[:images]).to(device), data.test_labels[:images]
    levels = dict.fromkeys(
        (t.corruption, t.level) for t in bench.setting.suite.tasks() if t.corruption != CLEAN
    )
    for effort in efforts:
        besides = []
        for _ in range(1 if device == "cpu" else 2):
            clock = Clock(device, by_clock)
            with clock.watching():
                start = clock.now()
                model = qipf.LayeredQIPF(net, reduction="distilled", effort=effort).fit(train)
                total = clock.now() - start
            spent = clock.seconds
            besides.append(total - spent["reading_network"])
        found: dict[str, list[tuple[float, float]]] = {}
        for corruption, level in levels:
            prediction = model(corrupt(shown, corruption, level))
            wrong = (prediction.predicted.cpu() != truth).numpy()
            if wrong.any() and not wrong.all():
                metrics = evaluate(prediction.uncertainty.cpu().numpy(), wrong)
                found.setdefault(corruption, []).append((metrics["roc_auc"], metrics["pr_auc"]))
        means = np.array([np.mean(pairs, axis=0) for pairs in found.values()]).mean(0)
        seconds = {
            "network_over_the_data": spent["reading_network"],
            "network_perturbed": spent["perturbing_network"],
            **{stage: spent[stage] for stage in STAGES.values()},
            "beside_one_pass": besides[-1],
        }
        yield {
            "network": bench.spec.name,
            "effort": effort,
            "reduction": model.reduction,
            "threads": str(torch.get_num_threads()),
            "seconds": "clock" if by_clock or device != "cpu" else "processor",
            **{name: f"{value:.1f}" for name, value in seconds.items()},
            "first_fit": "" if device == "cpu" else f"{besides[0]:.1f}",
            "roc_auc": f"{means[0]:.5f}",
            "pr_auc": f"{means[1]:.5f}",
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", action="store_true")
    parser.add_argument("--networks", nargs="+", required=True)
    parser.add_argument("--efforts", nargs="+", default=["full", "fast"])
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    output = options.output or Path(f"results/fit-time-{options.device}.csv")
    setting = Setting(find("paper"), options.run, options.device, options.data)
    for network in options.networks:
        bench = NetworkBench(setting, network)
        for row in rows_of(bench, options.efforts, options.images, options.clock):
            print(*row.values(), sep="  ", flush=True)
            rows = []
            if output.exists():
                with output.open(newline="") as lines:
                    rows = list(csv.DictReader(lines))
            mine = [row[name] for name in KEY]
            rows = [old for old in rows if [old[name] for name in KEY] != mine] + [row]
            with output.open("w", newline="") as lines:
                writer = csv.DictWriter(lines, list(row))
                writer.writeheader()
                writer.writerows(rows)


if __name__ == "__main__":
    main()
