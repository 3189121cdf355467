"""The report page of a benchmark run."""

from collections.abc import Sequence
from pathlib import Path

from qipf.bench.datasets import UNSEEN_SETS
from qipf.bench.suites import CLEAN
from qipf.reporting.page import Section, checked_page, page_html, write_page
from qipf.reporting.run.decision_sections import accuracy_html, rules_html, timeline_html, timelines
from qipf.reporting.run.gallery import gallery_html
from qipf.reporting.run.glance import glance_html
from qipf.reporting.run.results import Run
from qipf.reporting.run.sections import (
    cost_html,
    methods_html,
    origin_html,
    risk_html,
    severity_html,
    summary_html,
    tables_html,
)
from qipf.reporting.tables import summarise


def write_run_report(
    folders: Path | str | Sequence[Path | str], output: Path | str, data: Path | str | None = None
) -> Path:
    """Write the page of a run (several folders are read as one) and return its path.

    `data` is the folder of the datasets (see `qipf.bench.datasets.load`); without the run's own
    dataset the page has no gallery, and says so.
    """
    output = checked_page(output)
    given = [folders] if isinstance(folders, (str, Path)) else folders
    return write_page(output, run_page(Run(*given), data))


#: What a page is about, by the inputs of its run.
ON_CORRUPTED = (
    "How well different uncertainty scores separate a network's wrong predictions from its right "
    "ones, as the test inputs are corrupted more and more."
)
ON_UNSEEN = "How well different scores tell inputs of other data sets from the clean test inputs."


def run_page(run: Run, data: Path | str | None = None) -> str:
    """The page of a run, as text: methods from the best to the worst, equal ones once."""
    table = summarise(run.records, ("roc_auc",), "all").tables[0]
    ranking = table.ranking()
    without_results = [name for name in run.methods if name not in ranking]
    shown = run.restricted([*table.distinct_ranking(), *without_results])
    summary = summarise(shown.records, run.metrics, shown.methods)
    lines = timelines(shown)
    sections = [
        Section("Summary", glance_html(shown, summary, run, lines)),
        Section("Methods compared", summary_html(shown, summary, table.equal_methods().values())),
        Section("Tables", tables_html(summary)),
        Section("Severity curves", severity_html(shown)),
        Section("Gallery", gallery_html(shown, data)),
        Section("Risk and coverage", risk_html(shown)),
        Section("Certified thresholds", rules_html(shown)),
        Section("Shift timeline", timeline_html(shown, lines)),
        Section("Accuracy without labels", accuracy_html(shown)),
        Section("Cost beside quality", cost_html(shown, summary)),
        Section("Methods explained", methods_html([*ranking, *without_results])),
        Section("How it was made", origin_html(run, summary)),
    ]
    empty = [section for section in sections if not section.body.strip()]
    shifts = {record["corruption"] for record in run.records} - {CLEAN}
    lead = ON_UNSEEN if shifts and shifts <= set(UNSEEN_SETS) else ON_CORRUPTED
    if empty:
        names = ", ".join(section.heading for section in empty)
        lead += f" The run lacks scores of single predictions or corruptions for: {names}."
    return page_html(
        f"Uncertainty of single predictions: {', '.join(run.networks)}",
        [section for section in sections if section not in empty],
        lead,
    )
