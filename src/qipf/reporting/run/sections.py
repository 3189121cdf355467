"""Sections of a run's page about its results: summary, tables, severity, risk, cost, origin."""

from collections.abc import Collection, Iterable, Sequence
from statistics import median

from markupsafe import Markup

from qipf.bench.methods import ONE_PASS, base_name
from qipf.bench.suites import CLEAN, PAPER_METHODS, SUITES
from qipf.metrics.error_detection import TITLES
from qipf.reporting.charts import Axis, Chart, Charts, Series, chart_spec, risk_coverage_chart
from qipf.reporting.glossary import explanation
from qipf.reporting.page import render
from qipf.reporting.run.charts import severity_chart
from qipf.reporting.run.results import Run, condition_text
from qipf.reporting.tables import METRIC_TITLES, PAPER_METRICS, Summary, summarise

#: Methods whose curves are visible at first, beside the best one.
SHOWN_FIRST = (
    "qipf_plus", "entropy", "energy", "ensemble_entropy", "ensemble_log_odds", "mc_dropout", "qipf",
)  # fmt: skip


def summary_html(run: Run, summary: Summary, equal: Collection[Sequence[str]] = ()) -> Markup:
    """The main findings, and how often each method is best.

    `equal` are groups of methods that rank predictions alike; the first of each is shown.
    """
    measured = len(run.methods) + sum(len(names) - 1 for names in equal)
    groups = {"all methods": run.methods}
    if len(paper := _presets(run).get("the paper's methods", [])) > 1:
        groups["the paper's methods"] = paper
    won = {
        (label,): summarise(run.records, PAPER_METRICS, names).tables
        for label, names in groups.items()
    }
    return render(
        "run.html",
        "summary",
        run=run,
        summary=summary,
        titles=TITLES,
        groups=won,
        equal=equal,
        measured=measured,
    )


def tables_html(summary: Summary) -> Markup:
    """A table for each network and metric: methods in rows, corruptions in columns."""
    tables = {
        (line.network, table.metric): table for line in summary.networks for table in summary.tables
    }
    return render("run.html", "tables", tables=tables, titles=METRIC_TITLES, notes=summary.notes)


def _presets(run: Run) -> dict[str, list[str]]:
    """Buttons that show a group of methods."""
    groups = {
        "the paper's methods": [name for name in run.methods if name in PAPER_METHODS],
        "one pass": [name for name in run.methods if name in ONE_PASS],
        "all": run.methods,
        "none": [],
    }
    return {label: names for label, names in groups.items() if names or label == "none"}


def severity_html(run: Run) -> Markup:
    """Every metric against severity."""
    charts: Charts = {
        (network, corruption, metric): severity_chart(run, network, corruption, metric, run.methods)
        for network in run.networks
        for corruption in run.corruptions(network)
        for metric in run.metrics
    }
    spec = charts and chart_spec(
        charts,
        ("Network", "Corruption", "Metric"),
        texts=METRIC_TITLES,
        shown=(*SHOWN_FIRST, *run.methods[:1]),
        presets=_presets(run),
    )
    return render("run.html", "severity", spec=spec, seeds=len(run.seeds))


def risk_html(run: Run) -> Markup:
    """Risk-coverage curves at every level."""
    charts: Charts = {}
    for network in run.networks:
        for corruption in (*run.corruptions(network), CLEAN):
            for level, (scores, wrong) in run.scores(network, corruption).items():
                condition = condition_text(corruption, level)
                ordered = {name: scores[name] for name in run.methods if name in scores}
                title = f"{network}, {condition}"
                charts[network, condition] = risk_coverage_chart(ordered, wrong, title)
    shown = (*SHOWN_FIRST, *run.methods[:1])
    spec = charts and chart_spec(charts, ("Network", "Images"), shown=shown, presets=_presets(run))
    return render("run.html", "risk", spec=spec, seed_note=run.seed_note)


def cost_html(run: Run, summary: Summary) -> Markup:
    """Milliseconds and forward passes, with the mean ROC-AUC and PR-AUC."""
    roc, pr = (
        next(table for table in summary.tables if table.metric == metric)
        for metric in ("roc_auc", "pr_auc")
    )
    charts: Charts = {}
    costs: dict[tuple[str, ...], list[tuple[str, int, float, float | None, float | None]]] = {}
    for network in run.networks:
        roc_means, pr_means = roc.means(network), pr.means(network)
        costs[network,] = []
        for method in run.methods:
            own = [r for r in run.records if (r["network"], r["method"]) == (network, method)]
            if own:
                time = median(float(record["milliseconds_per_prediction"]) for record in own)
                means = roc_means.get(method), pr_means.get(method)
                costs[network,].append((method, int(own[0]["forward_passes"]), time, *means))
        charts[network,] = Chart(
            network,
            Axis("milliseconds per prediction", log=True),
            Axis("mean ROC-AUC"),
            [Series(method, [x], [y]) for method, _, x, y, _ in costs[network,] if y is not None],
            kind="points",
        )
    return render("run.html", "cost", spec=chart_spec(charts, ["Network"]), costs=costs)


def methods_html(methods: Iterable[str]) -> Markup:
    """What each method is."""
    found = {name: explanation(name) or "A method of your own." for name in methods}
    return render("blocks.html", "facts", pairs=found)


def origin_html(run: Run, summary: Summary) -> Markup:
    """Commands, versions, seeds and settings of the run."""
    folder = run.folder.resolve().name
    commands = [*commands_of(run, folder), f"qipf report runs/{folder} -o report.html"]
    return render(
        "run.html", "origin", commands=commands, run=run, summary=summary, base_name=base_name
    )


def commands_of(run: Run, folder: str) -> list[str]:
    """The commands that produce such results."""
    commands = []
    made = {(int(r["seed"]), str(r.get("suite", "YOURS"))) for r in run.records}
    for seed, suite in sorted(made):
        if suite in SUITES:
            option = "" if seed == SUITES[suite].seed else f" --seed {seed}"
            commands.append(f"qipf bench run --suite {suite}{option} --out runs/{folder}")
        else:  # a suite of the user's own, run from Python
            commands.append(f'qipf.bench.runner.run({suite}, "runs/{folder}", seed={seed})')
    return commands
