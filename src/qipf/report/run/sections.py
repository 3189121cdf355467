"""The sections of a run's page that show its numbers: tables, severity, risk, cost."""

from __future__ import annotations

from statistics import fmean, median

from qipf.bench.methods import ONE_PASS
from qipf.bench.suites import CLEAN, PAPER_METHODS
from qipf.errors import QIPFError
from qipf.metrics.error_detection import HIGHER_IS_BETTER
from qipf.report.charts import Axis, Chart, Choice, Series, chart_html, risk_coverage_chart
from qipf.report.page import Value, bullets, paragraph, table_html, views_html
from qipf.report.run.run import Run, chance, level_text, of_one_seed, unit_of
from qipf.report.style import CHANCE
from qipf.report.table_formats import MISSING, TITLES
from qipf.report.tables import MetricTable, Row, Summary, mark

#: Methods whose curves are shown before the reader chooses.
SHOWN_FIRST = ("qipf", "mc_dropout", "svi", "ensemble", "entropy", "energy", "ensemble_entropy")

#: What chance gives, in words.
_CHANCE = {
    "roc_auc": "Chance gives 0.5.",
    "pr_auc": "Chance gives the error rate.",
    "point_biserial": "Chance gives 0.",
    "aurc": "Chance gives the error rate.",
    "fpr95": "Chance gives 0.95.",
}


def metric_title(metric: str) -> str:
    """A metric with its direction."""
    return f"{TITLES[metric]} ({'higher' if HIGHER_IS_BETTER[metric] else 'lower'} is better)"


def tables_html(summary: Summary) -> str:
    """A sortable table for each network and metric: methods down, corruptions across."""
    networks = {line.network: line.network for line in summary.networks}
    metrics = {table.metric: metric_title(table.metric) for table in summary.tables}
    views: dict[tuple[str, ...], str] = {
        (network, table.metric): _metric_table(table, network)
        for network in networks
        for table in summary.tables
    }
    choices = [Choice("Network", networks), Choice("Metric", metrics)]
    # methods stand in rows here, so it is columns that have a best
    notes = [note.replace("best of each row", "best of each column") for note in summary.notes]
    return views_html(views, choices) + bullets(notes)


def _metric_table(table: MetricTable, network: str) -> str:
    own = [row for row in table.rows if row.network == network]
    names = ["clean" if row.corruption == CLEAN else row.corruption for row in own]
    rows: list[list[Value | str]] = [
        [method, *(_cell(row, method) for row in own)] for method in table.methods
    ]
    caption = f"{network}: {metric_title(table.metric)}. {_CHANCE[table.metric]}"
    return table_html(["method", *names], rows, caption)


def _cell(row: Row, method: str) -> Value:
    paper = row.paper.get(method)
    note = "" if paper is None else f"paper {paper.mean:.2f} ± {paper.std:.2f}"
    cell = row.ours.get(method)
    if cell is None:
        return Value(MISSING, note=note)
    spread = f" ± {cell.std:.3f}" if row.levels > 1 else ""
    return Value(f"{cell.mean:.3f}{spread}{mark(row, cell)}", cell.mean, cell.best, note)


def presets(run: Run) -> dict[str, list[str]]:
    """Buttons that switch a whole group of methods on."""
    groups = {
        "the paper's methods": [name for name in run.methods if name in PAPER_METHODS],
        "one pass": [name for name in run.methods if name in ONE_PASS],
        "all": run.methods,
        "none": [],
    }
    return {label: names for label, names in groups.items() if names or label == "none"}


def severity_html(run: Run) -> str:
    """Every metric against severity."""
    charts: dict[tuple[str, ...], Chart] = {}
    corruptions: dict[str, str] = {}
    for network in run.networks:
        for corruption in run.corruptions(network):
            corruptions[corruption] = corruption
            for metric in HIGHER_IS_BETTER:
                chart = _severity_chart(run, network, corruption, metric)
                charts[network, corruption, metric] = chart
    if not charts:
        return paragraph("Only clean images were judged: there is no severity to turn up.")
    choices = [
        Choice("Network", {name: name for name in run.networks}),
        Choice("Corruption", corruptions),
        Choice("Metric", {metric: metric_title(metric) for metric in HIGHER_IS_BETTER}),
    ]
    return chart_html(
        charts,
        alt="Each line is a method; the same numbers, averaged, stand in the tables above.",
        caption="Each point is one level; the clean images stand where the corruption does "
        "nothing. Levels without errors, or with nothing else, have no point. Hover, tap or use "
        "the arrow keys in the chart to read the values."
        + (f" Each value is the mean of {len(run.seeds)} seeds." if len(run.seeds) > 1 else ""),
        choices=choices,
        shown=SHOWN_FIRST,
        presets=presets(run),
    )


def _severity_chart(run: Run, network: str, corruption: str, metric: str) -> Chart:
    errors = run.error_rate(network, corruption)
    unit = unit_of(corruption)
    series = []
    for method in run.methods:
        curve = run.curve(network, corruption, method, metric)
        if curve is not None:
            series.append(Series(method, curve.levels, curve.values))
    guessed = chance(metric, errors.values)
    series.append(Series("chance", errors.levels, guessed, CHANCE, fixed=True))
    label = f"{corruption} ({unit})" if unit else corruption
    # half and double are equally far from 1
    x = Axis(label, ticks=errors.levels, log=unit == "factor")
    return Chart(f"{network}, {corruption}", x, Axis(TITLES[metric]), series)


def risk_html(run: Run) -> str:
    """Error rate among the predictions kept, for every level."""
    charts: dict[tuple[str, ...], Chart] = {}
    spoilt: dict[str, str] = {}
    for network in run.networks:
        for corruption in (*run.corruptions(network), CLEAN):
            try:
                kept = run.scores(network, corruption)
            except QIPFError:
                continue  # not measured, or not kept
            for level, (scores, wrong) in kept.items():
                where = level_text(corruption, level)
                words = where if corruption == CLEAN else f"{corruption}, {where}"
                ordered = {name: scores[name] for name in run.methods if name in scores}
                chart = risk_coverage_chart(ordered, wrong, f"{network}, {words}")
                charts[network, f"{corruption} {level:g}"] = chart
                spoilt[f"{corruption} {level:g}"] = words
    if not charts:
        return paragraph(
            "The run kept no uncertainties (--no-keep-scores), which these curves are made of."
        )
    intro = (
        "Keep only the predictions that a method trusts most, and count the errors among them: "
        "the lower the curve, the better the method knows what to hold back."
    )
    return paragraph(intro + of_one_seed(run)) + chart_html(
        charts,
        alt="Error rate among the most trusted predictions, against the share that is kept; the "
        "tables give the area under each curve as AURC.",
        choices=[
            Choice("Network", {name: name for name in run.networks}),
            Choice("Images", spoilt),
        ],
        shown=SHOWN_FIRST,
        presets=presets(run),
    )


def cost_html(run: Run, summary: Summary) -> str:
    """Milliseconds and forward passes beside the mean ROC-AUC and PR-AUC."""
    views: dict[tuple[str, ...], str] = {}
    charts: dict[tuple[str, ...], Chart] = {}
    for network in run.networks:
        lines = [_cost(run, summary, network, method) for method in run.methods]
        measured = [line for line in lines if line is not None]
        charts[network,] = Chart(
            network,
            Axis("milliseconds per prediction", log=True),
            Axis("mean ROC-AUC"),
            [Series(name, [ms], [roc]) for name, _, ms, roc, _ in measured if roc is not None],
            kind="points",
        )
        header = ["method", "forward passes", "ms per prediction", "mean ROC-AUC", "mean PR-AUC"]
        rows: list[list[Value | str]] = [
            [name, Value(f"{passes:,}", passes), Value(f"{ms:.3g}", ms), _mean(roc), _mean(pr)]
            for name, passes, ms, roc, pr in measured
        ]
        views[network,] = table_html(header, rows, f"{network}: cost and quality")
    choice = Choice("Network", {name: name for name in run.networks})
    note = (
        "Milliseconds are what a method adds once the network has made its prediction, all test "
        "images of a level scored together; the median over the levels. The network's own pass "
        "is not in it, and other machines and batch sizes give other times."
    )
    chart = chart_html(
        charts,
        alt="Each method at its cost and its mean ROC-AUC over the corruptions; the table below "
        "gives the numbers.",
        choices=[choice],
    )
    return paragraph(note) + chart + views_html(views, [choice])


def _cost(
    run: Run, summary: Summary, network: str, method: str
) -> tuple[str, int, float, float | None, float | None] | None:
    own = [r for r in run.records if (r["network"], r["method"]) == (network, method)]
    if not own:
        return None
    milliseconds = median(float(record["milliseconds_per_prediction"]) for record in own)
    tables = {table.metric: table for table in summary.tables}
    means = [overall(tables[name], network).get(method) for name in ("roc_auc", "pr_auc")]
    return method, int(own[0]["forward_passes"]), milliseconds, means[0], means[1]


def overall(table: MetricTable, network: str | None = None) -> dict[str, float]:
    """Each method's mean over all contests, or a network's; who misses some has none."""
    rows = [r for r in table.rows if r.counts and r.ours and network in (None, r.network)]
    return {
        method: fmean(row.ours[method].mean for row in rows)
        for method in table.methods
        if rows and all(method in row.ours for row in rows)
    }


def _mean(value: float | None) -> Value:
    return Value(MISSING) if value is None else Value(f"{value:.3f}", value)
