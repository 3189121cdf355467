"""The report page of a benchmark run."""

from collections.abc import Sequence
from pathlib import Path

from qipf.reporting.page import Section, checked_page, page_html, write_page
from qipf.reporting.run.decision_sections import accuracy_html, rules_html, timeline_html
from qipf.reporting.run.gallery import gallery_html
from qipf.reporting.run.results import Run
from qipf.reporting.run.sections import (
    cost_html,
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


def run_page(run: Run, data: Path | str | None = None) -> str:
    """The page of a run, as text."""
    summary = summarise(run.records, run.metrics, "all")
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
        "How well different uncertainty scores separate a network's wrong predictions from its "
        "right ones, as the test images are corrupted more and more."
    )
    return page_html(
        f"Uncertainty of single predictions: {', '.join(run.networks)}", sections, lead
    )
