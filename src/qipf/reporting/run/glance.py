"""The first section of a run's page: how good, what can be accepted, when drift is noticed."""

from dataclasses import dataclass
from statistics import fmean, median

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from qipf.bench.datasets import UNSEEN_SETS
from qipf.bench.suites import CLEAN
from qipf.metrics.error_detection import ranked
from qipf.reporting.glossary import explanation
from qipf.reporting.page import render
from qipf.reporting.rule_evaluation import RuleEvaluation, split_evaluation
from qipf.reporting.run.decision_sections import Timelines, clean_of
from qipf.reporting.run.decisions import DECIDING, RISKS, Timeline, first_kept
from qipf.reporting.run.results import Run, level_text
from qipf.reporting.tables import MetricTable, NetworkLine, Summary

#: Limits on the error rate of accepted predictions, and the score that the best is compared with.
LIMITS, COMMON = RISKS[:2], "softmax"


@dataclass(frozen=True)
class Detection:
    """How well one method finds the errors of a network, by mean ROC-AUC."""

    method: str
    roc_auc: float
    clean: float | None  # ROC-AUC on clean inputs
    others: dict[str, float]  # mean ROC-AUC of well-known methods

    @property
    def explanation(self) -> str:
        """What the method is."""
        return explanation(self.method)


@dataclass(frozen=True)
class Acceptance:
    """What one method accepts at a limit on the error rate of accepted predictions."""

    share: float  # of all clean predictions: the least uncertain with so few errors
    certified: RuleEvaluation


@dataclass(frozen=True)
class Glance:
    """The first facts about a network."""

    line: NetworkLine
    corrupted_accuracy: float | None
    levels: int  # that it is the mean of
    corruptions: list[str]
    unseen: bool  # whether out-of-distribution inputs were detected instead of errors
    detection: Detection | None
    methods: int
    accepted: dict[str, dict[float, Acceptance]]  # by method and limit
    streams: dict[str, Timeline]  # by corruption

    @property
    def delay(self) -> float | None:
        """Median number of corrupted predictions until the alarm, over the true alarms."""
        delays = [s.delay for s in self.streams.values() if s.delay and not s.false_alarm]
        return median(delays) if delays else None


def glance_html(run: Run, summary: Summary, measured: Run, lines: Timelines) -> Markup:
    """The section; `measured` has all methods, also those that rank alike."""
    methods: dict[str, set[str]] = {}
    for record in measured.records:
        methods.setdefault(record["network"], set()).add(record["method"])
    found = {
        (line.network,): glance(run, line, summary.tables[0], len(methods[line.network]), lines)
        for line in summary.networks
    }
    return render("run.html", "glance", found=found, level_text=level_text)


def glance(
    run: Run, line: NetworkLine, table: MetricTable, methods: int, lines: Timelines
) -> Glance:
    """The numbers of one network; `table` is that of the ROC-AUC."""
    own = [record for record in run.records if record["network"] == line.network]
    corrupted = {
        (record["corruption"], record["level"], record["seed"]): float(record["accuracy"])
        for record in own
        if record["corruption"] not in (CLEAN, *UNSEEN_SETS)
    }
    clean = clean_of(run, line.network)
    deciding = first_kept(DECIDING, clean[0]) if clean else None
    return Glance(
        line,
        fmean(corrupted.values()) if corrupted else None,
        len({key[:2] for key in corrupted}),
        run.corruptions(line.network),
        not corrupted,
        detection(table, line.network),
        methods,
        {
            name: {limit: acceptance(clean[0][name], clean[1], limit) for limit in LIMITS}
            for name in (deciding, COMMON)
            if clean and deciding and name in clean[0]
        },
        {key[1]: stream for key, stream in lines.items() if key[0] == line.network},
    )


def acceptance(uncertainty: NDArray, wrong: NDArray, limit: float) -> Acceptance:
    """The largest share of least uncertain predictions within a limit, and the certified rule."""
    within = np.flatnonzero(ranked(uncertainty, wrong).expected_risk <= limit)
    share = float(within.max() + 1) / len(wrong) if len(within) else 0.0
    return Acceptance(share, split_evaluation(uncertainty, wrong, limit))


def detection(table: MetricTable, network: str) -> Detection | None:
    """The best method by its mean ROC-AUC over the corruptions of a network."""
    means = table.means(network)
    if len(means) < 2:
        return None
    best = table.ranking(network)[0]
    clean = next((r.ours for r in table.rows if r.network == network and not r.counts), {})
    names = ("qipf_plus", "entropy", "qipf")
    others = {name: means[name] for name in names if name in means and name != best}
    return Detection(best, means[best], clean[best].mean if best in clean else None, others)
