"""How often a shift from the first prediction on is found, by the size of the held-out set.

    python benchmarks/monitor_start.py                 # about two minutes on one core
    python benchmarks/monitor_start.py --streams 5     # to see that it works

Held-out scores are standard normal; the stream's are shifted by half a standard deviation from its
first prediction on. Counted are alarms of `ShiftMonitor` (alpha = 0.01) within 20,000 predictions,
and p-values of the first window (`Verdict.start`) up to 0.05, also in streams without a shift.
Writes results/monitor-start.csv, the table of docs/monitor.md.
"""

import argparse
import csv
from pathlib import Path

import numpy as np

import qipf
from qipf.progress import progress

HELD_OUT, LENGTH, SHIFT = (20, 50, 100, 300), 20_000, 0.5
ALPHA, LEVEL = 0.01, 0.05


def counts(held_out: int, streams: int) -> dict[str, int]:
    """Numbers of streams in which each test finds something."""
    found = {"alarms": 0, "first_window": 0, "first_window_without_shift": 0}
    for seed in range(streams):
        rng = np.random.default_rng([held_out, seed])
        calibration = qipf.Calibration(rng.normal(size=held_out))
        monitor = qipf.ShiftMonitor(calibration, ALPHA, random_state=seed)
        verdict = monitor.update_scores(rng.normal(SHIFT, size=LENGTH))
        still = qipf.ShiftMonitor(calibration, ALPHA, random_state=seed)
        usual = still.update_scores(rng.normal(size=still.window))
        assert verdict.start is not None
        assert usual.start is not None
        found["alarms"] += verdict.alarm
        found["first_window"] += verdict.start.ks_p_value <= LEVEL
        found["first_window_without_shift"] += usual.start.ks_p_value <= LEVEL
    return found


def main() -> None:
    """Count, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results")
    options = parser.parse_args()
    rows = [
        {"held_out": size, "streams": options.streams, **counts(size, options.streams)}
        for size in progress(HELD_OUT, "monitoring")
    ]
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "monitor-start.csv"
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    print(path.read_text(), end="")


if __name__ == "__main__":
    main()
