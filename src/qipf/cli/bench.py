"""qipf bench: the paper's comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qipf.cli.options import Json, answer

app = typer.Typer(help="Rerun the paper's comparison.", no_args_is_help=True)


@app.callback()
def _bench() -> None:
    """Rerun the paper's comparison."""


@app.command("run")
def run(
    suite: Annotated[str, typer.Option(help="digits, paper or fashion.")] = "digits",
    out: Annotated[
        Path | None, typer.Option(help="The run's folder; runs/SUITE if not given.")
    ] = None,
    device: Annotated[
        str, typer.Option(help="cpu, cuda, …; auto takes a GPU if there is one.")
    ] = "auto",
    jobs: Annotated[int, typer.Option(help="Processes that share the work.")] = 1,
    seed: Annotated[int | None, typer.Option(help="Instead of the suite's own.")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Do only these: network=…, corruption=…, level=… or method=…, several by comma. "
            "May be given again."
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder of the datasets; else the one QIPF_DATA names.")
    ] = None,
    keep_scores: Annotated[
        bool, typer.Option(help="Keep every method's uncertainties for figures.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Measure a suite; started again, go on where it stopped.

    Example: `qipf bench run --suite digits --out runs/digits`

    Example: `qipf bench run --suite paper --data ~/data --device cuda`

    Example: `qipf bench run --only method=qipf,entropy --only corruption=rotation`
    """
    from qipf.bench import runner
    from qipf.bench.results import RESULTS, read_results

    folder = out if out is not None else Path("runs") / suite
    try:
        runner.run(
            suite,
            folder,
            device=device,
            jobs=jobs,
            seed=seed,
            only=only or (),
            data=data,
            keep_scores=keep_scores,
        )
    except KeyboardInterrupt:
        typer.echo(
            f"\nStopped; what is finished is in {folder}. Run the same command again to go on.",
            err=True,
        )
        raise typer.Exit(130) from None
    count, file = len(read_results(folder)), folder / RESULTS
    text = f"{count} results in {file}\nSee them: qipf bench table {folder}"
    answer(as_json, {"output": file, "results": count}, text)


@app.command("table")
def table(
    folder: Annotated[
        list[Path],
        typer.Argument(
            help="A run's folder, or its results.jsonl; several, such as one for each seed, are "
            "read as one run."
        ),
    ],
    style: Annotated[
        str, typer.Option("--format", help="terminal, markdown, csv, latex or json.")
    ] = "terminal",
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="roc_auc, pr_auc, point_biserial, aurc or fpr95; may be given again. "
            "The paper's three if not given."
        ),
    ] = None,
    methods: Annotated[str, typer.Option(help="paper, all, or names by comma.")] = "paper",
) -> None:
    """Show a run's results as the paper's tables, with the paper's numbers beside ours.

    Example: `qipf bench table runs/digits`

    Example: `qipf bench table runs/paper --methods all --metric roc_auc --format markdown`

    Example: `qipf bench table runs/seed0 runs/seed1 runs/seed2 --format json`
    """
    from qipf.report.run.run import Run
    from qipf.report.table_formats import render
    from qipf.report.tables import PAPER_METRICS, summarise

    chosen = methods if methods in ("paper", "all") else [m.strip() for m in methods.split(",")]
    summary = summarise(Run(*folder).records, metric or PAPER_METRICS, chosen)
    typer.echo(render(summary, style), nl=False)
