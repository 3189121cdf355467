"""qipf figure: draw the paper's figures."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from qipf.cli.options import Data, Json, Runs, print_result

app = typer.Typer(help="Draw the paper's figures.", no_args_is_help=True)

Run = Annotated[Path, Argument(help="Folder of a run of qipf bench run.")]
Network = Annotated[str | None, Option(help="A network of the run; needed if it has several.")]
Corruption = Annotated[str, Option(help="A corruption of the run; none: clean images.")]
Level = Annotated[float, Option(help="A measured level of the corruption.")]
Methods = Annotated[
    list[str] | None,
    Option(
        "--method",
        help="A method of the run; can be repeated. Default: the paper's methods, or all if the "
        "run has none of them.",
    ),
]
Seed = Annotated[int | None, Option(help="A seed of the run. Default: the lowest.")]
Normalization = Annotated[str, Option(help="Constant of the kernel: standard, density or peak.")]
Output = Annotated[Path, Option("--output", "-o", help="File to write: .png, .pdf or .svg.")]
Dpi = Annotated[int, Option(help="Dots per inch of a .png.", min=20, max=1200)]


@app.command("sine")
def sine(
    output: Output = Path("sine.png"),
    normalization: Normalization = "peak",
    dpi: Dpi = 200,
    as_json: Json = False,
) -> None:
    """Draw the field, potential and modes of a 50 Hz sine wave (the paper's Figure 2).

    The modes are those of orders 2, 4, …, 16 with softening 0.1.

    Example: `qipf figure sine -o sine.png`
    """
    from qipf.reporting.figures.sine import draw_sine

    draw_sine(output, dpi, normalization)
    print_result(as_json, {"output": output}, f"wrote {output}")


@app.command("severity")
def severity(
    run: Annotated[list[Path], Runs],
    network: Network = None,
    corruption: Annotated[
        list[str] | None, Option(help="A corruption of the run; can be repeated. Default: all.")
    ] = None,
    method: Methods = None,
    output: Output = Path("severity.png"),
    dpi: Dpi = 200,
    as_json: Json = False,
) -> None:
    """Draw error detection against severity (the paper's Figures 3e to 3g, and 4).

    Example: `qipf figure severity runs/digits --corruption rotation -o severity.pdf`

    Example: `qipf figure severity runs/paper --network cifar10_vgg3 --corruption rotation
    --corruption shear --json`
    """
    from qipf.reporting.figures.severity import draw_severity

    curves = draw_severity(
        run, output, network=network, corruptions=corruption or (), methods=method, dpi=dpi
    )
    print_result(as_json, {"output": output, "curves": curves}, f"wrote {output}")


@app.command("detection")
def detection(
    run: Run,
    corruption: Corruption,
    level: Level,
    network: Network = None,
    method: Methods = None,
    seed: Seed = None,
    output: Output = Path("detection.png"),
    dpi: Dpi = 200,
    as_json: Json = False,
) -> None:
    """Draw uncertainty of right and wrong predictions, ROC and PR curves (Figures 3b to 3d).

    Example: `qipf figure detection runs/digits --corruption rotation --level 30`

    Example: `qipf figure detection runs/digits --corruption zoom --level 2 --method qipf
    --method entropy`
    """
    from qipf.reporting.figures.detection import draw_detection

    curves = draw_detection(
        run,
        output,
        network=network,
        corruption=corruption,
        level=level,
        methods=method,
        seed=seed,
        dpi=dpi,
    )
    print_result(as_json, {"output": output, **curves}, f"wrote {output}")


@app.command("field")
def field(
    run: Run,
    corruption: Corruption,
    level: Level,
    network: Network = None,
    data: Data = None,
    seed: Seed = None,
    normalization: Normalization = "peak",
    output: Output = Path("field.png"),
    dpi: Dpi = 200,
    as_json: Json = False,
) -> None:
    """Draw the field of a network's predictions, and the test predictions in it (Figure 3a).

    Example: `qipf figure field runs/digits --corruption rotation --level 30 -o field.svg`
    """
    from qipf.reporting.figures.field import draw_field

    drawn = draw_field(
        run,
        output,
        network=network,
        corruption=corruption,
        level=level,
        data=data,
        seed=seed,
        normalization=normalization,
        dpi=dpi,
    )
    result = {
        "output": output,
        "axis_variance_share": float(drawn.projection.explained_variance_ratio_[0]),
        "right": drawn.right,
        "wrong": drawn.wrong,
    }
    print_result(as_json, result, f"wrote {output}")
