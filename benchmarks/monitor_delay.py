"""How soon `ShiftMonitor` notices shifts of digits, by what it tests.

    python benchmarks/monitor_delay.py                # about 15 minutes on one core
    python benchmarks/monitor_delay.py --repeats 3    # to see that it works

The digits of scikit-learn. Networks of several seeds are trained on half of the benchmark's
training images and tried on the other half (``training``, by which the default of the monitor was
chosen), or trained on all of them and tried on the test images (``test``). A model is calibrated on
200 images that were not trained on, then sees 150 as they are, then the rest turned, with noise,
blurred or with less contrast, each image once, in a new order each time. Compared are the novelty,
the uncertainty and both (each with half of alpha). Writes results/monitor-delay.csv and prints the
table of docs/monitor.md: medians of the networks' median delays.
"""

import argparse
import csv
import itertools
import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import qipf
from qipf.bench import datasets
from qipf.bench.corruptions import corrupt
from qipf.bench.networks import build
from qipf.bench.training import train
from qipf.progress import progress

CALIBRATED, CLEAN = 200, 150
SHIFTS = {
    "none": (0.0,),
    "rotation": (10.0, 15.0, 30.0, 60.0),
    "noise": (0.1, 0.2, 0.4),
    "blur": (0.5, 0.8, 1.5),
    "contrast": (0.8, 0.6, 0.3),
}
SCORES = ("novelty", "uncertainty", "both")
PARTS = ("test", "training")

Scores = tuple[Tensor, Tensor]  # uncertainty, novelty


def shifted(images: Tensor, shift: str, level: float) -> Tensor:  # (N, C, H, W) in [0, 1]
    """Images turned by degrees, with noise or blur of a standard deviation, or less contrast."""
    if shift == "rotation":
        return corrupt(images, "rotation", level)
    if shift == "noise":
        noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
        return (images + level * noise).clamp(0, 1)
    if shift == "contrast":
        return 0.5 + level * (images - 0.5)
    if shift == "blur":
        offsets = torch.arange(-3, 4)
        weights = (-(offsets**2) / (2 * level**2)).exp()
        kernel = torch.outer(weights, weights) / weights.sum() ** 2
        return torch.nn.functional.conv2d(images, kernel[None, None], padding=3)
    return images


def scores(seed: int, part: str) -> dict[str, dict[tuple[str, float], Scores]]:
    """Scores of images that were not trained on, by model and shift."""
    digits = datasets.load("digits")
    images, labels, others = digits.train_images, digits.train_labels, digits.test_images
    if part == "training":
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
        first, second = order.chunk(2)
        images, labels, others = images[first], labels[first], images[second]
    network, recipe = build("mlp", channels=1, classes=10, size=8, seed=seed)
    train(network, images, labels, recipe, seed=seed)
    models = {"wrap": qipf.wrap(network), "LayeredQIPF": qipf.LayeredQIPF(network)}
    shown = {
        (shift, level): shifted(others / 255, shift, level)
        for shift, levels in SHIFTS.items()
        for level in levels
    }
    return {
        name: {key: model.both_scores(batch) for key, batch in shown.items()}
        for name, model in models.items()
        if model.fit([(images / 255, labels)])
    }


def delays(clean: Scores, moved: Scores, score: str, repeats: int) -> list[float]:
    """Predictions from the shift to the alarm; infinite without one, negative for a false alarm."""
    found = []
    for seed in range(repeats):
        order = torch.randperm(len(clean[0]), generator=torch.Generator().manual_seed(seed))
        held_out, before, rest = order.split([CALIBRATED, CLEAN, len(order) - CALIBRATED - CLEAN])
        uncertainty, novelty = (values[held_out] for values in clean)
        usual = qipf.Calibration(uncertainty, novelty=novelty)
        monitor = qipf.ShiftMonitor(usual, random_state=seed, score=score)
        monitor.update_scores(*(values[before] for values in clean))
        at = monitor.update_scores(*(values[rest] for values in moved)).alarm_at
        found.append(math.inf if at is None else at - CLEAN)
    return found


def rows(seeds: int, repeats: int, part: str) -> list[dict[str, object]]:
    """One row per network, model, shift and score."""
    table: list[dict[str, object]] = []
    for seed in range(seeds):
        found = scores(seed, part)
        cases = list(itertools.product(found, found["wrap"], SCORES))
        for model, (shift, level), score in progress(cases, f"network {seed}"):
            clean = found[model]["none", 0.0]
            late = np.array(delays(clean, found[model][shift, level], score, repeats))
            # no alarm is a delay beyond all images
            quantiles = np.quantile(late, [0.1, 0.5, 0.9], method="higher")
            table.append(
                {
                    "images": part,
                    "network": seed,
                    "model": model,
                    "score": score,
                    "shift": shift,
                    "level": level,
                    "repeats": repeats,
                    "alarms_before": int((late <= 0).sum()),
                    "no_alarm": int(np.isinf(late).sum()),
                    **{
                        f"delay_{name}": int(value) if np.isfinite(value) else ""
                        for name, value in zip(("10%", "median", "90%"), quantiles, strict=True)
                    },
                }
            )
    return table


def summary(table: list[dict[str, object]]) -> str:
    """Medians over the networks as Markdown, and how much later each score is than the better."""
    found: dict[tuple[str, str], dict[tuple[str, float], list[float]]] = {}
    for row in table:
        delay = row["delay_median"]
        of_score = found.setdefault((str(row["model"]), str(row["score"])), {})
        of_score.setdefault((str(row["shift"]), float(str(row["level"]))), []).append(
            math.inf if delay == "" else float(str(delay))
        )
    shifts = [key for key in next(iter(found.values())) if key[0] != "none"]
    lines = [
        f"| model, score | {' | '.join(f'{shift} {level:g}' for shift, level in shifts)} "
        "| at most as much later as the better |",
        f"| --- |{' --- |' * (len(shifts) + 1)}",
    ]
    for (model, score), delays_of in found.items():
        medians = [float(np.median(delays_of[key])) for key in shifts]
        ratios = [
            mine / better
            for key in shifts
            for mine, *others in zip(
                delays_of[key], *(found[model, each][key] for each in SCORES[:2]), strict=True
            )
            for better in [min(others)]
            if math.isfinite(better)
        ]
        shown = [f"{delay:.0f}" if math.isfinite(delay) else "none" for delay in medians]
        worst = f"{max(ratios):.2f}" if math.isfinite(max(ratios)) else "no alarm"
        lines.append(f"| `{model}`, {score} | {' | '.join(shown)} | {worst} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--networks", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=100, help="orders of the digits")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results")
    options = parser.parse_args()
    table = [row for part in options.part for row in rows(options.networks, options.repeats, part)]
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "monitor-delay.csv"
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, table[0])
        writer.writeheader()
        writer.writerows(table)
    for part in options.part:
        print(summary([row for row in table if row["images"] == part]))


if __name__ == "__main__":
    main()
