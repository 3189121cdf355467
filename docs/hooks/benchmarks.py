"""Tables and figures of results/, made when the site is built: new results appear by themselves.

A page has lines such as ``<!-- benchmark: short paper -->``, which are replaced: `describe RUN` is
the size of a run, `short RUN` a table of well-known methods, `all` has everything about every run.
A run is a folder in results/ with a file README.md and results.jsonl or results.jsonl.gz.
"""

import functools
import io
import re
from pathlib import Path
from statistics import fmean

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
MARK = re.compile(r"^<!-- benchmark: (\w+) ?([\w-]*) -->$", re.MULTILINE)

#: Methods of the short tables and the figure, with their names there.
SHORT = {
    "ensemble_log_odds": "ensemble, log-odds",
    "qipf_plus": "LayeredQIPF",
    "qipf_plus_novelty": "LayeredQIPF, novelty",
    "ensemble_entropy": "ensemble, entropy",
    "svi_entropy": "SVI, entropy",
    "mc_dropout_entropy": "MC-Dropout, entropy",
    "laplace_ll": "last-layer Laplace",
    "entropy": "softmax entropy",
    "max_logit": "largest logit",
    "energy": "energy",
    "knn": "nearest neighbours",
    "mahalanobis": "Mahalanobis",
    "vim": "ViM",
    "qipf_default": "QIPF()",
    "qipf": "qipf, the paper's method",
}

#: What is detected, by the kind of inputs.
WHAT = {"corrupted": "wrong predictions", "unseen": "inputs of another kind"}


def runs() -> list[str]:
    """Names of the published runs."""
    found = {path.parent.name for path in RESULTS.glob("*/results.jsonl*")}
    return sorted(name for name in found if (RESULTS / name / "README.md").exists())


@functools.cache
def records(run: str) -> list[dict]:
    """All results of a run."""
    from qipf.bench.results import read_results

    return read_results(RESULTS / run)


@functools.cache
def cells(run: str, metric: str) -> dict[str, dict[tuple[str, str], float]]:
    """By method: mean over levels and seeds for each cell (network, corruption), clean left out."""
    found: dict[str, dict[tuple[str, str], list[float]]] = {}
    for record in records(run):
        if record["corruption"] != "none" and record.get(metric) is not None:
            cell = (record["network"], record["corruption"])
            found.setdefault(record["method"], {}).setdefault(cell, []).append(record[metric])
    return {m: {cell: fmean(v) for cell, v in own.items()} for m, own in found.items()}


def unseen(corruption: str) -> bool:
    """Whether these are inputs of another kind, detected among clean ones, and no corruption."""
    from qipf.bench.datasets import UNSEEN_SETS

    return corruption in UNSEEN_SETS


def shown_cells(run: str, kind: str, place: int = 0, name: str = "") -> set[tuple[str, str]]:
    """Cells of a kind ("corrupted" or "unseen"), of one network (place 0) or corruption (1)."""
    known = {cell for own in cells(run, "roc_auc").values() for cell in own}
    return {
        cell
        for cell in known
        if unseen(cell[1]) == (kind == "unseen") and (not name or cell[place] == name)
    }


def mean(run: str, metric: str, method: str, shown: set[tuple[str, str]]) -> float | None:
    """Mean over these cells; None if the method lacks one of them."""
    own = cells(run, metric).get(method, {})
    return fmean(own[cell] for cell in shown) if shown and shown <= set(own) else None


def methods(run: str, kind: str) -> dict[str, float]:
    """Mean ROC-AUC of all methods of a run that have all its cells, the best first."""
    shown = shown_cells(run, kind)
    found = {name: mean(run, "roc_auc", name, shown) for name in cells(run, "roc_auc")}
    measured = {name: value for name, value in found.items() if value is not None}
    return dict(sorted(measured.items(), key=lambda each: -each[1]))


def number(value: float | None, digits: int = 3) -> str:
    """A number of a table."""
    return "–" if value is None else f"{value:.{digits}f}"


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; all columns but the first are numbers."""
    lines = [header, ["---", *["--:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def titled(name: str) -> str:
    """Name of a method, and what it is."""
    return f"**{SHORT[name]}** (`{name}`)" if name in SHORT else f"`{name}`"


def cost(run: str, method: str) -> list[str]:
    """Forward passes, and milliseconds per prediction beside the network's own passes."""
    own = [r for r in records(run) if r["method"] == method]
    times = [r["milliseconds_per_prediction"] for r in own if "milliseconds_per_prediction" in r]
    return [str(own[0].get("forward_passes", "–")), f"{fmean(times):.2g}" if times else "–"]


def means(run: str, kind: str = "corrupted", chosen: list[str] | None = None) -> str:
    """All methods of a run: quality and cost."""
    rows = []
    shown = shown_cells(run, kind)
    others = {"corrupted": ("pr_auc", "aurc"), "unseen": ("pr_auc", "fpr95")}[kind]
    for name, area in methods(run, kind).items():
        if chosen is None or name in chosen:
            more = [number(mean(run, metric, name, shown)) for metric in others]
            rows.append([titled(name), number(area), *more, *cost(run, name)])
    last = {"corrupted": "AURC", "unseen": "FPR at 95 % TPR"}[kind]
    header = ["method", "ROC-AUC", "average precision", last, "passes", "ms per prediction"]
    return table(header, rows)


def by(run: str, kind: str, place: int) -> str:
    """ROC-AUC of the short list of methods by network (place 0) or by corruption (1)."""
    groups = list(dict.fromkeys(r[("network", "corruption")[place]] for r in records(run)))
    shown = {group: shown_cells(run, kind, place, group) for group in groups}
    rows = [
        [titled(name), *(number(mean(run, "roc_auc", name, own)) for own in shown.values() if own)]
        for name in methods(run, kind)
        if name in SHORT
    ]
    return table(["ROC-AUC", *(group for group, own in shown.items() if own)], rows)


def figure(run: str, kind: str) -> bytes:
    """Mean ROC-AUC of the short list of methods as a picture."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    shown = {n: a for n, a in reversed(methods(run, kind).items()) if n in SHORT}
    passes = {n: cost(run, n)[0] for n in shown}
    own = ("qipf_plus", "qipf_plus_novelty", "qipf", "qipf_default")
    image, axes = pyplot.subplots(figsize=(7.2, 0.34 * len(shown) + 0.9))
    colors = ["#d55e00" if n in own else "#0072b2" for n in shown]
    axes.hlines(range(len(shown)), 0.5, list(shown.values()), color=colors, lw=2, alpha=0.35)
    axes.scatter(list(shown.values()), range(len(shown)), c=colors, s=42, zorder=3)
    for row, (name, area) in enumerate(shown.items()):
        text = f"{area:.3f}" + (f", {passes[name]} passes" if passes[name] != "1" else "")
        axes.text(area + 0.006, row, text, va="center", fontsize=9)
    axes.set_yticks(range(len(shown)), [SHORT[n] for n in shown])
    axes.set(xlim=(0.5, max(shown.values()) + 0.075))
    axes.set_xlabel(f"ROC-AUC of detecting {WHAT[kind]} (0.5 is chance)")
    axes.spines[["top", "right"]].set_visible(False)
    content = io.BytesIO()
    image.savefig(content, format="png", dpi=130, bbox_inches="tight")
    pyplot.close(image)
    return content.getvalue()


def described(run: str) -> str:
    """Size of a run."""
    own = records(run)
    count = {key: len({r[key] for r in own}) for key in ("network", "method", "seed")}
    levels = len({(r["corruption"], r["level"]) for r in own if r["corruption"] != "none"})
    sets = {r["corruption"] for r in own} - {"none"}
    return (
        f"{len(own):,} results: {count['network']} networks, {len(sets)} corruptions or sets at "
        f"{levels} levels, "
        f"{count['method']} methods, {count['seed']} seeds."
    )


def section(run: str) -> str:
    """Everything about a run."""
    parts = [
        f"## Suite {run}",
        f"{described(run)} [What to know before comparing](results/{run}/README.md), "
        f"[interactive page](benchmark-{run}.html) (tables, severity, risk and coverage, cost).",
    ]
    for kind in kinds(run):
        parts += [
            f"### {run}: detecting {WHAT[kind]}",
            f"![Mean ROC-AUC of the methods of the suite {run}](benchmark-{run}-{kind}.png)",
            "By network:",
            by(run, kind, 0),
            {"corrupted": "By corruption:", "unseen": "By set:"}[kind],
            by(run, kind, 1),
            "All methods, mean over all cells (network × "
            f"{'corruption' if kind == 'corrupted' else 'set'}); times are those of the machine of "
            "the run, without the network's own forward pass:",
            means(run, kind),
        ]
    return "\n\n".join(parts)


def kinds(run: str) -> list[str]:
    """What a run measures: errors under corruption, the detection of unseen sets, or both."""
    return [kind for kind in WHAT if methods(run, kind)]


def filled(text: str) -> str:
    """A page with its marks replaced."""

    def part(found: re.Match[str]) -> str:
        what, run = found.groups()
        if what == "all":
            return "\n\n".join(map(section, runs()))
        if what == "short":
            return means(run, chosen=list(SHORT))
        return described(run)

    return MARK.sub(part, text)


def on_files(files: Files, config) -> Files:
    """Add each run's figure and interactive page."""
    from qipf.reporting.run.page import write_run_report

    for run in runs():
        for kind in kinds(run):
            uri = f"benchmark-{run}-{kind}.png"
            files.append(File.generated(config, uri, content=figure(run, kind)))
        place = ROOT / "build" / f"benchmark-{run}.html"
        place.parent.mkdir(exist_ok=True)
        newest = max(path.stat().st_mtime for path in (RESULTS / run).glob("results.jsonl*"))
        if not place.exists() or place.stat().st_mtime < newest:
            write_run_report([RESULTS / run], place)
        uri = f"benchmark-{run}.html"
        files.append(File.generated(config, uri, abs_src_path=str(place)))
    return files


def on_page_markdown(markdown: str, page, config, files) -> str:
    """Fill the pages."""
    return filled(markdown)
