"""Results of a run for the terminal: a line for each method, the best first."""

from qipf.plots.style import MISSING
from qipf.reporting.table_formats import Grid, Text, terminal
from qipf.reporting.tables import METRIC_TITLES, MetricTable, Summary


def leaderboard(summary: Summary, width: int | None = None) -> str:
    """One table for each metric, with methods in rows; `width` is the terminal's, in characters.

    Columns are the corruptions of the network, or the networks if there are several. Of methods
    with equal results the first is shown; a note names the others.
    """
    networks = [
        f"{line.network} on {line.dataset}: {line.test_images:,} test inputs"
        + ("" if line.accuracy is None else f", {line.accuracy:.1%} of the clean ones right")
        for line in summary.networks
    ]
    grids = [board_grid(table) for table in summary.tables]
    return terminal(grids, [*networks, *summary.board_notes], width)


def board_grid(table: MetricTable) -> Grid:
    """A table's methods by their place among all methods, with the mean and its parts."""
    ranking = table.distinct_ranking()
    means = table.means()
    shown = [name for name in ranking if name in table.methods]
    networks = list(dict.fromkeys(row.network for row in table.rows))
    columns = {"mean": _means(table, shown, None)}
    if len(networks) > 1:
        columns |= {name: _means(table, shown, name) for name in networks}
    else:
        for row in table.rows:
            columns[row.corruption if row.counts else "clean"] = [
                Text(f"{row.ours[name].mean:.3f}{row.mark(name)}", row.ours[name].best)
                if name in row.ours
                else Text(MISSING)
                for name in shown
            ]
    places = [str(ranking.index(name) + 1) if name in means else MISSING for name in shown]
    names = [Text(name, name in means and name == ranking[0]) for name in shown]
    rows = zip(map(Text, places), names, *columns.values(), strict=True)
    header = ["", "method", *columns]
    return Grid(METRIC_TITLES[table.metric], header, [list(row) for row in rows], 2)


def _means(table: MetricTable, shown: list[str], network: str | None) -> list[Text]:
    means, best = table.means(network), next(iter(table.ranking(network)), None)
    rows = [row for row in table.rows if row.counts and network in (None, row.network)]
    return [
        Text(f"{means[name]:.3f}{max(row.mark(name) for row in rows)}", name == best)
        if name in means
        else Text(MISSING)
        for name in shown
    ]
