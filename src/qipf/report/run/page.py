"""A run as one page: what came out, in words, tables, curves and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qipf.bench.suites import PAPER_METHODS
from qipf.metrics.error_detection import HIGHER_IS_BETTER
from qipf.report.charts import Choice
from qipf.report.page import (
    Section,
    Value,
    checked_page,
    page_html,
    paragraph,
    table_html,
    views_html,
    write_page,
)
from qipf.report.run.gallery import gallery_html
from qipf.report.run.origin import origin_html
from qipf.report.run.rules import rules_html
from qipf.report.run.run import Run
from qipf.report.run.sections import cost_html, overall, risk_html, severity_html, tables_html
from qipf.report.run.watch import accuracy_html, timeline_html
from qipf.report.table_formats import TITLES
from qipf.report.tables import PAPER_METRICS, MetricTable, Summary, summarise


def write_run_report(
    folders: Path | str | Sequence[Path | str],
    output: Path | str,
    data: Path | str | None = None,
) -> Path:
    """Write the page of a run (of several folders read as one), and return its place.

    `data` is the folder of the datasets (see `qipf.bench.datasets.load`); without the run's own
    the page has no gallery, and says so.
    """
    output = checked_page(output)
    given = [folders] if isinstance(folders, (str, Path)) else folders
    return write_page(output, run_page(Run(*given), data))


def run_page(run: Run, data: Path | str | None = None) -> str:
    """The page of a run, as text."""
    summary = summarise(run.records, tuple(HIGHER_IS_BETTER), "all")
    sections = [
        Section("Summary", summary_html(run, summary)),
        Section("Tables", tables_html(summary)),
        Section("Severity curves", severity_html(run)),
        Section("Gallery", gallery_html(run, data)),
        Section("Risk and coverage", risk_html(run)),
        Section("Certified thresholds", rules_html(run)),
        Section("Shift timeline", timeline_html(run)),
        Section("Accuracy without labels", accuracy_html(run)),
        Section("Cost beside quality", cost_html(run, summary)),
        Section("How it was made", origin_html(run, summary)),
    ]
    lead = (
        "How well different ways to score a network's predictions tell the wrong ones from the "
        "right ones, as the test images are spoilt more and more."
    )
    return page_html(f"Trust in single predictions: {', '.join(run.networks)}", sections, lead)


def summary_html(run: Run, summary: Summary) -> str:
    """The findings in plain words, and how often each method is best."""
    texts = [*_networks_in_words(run, summary), *_findings(summary.tables[0])]
    blocks = [paragraph(text) for text in texts]
    groups = {"all methods": run.methods}
    if len(paper := [name for name in run.methods if name in PAPER_METHODS]) > 1:
        groups["the paper's methods"] = paper
    if summary.tables[0].contests:
        tables: dict[tuple[str, ...], str] = {}
        tables |= {(label,): _wins_table(run, names, label) for label, names in groups.items()}
        blocks.append(views_html(tables, [Choice("Compete", {name: name for name in groups})]))
    return "".join(blocks)


def _networks_in_words(run: Run, summary: Summary) -> list[str]:
    texts = []
    for line in summary.networks:
        known = (
            "" if line.accuracy is None else f", right on {line.accuracy:.1%} of them as they are"
        )
        levels = sum(len(run.levels(line.network, c)) for c in run.corruptions(line.network))
        spoilt = ", ".join(run.corruptions(line.network)) or "nothing"
        texts.append(
            f"{line.network} judged the {line.test_images:,} test images of {line.dataset}{known}. "
            f"They were then spoilt by {spoilt}: {levels} levels in all."
        )
    texts.append(
        f"{len(run.methods)} methods scored every prediction by how little it is to be trusted. "
        "All were asked to find the same errors: those of the one plain network."
    )
    return texts


def _findings(table: MetricTable) -> list[str]:
    """Who is best by the first metric, where qipf stands, and what plain entropy does."""
    if not table.contests:
        return ["Nothing competes here yet: fewer than two methods on a corruption."]
    title = TITLES[table.metric]
    most = max(table.wins.values())
    winners = [name for name, count in table.wins.items() if count == most]
    texts = [
        f"By {title}, averaged over the levels of a corruption, {in_words(winners)} "
        f"{'is' if len(winners) == 1 else 'are'} best most often: in {most} of "
        f"{table.contests} contests (a contest is a network under a corruption)"
        + ("." if len(winners) == 1 else " each.")
    ]
    means = overall(table)
    if "qipf" not in means:
        return texts
    ranked = sorted(means, key=lambda name: -means[name])
    place = ranked.index("qipf") + 1
    sentence = (
        f"qipf is best in {table.wins.get('qipf', 0)} of {table.contests}. Over all contests its "
        f"mean {title} is {means['qipf']:.3f}, place {place} of {len(ranked)}"
    )
    if place > 1:
        sentence += f"; the highest is that of {ranked[0]}, {means[ranked[0]]:.3f}"
    if "entropy" in means and ranked[0] != "entropy":
        sentence += f"; softmax entropy, which costs nothing, has {means['entropy']:.3f}"
    return [*texts, sentence + ". Guessing gives 0.5."]


def in_words(names: Sequence[str]) -> str:
    """Names as one says them.

    >>> in_words(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


def _wins_table(run: Run, methods: list[str], label: str) -> str:
    tables = summarise(run.records, PAPER_METRICS, methods).tables
    means = overall(tables[0])
    best = max(means.values(), default=None)
    rows: list[list[Value | str]] = []
    for method in methods:
        cells: list[Value | str] = [method]
        for table in tables:
            count = table.wins.get(method, 0)
            top = count == max(table.wins.values(), default=0) > 0
            cells.append(Value(str(count), count, top))
        mean = means.get(method)
        cells.append(Value("–") if mean is None else Value(f"{mean:.3f}", mean, mean == best))
        rows.append(cells)
    header = ["method", *(TITLES[table.metric] for table in tables), "mean ROC-AUC"]
    contests = tables[0].contests
    return table_html(
        header, rows, f"Contests won among {label}, of {contests}; ties count for all"
    )
