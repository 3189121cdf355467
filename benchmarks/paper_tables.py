"""The paper's tables beside ours: every kernel constant, and both ways to score the rivals.

    python benchmarks/paper_tables.py results/paper                    # prints
    python benchmarks/paper_tables.py results/paper --fill README.md   # and fills a page

The rivals are scored by the standard deviation of one class's probability over their draws: of the
class that the deterministic network predicts, or (``_own_class``, as the authors' published code
does) of the class that the mean of the draws predicts. A page is filled between the lines
``<!-- NAME -->`` and ``<!-- end -->``, where NAME is one of the parts that are printed.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from qipf.bench.results import Record
from qipf.bench.suites import CLEAN
from qipf.metrics.error_detection import TITLES
from qipf.reporting.run.results import Run
from qipf.reporting.tables import MetricTable, summarise

RIVALS = ("mc_dropout", "mc_dropout_ll", "svi", "svi_ll", "ensemble")

#: Scores of the rivals, by what they add to a rival's name.
CONVENTIONS = {"": "network's class", "_own_class": "own class"}

#: Rows of the field: the paper's method with each constant of the kernel, and `QIPF()`.
FIELDS = {
    "qipf": 'kernel 1 at its peak (`"peak"`)',
    "qipf_normalized": 'normalised in the units of the logits (`"density"`)',
    "qipf_standardized": 'normalised in units of the bandwidth (`"standard"`)',
    "qipf_default": "`QIPF()` as it comes, not the paper's method",
}

#: The metrics of the paper's tables as its authors compute them, and average precision.
METRICS = ("roc_auc", "pr_auc_trapezoid", "point_biserial", "pr_auc")


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)


def metric_table(records: Sequence[Record], metric: str, methods: Sequence[str]) -> MetricTable:
    shown = [r for r in records if r["method"] in methods] if methods != "all" else records
    return summarise(shown, [metric], methods).tables[0]


def won(records: Sequence[Record], metric: str, field: str, suffix: str) -> tuple[int, int]:
    """In how many cells the field is best of the six, and in how many they are compared.

    Only cells that the paper's tables have: its correlations leave CIFAR-10 LeNet out.
    """
    paper = metric_table(records, metric, [*RIVALS, "qipf"])
    known = {(row.corruption, row.network) for row in paper.rows if row.counts and row.paper}
    found = metric_table(records, metric, [*(rival + suffix for rival in RIVALS), field])
    rows = [row.ours for row in found.rows if (row.corruption, row.network) in known]
    return sum(row[field].best for row in rows), len(rows)


def paper_wins(records: Sequence[Record], metric: str) -> str:
    """In how many of its cells the paper's qipf is best."""
    contests = metric_table(records, metric, [*RIVALS, "qipf"]).paper_contests
    return f"{contests.wins.get('qipf', 0)} of {len(contests.rows)}"


def wins(records: Sequence[Record]) -> str:
    """Cells won against the rivals, for each kernel, convention and metric."""
    rows: list[list[str]] = [["the paper", "", *(paper_wins(records, m) for m in METRICS[:3]), ""]]
    for field, about in FIELDS.items():
        for suffix, convention in CONVENTIONS.items():
            cells = ["{} of {}".format(*won(records, m, field, suffix)) for m in METRICS]
            rows.append([f"{field}: {about}", convention, *cells])
    return table(["cells won", "rivals scored by", *(TITLES[m] for m in METRICS)], rows)


def wins_by_seed(records: Sequence[Record]) -> str:
    """The same for single seeds, ROC-AUC / PR-AUC by trapezoids / point-biserial."""
    seeds = sorted({int(record["seed"]) for record in records})
    rows = []
    for field in FIELDS:
        for suffix, convention in CONVENTIONS.items():
            cells = []
            for seed in seeds:
                own = [record for record in records if record["seed"] == seed]
                counts = (won(own, m, field, suffix)[0] for m in METRICS[:3])
                cells.append(" / ".join(map(str, counts)))
            rows.append([field, convention, *cells])
    return table(["cells won", "rivals scored by", *(f"seed {seed}" for seed in seeds)], rows)


def means(records: Sequence[Record]) -> str:
    """Mean over all cells: ours by both conventions, and the paper's."""
    ours = {m: metric_table(records, m, "all").means() for m in METRICS}
    paper = {m: metric_table(records, m, [*RIVALS, "qipf"]) for m in METRICS[:3]}

    def reported(metric: str, method: str) -> str:
        rows = paper[metric].rows if metric in paper else ()
        cells = [row.paper[method].mean for row in rows if row.counts and method in row.paper]
        return f"{fmean(cells):.3f}" if cells else "–"

    rows = []
    for name in [*(r + s for r in RIVALS for s in CONVENTIONS), *FIELDS]:
        base = name.removesuffix("_own_class")
        cells = [
            f"{ours[m][name]:.3f} ({reported(m, base)})" if m in paper else f"{ours[m][name]:.3f}"
            for m in METRICS
        ]
        rows.append([name, *cells])
    heads = [f"{TITLES[m]}{' (paper)' if m in paper else ''}" for m in METRICS]
    return table(["mean over the cells", *heads], rows)


def every_method(records: Sequence[Record]) -> str:
    """Mean over all cells of every method, best first."""
    found = {m: metric_table(records, m, "all").means() for m in METRICS}
    passes = {str(r["method"]): r["forward_passes"] for r in records}
    order = sorted(found["roc_auc"], key=lambda name: -found["roc_auc"][name])
    rows = [[name, passes[name], *(f"{found[m][name]:.3f}" for m in METRICS)] for name in order]
    return table(["mean over the cells", "passes", *(TITLES[m] for m in METRICS)], rows)


def cells(records: Sequence[Record], metric: str) -> str:
    """Every cell: rivals as network's class / own class (paper), qipf by kernel (paper)."""
    found = metric_table(records, metric, "all")
    rows = []
    for row in found.rows:
        if not row.counts:
            continue

        def text(names: Sequence[str], base: str, row=row) -> str:  # type: ignore[no-untyped-def]
            ours = " / ".join(f"{row.ours[name].mean:.3f}" for name in names if name in row.ours)
            return ours + (f" ({row.paper[base].mean:.2f})" if base in row.paper else "")

        rivals = [text([rival + suffix for suffix in CONVENTIONS], rival) for rival in RIVALS]
        kernels = text(list(FIELDS)[:3], "qipf")
        rows.append([row.corruption, row.network, *rivals, kernels, text(["qipf_default"], "")])
    head = ["corruption", "network", *RIVALS, "qipf: peak / density / standard", "QIPF()"]
    return table(head, rows)


def plus(records: Sequence[Record]) -> str:
    """qipf_plus beside entropy, the best other method of one pass, and two scores of ensembles.

    The best of one pass is not `qipf_default`, which may be the entropy itself.
    """
    own = ("qipf_plus", "qipf_plus_novelty", "qipf_default")
    peers = sorted({r["method"] for r in records if r["forward_passes"] == 1} - {*own, "entropy"})
    areas, precision = (metric_table(records, m, "all").rows for m in ("roc_auc", "pr_auc"))
    rows = []
    for area, average in zip(areas, precision, strict=True):
        if area.counts:
            a, p = area.ours, average.ours
            names = [max(peers, key=lambda name, c=c: c[name].mean) for c in (a, p)]
            best = f"{names[0]} {a[names[0]].mean:.3f}, {names[1]} {p[names[1]].mean:.3f}"
            shown = ("qipf_plus", "entropy", "ensemble_entropy", "ensemble_log_odds")
            cells = [f"{a[name].mean:.3f} / {p[name].mean:.3f}" for name in shown]
            rows.append([area.corruption, area.network, *cells[:2], best, *cells[2:]])
    head = ["corruption", "network", "qipf_plus", "entropy", "best other of one pass"]
    return table([*head, "ensemble_entropy", "ensemble_log_odds"], rows)


def precisions(records: Sequence[Record]) -> str:
    """How much trapezoids add to average precision, by network."""
    exact, area = (metric_table(records, m, "all") for m in ("pr_auc", "pr_auc_trapezoid"))
    networks = list(dict.fromkeys(str(record["network"]) for record in records))
    rows = []
    for name in [*(r + s for r in RIVALS for s in CONVENTIONS), *FIELDS]:
        pairs = [(exact.means(n)[name], area.means(n)[name]) for n in networks]
        rows.append([name, *(f"{a:.3f} / {b:.3f}" for a, b in pairs)])
    return table(["average precision / trapezoids", *networks], rows)


def clean(records: Sequence[Record]) -> str:
    """Clean accuracy of each seed's network, the paper's, and clean ROC-AUC of the field."""
    summary = summarise(records, ["roc_auc"], "all")
    seeds = sorted({int(record["seed"]) for record in records})
    rows = []
    for line in summary.networks:
        own = [r for r in records if r["network"] == line.network and r["corruption"] == CLEAN]
        accuracy = {r["seed"]: f"{r['accuracy']:.1%}" for r in own}
        paper = "–" if line.paper_accuracy is None else f"{line.paper_accuracy:.1%}"
        row = next(
            r for r in summary.tables[0].rows if (r.corruption, r.network) == (CLEAN, line.network)
        )
        areas = " / ".join(f"{row.ours[name].mean:.3f}" for name in FIELDS if name in row.ours)
        found = [accuracy.get(seed, "–") for seed in seeds]
        rows.append([line.network, f"{line.test_images:,}", *found, paper, areas])
    head = ["network", "test images", *(f"seed {seed}" for seed in seeds), "paper"]
    return table([*head, "clean ROC-AUC of " + " / ".join(FIELDS)], rows)


PARTS: Mapping[str, Callable[[Sequence[Record]], str]] = {
    "clean": clean,
    "wins": wins,
    "wins by seed": wins_by_seed,
    "means": means,
    "precisions": precisions,
    "roc_auc": lambda records: cells(records, "roc_auc"),
    "pr_auc": lambda records: cells(records, "pr_auc_trapezoid"),
    "point_biserial": lambda records: cells(records, "point_biserial"),
    "every method": every_method,
    "qipf_plus": plus,
}


def filled(page: str, parts: Mapping[str, str]) -> str:
    """The page with the parts between their marks.

    >>> filled("<!-- wins -->\\nold\\n<!-- end -->\\n", {"wins": "new\\n"})
    '<!-- wins -->\\n\\nnew\\n\\n<!-- end -->\\n'
    """

    def part(match: re.Match[str]) -> str:
        known = parts.get(match[1])
        return match[0] if known is None else f"<!-- {match[1]} -->\n\n{known}\n<!-- end -->"

    return re.sub(r"<!-- ([\w ]+) -->\n.*?<!-- end -->", part, page, flags=re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--fill", type=Path, help="a page in the run's folder")
    options = parser.parse_args()
    records = Run(options.run).records
    parts = {name: make(records) for name, make in PARTS.items()}
    if options.fill:
        page = options.run / options.fill
        page.write_text(filled(page.read_text("utf-8"), parts), "utf-8")
    for name, text in parts.items():
        sys.stdout.write(f"## {name}\n\n{text}\n")


if __name__ == "__main__":
    main()
