"""What distilled fields gain and lose against fields of all training examples.

    python benchmarks/distilled.py run --suite paper --data DATA --seeds 0 1 2
    python benchmarks/distilled.py table

`run` scores a suite with `LayeredQIPF(reduction="random")`; networks are those of the folder, or
are trained into it. `table` compares results/all-examples with results/paper, results/modern and
results/ood, which have the distilled fields of the default. Both count the same cells: means over
levels, then over seeds and corruptions, of the uncertainty on clean and corrupted data, with
corruptions like the tuning perturbations and unlike them apart. Writes results/distilled.md.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from qipf.bench import runner
from qipf.bench.corruptions import CORRUPTIONS, UNRELATED
from qipf.bench.results import read_results
from qipf.bench.suites import CLEAN, find

METHOD = "qipf_plus"
METRICS = ("roc_auc", "pr_auc", "augrc")

ABOUT = """`python benchmarks/distilled.py table`. A cell is a network's seed under a corruption
that both results have. Not all rows of results/all-examples were made by `run`: those of most
seeds 1 and 2 are of the suites' first runs, when all examples were the default, without
TensorFloat-32 and, for MNIST, of networks of the first training. Novelties are not compared:
those of all examples are of forms before the present one.
"""

Cell = tuple[str, int, str]  # network, seed, corruption

GROUPS: dict[str, Callable[[str], bool]] = {
    "clean": lambda name: name == CLEAN,
    "all corruptions": lambda name: name in CORRUPTIONS,
    "corruptions like the tuning perturbations": (
        lambda name: name in CORRUPTIONS and name not in UNRELATED
    ),
    "the other corruptions": lambda name: name in UNRELATED,
}


def cells_of(folders: list[Path]) -> dict[Cell, dict[float, np.ndarray]]:
    """Metrics by network, seed and corruption, and by level."""
    found: dict[Cell, dict[float, np.ndarray]] = defaultdict(dict)
    for folder in folders:
        for record in read_results(folder):
            values = [record.get(metric) for metric in METRICS]
            if record["method"] == METHOD and None not in values:
                key = record["network"], record["seed"], record["corruption"]
                found[key][float(record["level"])] = np.array(values, float)
    return found


def table(results: Path) -> Iterator[str]:
    """For each group of corruptions a table of the networks."""
    suites = [results / name for name in ("paper", "modern", "ood")]
    few, whole = (cells_of(folders) for folders in (suites, [results / "all-examples"]))
    for title, wanted in GROUPS.items():
        pairs: dict[str, list[tuple[np.ndarray, np.ndarray]]] = defaultdict(list)
        for cell in sorted(few.keys() & whole.keys()):
            levels = sorted(few[cell].keys() & whole[cell].keys())
            if wanted(cell[2]) and levels:
                both = [
                    np.nanmean([own[cell][level] for level in levels], 0) for own in (whole, few)
                ]
                pairs[cell[0]].append((both[0], both[1]))
        yield f"## {title.capitalize()}\n"
        yield "| network | cells | all examples: ROC-AUC / PR-AUC / AUGRC | distilled |"
        yield "| --- | --- | --- | --- |"
        means = []
        for network in sorted(pairs):
            whole_mean, few_mean = np.mean(pairs[network], axis=0)
            means.append((whole_mean, few_mean))
            yield line(network, str(len(pairs[network])), whole_mean, few_mean)
        yield line("mean", "", *np.mean(means, axis=0)) + "\n"


def line(network: str, cells: str, whole: np.ndarray, few: np.ndarray) -> str:
    """A row of the table, with differences."""
    shown = " / ".join(f"{value:.4f}" for value in whole)
    change = " / ".join(f"{value:+.4f}" for value in few - whole)
    return f"| {network} | {cells} | {shown} | {change} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=["run", "table"])
    parser.add_argument("--suite", default="paper")
    parser.add_argument("--out", type=Path, default=Path("results/all-examples"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--only", action="append", default=[], help="as in qipf bench run")
    parser.add_argument("--tf32", action="store_true", help="as in qipf bench run")
    parser.add_argument("--results", type=Path, default=Path("results"))
    options = parser.parse_args()
    if options.command == "table":
        title = "# Distilled fields against all examples\n"
        text = "\n".join([title, ABOUT, *table(options.results)])
        (options.results / "distilled.md").write_text(text)
        print(text)
        return
    suite = find(options.suite)
    every = {METHOD: {"reduction": "random"}}
    for seed in options.seeds:
        runner.run(
            replace(suite, seed=seed, options={**suite.options, **every}),
            options.out,
            device=options.device,
            only=[*options.only, f"method={METHOD}"],
            data=options.data,
            keep_scores=False,
            tf32=options.tf32,
        )


if __name__ == "__main__":
    main()
