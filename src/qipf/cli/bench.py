"""qipf bench: rerun the paper's comparison."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from qipf.cli.options import Data, Json, Runs, print_result
from qipf.validation.parameters import LARGEST_SEED

app = typer.Typer(help="Rerun the paper's comparison.", no_args_is_help=True)


@app.command("run")
def run(
    suite: Annotated[str, Option(help="digits, paper, fashion, modern or ood.")] = "digits",
    out: Annotated[Path | None, Option(help="Folder of the run. Default: runs/SUITE.")] = None,
    device: Annotated[str, Option(help="cpu, cuda, …, or auto: a GPU if there is one.")] = "auto",
    jobs: Annotated[int, Option(help="Number of processes.")] = 1,
    seed: Annotated[
        int | None, Option(help="Seed. Default: the suite's own.", min=0, max=LARGEST_SEED)
    ] = None,
    only: Annotated[
        list[str] | None,
        Option(
            help="Run only these: network=…, corruption=…, level=… or method=…, with values "
            "separated by commas. Can be repeated."
        ),
    ] = None,
    data: Data = None,
    keep_scores: Annotated[
        bool, Option(help="Keep the uncertainties of every method, for figures.")
    ] = True,
    tf32: Annotated[
        bool, Option("--tf32", help="On a GPU, convolutions in TensorFloat-32: faster, less exact.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run a benchmark suite; run again, it continues where it stopped.

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
            tf32=tf32,
        )
    except KeyboardInterrupt:
        text = f"\nStopped; finished results are in {folder}. Run the same command to continue."
        typer.echo(text, err=True)
        raise typer.Exit(130) from None
    count, file = len(read_results(folder)), folder / RESULTS
    text = f"{count} results in {file}\nShow them: qipf bench table {folder}"
    print_result(as_json, {"output": file, "results": count}, text)


@app.command("table")
def table(
    folder: Annotated[list[Path], Runs],
    style: Annotated[
        str, Option("--format", help="terminal, markdown, csv, latex or json.")
    ] = "terminal",
    metric: Annotated[
        list[str] | None,
        Option(
            help="roc_auc, pr_auc, pr_auc_trapezoid, point_biserial, aurc, augrc, naurc or fpr95; "
            "can be repeated. Default: roc_auc, or the paper's three."
        ),
    ] = None,
    methods: Annotated[
        str,
        Option(
            help="best: the five best and well-known ones; paper: those of the paper, in its "
            "tables with its numbers; all; or names separated by commas."
        ),
    ] = "best",
) -> None:
    """Print the results of a run, the best methods first, or as the paper's tables.

    In the terminal, best and all print a line for each method. Names, paper, and every other format
    print a column for each method and a line for each corruption and network.

    Example: `qipf bench table runs/digits`

    Example: `qipf bench table runs/digits --methods paper`

    Example: `qipf bench table runs/paper --methods all --metric roc_auc --format markdown`

    Example: `qipf bench table runs/seed0 runs/seed1 runs/seed2 --format json`
    """
    from qipf.reporting.leaderboard import leaderboard
    from qipf.reporting.run.results import Run
    from qipf.reporting.table_formats import render
    from qipf.reporting.tables import PAPER_METRICS, summarise

    groups = ("best", "paper", "all")
    chosen = methods if methods in groups else [m.strip() for m in methods.split(",")]
    board = style == "terminal" and methods in ("best", "all")
    metrics = metric or (PAPER_METRICS[:1] if board else PAPER_METRICS)
    summary = summarise(Run(*folder).records, metrics, chosen)
    typer.echo(leaderboard(summary) if board else render(summary, style), nl=False)
