"""qipf figure: pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qipf.cli.options import Json, answer

app = typer.Typer(help="Draw figures.", no_args_is_help=True)

Folders = Annotated[
    list[Path],
    typer.Argument(
        help="A run's folder, as qipf bench run makes it; several, such as one for each seed, are "
        "read as one run."
    ),
]
Folder = Annotated[Path, typer.Argument(help="A run's folder, as qipf bench run makes it.")]
Network = Annotated[
    str | None, typer.Option(help="A network of the run; may be left out if there is but one.")
]
Corruption = Annotated[str, typer.Option(help="A corruption of the run; none is the clean images.")]
Level = Annotated[float, typer.Option(help="A level of the corruption that was measured.")]
Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        help="A method of the run; may be given again. The paper's if not given (all, if the run "
        "has none of them).",
    ),
]
Seed = Annotated[int | None, typer.Option(help="A seed of the run; the lowest if not given.")]
Dpi = Annotated[int, typer.Option(help="Dots per inch of a .png.", min=20, max=1200)]
TARGET = "The file to write: .png, .pdf or .svg."


@app.callback()
def _figure() -> None:
    """Draw figures."""


@app.command("sine")
def sine(
    output: Annotated[Path, typer.Option("--output", "-o", help=TARGET)] = Path("sine.png"),
    dpi: Dpi = 200,
    as_json: Json = False,
) -> None:
    """The field, potential and modes of a 50 Hz sine wave (the paper's Figure 2).

    Example: `qipf figure sine -o sine.png`
    """
    from qipf.report.figures.sine import draw_sine

    draw_sine(output, dpi)
    answer(as_json, {"output": output}, f"wrote {output}")


@app.command("severity")
def severity(
    run: Folders,
    network: Network = None,
    corruption: Annotated[
        list[str] | None,
        typer.Option(help="A corruption of the run; may be given again. All if not given."),
    ] = None,
    method: Methods = None,
    output: Annotated[Path, typer.Option("--output", "-o", help=TARGET)] = Path("severity.png"),
    dpi: Dpi = 200,
    as_json: Json = False,
) -> None:
    """Detection of errors against severity (the paper's Figures 3e to 3g, and 4).

    Example: `qipf figure severity runs/digits --corruption rotation -o severity.pdf`

    Example: `qipf figure severity runs/paper --network cifar10_vgg3 --corruption rotation
    --corruption shear --json`
    """
    from qipf.report.figures.severity import draw_severity

    curves = draw_severity(
        run, output, network=network, corruptions=corruption or (), methods=method, dpi=dpi
    )
    answer(as_json, {"output": output, "curves": curves}, f"wrote {output}")


@app.command("detection")
def detection(
    run: Folder,
    corruption: Corruption,
    level: Level,
    network: Network = None,
    method: Methods = None,
    seed: Seed = None,
    output: Annotated[Path, typer.Option("--output", "-o", help=TARGET)] = Path("detection.png"),
    dpi: Dpi = 200,
    as_json: Json = False,
) -> None:
    """Uncertainty of right and wrong predictions, ROC and PR curves (the paper's Figures 3b to 3d).

    Example: `qipf figure detection runs/digits --corruption rotation --level 30`

    Example: `qipf figure detection runs/digits --corruption zoom --level 2 --method qipf
    --method entropy`
    """
    from qipf.report.figures.detection import draw_detection

    found = draw_detection(
        run,
        output,
        network=network,
        corruption=corruption,
        level=level,
        methods=method,
        seed=seed,
        dpi=dpi,
    )
    answer(as_json, {"output": output, **found}, f"wrote {output}")


@app.command("field")
def field(
    run: Folder,
    corruption: Corruption,
    level: Level,
    network: Network = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder of the datasets; else the one QIPF_DATA names.")
    ] = None,
    seed: Seed = None,
    output: Annotated[Path, typer.Option("--output", "-o", help=TARGET)] = Path("field.png"),
    dpi: Dpi = 200,
    as_json: Json = False,
) -> None:
    """The field of a network's predictions, and where test predictions fall (Figure 3a).

    Example: `qipf figure field runs/digits --corruption rotation --level 30 -o field.svg`
    """
    from qipf.report.figures.field import draw_field

    drawn = draw_field(
        run,
        output,
        network=network,
        corruption=corruption,
        level=level,
        data=data,
        seed=seed,
        dpi=dpi,
    )
    told = {
        "output": output,
        "axis_variance_share": drawn.projection.share,
        "right": drawn.right,
        "wrong": drawn.wrong,
    }
    answer(as_json, told, f"wrote {output}")
