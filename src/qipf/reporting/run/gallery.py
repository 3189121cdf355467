"""Sample images at rising levels of corruption, with predictions and uncertainties."""

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray
from scipy.stats import percentileofscore

from qipf.bench.corruptions import CORRUPTIONS
from qipf.bench.methods import Batch
from qipf.bench.suites import CLEAN, CLEAN_LEVEL
from qipf.errors import QIPFError, missing_extra
from qipf.progress import progress
from qipf.reporting.page import render
from qipf.reporting.run.decisions import DECIDING, first_kept
from qipf.reporting.run.results import Run, identity_of, level_text
from qipf.reporting.run.trained import TrainedNetwork

#: Sample images, at most.
IMAGES = 12

Step = tuple[str, float]  # a corruption (or CLEAN) and its level


def gallery_html(run: Run, data: Path | str | None = None) -> Markup:
    """The gallery of all networks of a run, and why networks are left out of it."""
    networks: dict[str, Any] = {}
    sprites: dict[str, list[str]] = {}
    left_out: list[str] = []
    for name in progress(run.networks, "gallery"):
        try:
            trained = TrainedNetwork(run, name, data)
        except QIPFError:  # whose text may name paths, which pages sent to others must not
            left_out.append(name)
            continue
        networks[name] = _network(run, trained, name, sprites)
    lead = first_kept((*DECIDING, *run.methods), run.methods)
    shown = {"networks": networks, "sprites": sprites, "lead": lead}
    return render(
        "run.html",
        "gallery",
        data=shown if networks else None,
        left_out=left_out,
        seed_note=run.seed_note,
    )


def _network(
    run: Run, trained: TrainedNetwork, name: str, sprites: dict[str, list[str]]
) -> dict[str, Any]:
    rows = np.unique(trained.labels, return_index=True)[1][:IMAGES]  # the first of each class
    shown = {}
    for corruption in run.corruptions(name):
        if corruption not in CORRUPTIONS:
            continue  # a user's own corruption that is not registered here
        steps = steps_of(run, name, corruption)
        batches = [trained.predict(*step, rows) for step in steps]
        key = f"{trained.dataset.name} {corruption} {[level for _, level in steps]}"
        if key not in sprites:  # networks on the same data share their images
            sprites[key] = [
                strip([each.images[i].numpy() for each in batches]) for i in range(len(rows))
            ]
        shown[corruption] = {
            "levels": [level_text(*step) for step in steps],
            "start": steps.index((CLEAN, CLEAN_LEVEL)),
            "sprites": key,
            "predicted": [[int(each.predicted[i]) for each in batches] for i in range(len(rows))],
            "percentiles": _percentiles(run, name, corruption, steps, rows),
            "modes": _modes(trained, batches),
        }
    return {
        "classes": list(trained.dataset.class_names),
        "truth": trained.labels[rows].tolist(),
        "orders": list(trained.field.orders) if trained.has_field else [],
        "corruptions": shown,
    }


def steps_of(run: Run, network: str, corruption: str) -> list[Step]:
    """Levels in ascending order, with the clean images where the corruption changes nothing."""
    identity = identity_of(corruption)
    place = -np.inf if identity is None else identity
    steps: list[tuple[float, Step]] = [(place, (CLEAN, CLEAN_LEVEL))]
    steps += [(level, (corruption, level)) for level in run.levels(network, corruption)]
    return [step for _, step in sorted(steps, key=lambda pair: pair[0])]


def _percentiles(
    run: Run, network: str, corruption: str, steps: Sequence[Step], rows: NDArray
) -> dict[str, list[list[int | None]]]:
    """Percentiles among the clean scores (ties count half), by method, image and level.

    None where no score was kept.
    """
    clean = run.clean_scores(network)
    kept = run.scores(network, corruption)
    if clean is None or not kept:
        return {}
    unknown = np.full(len(clean[1]), np.nan)
    known = {(CLEAN, CLEAN_LEVEL): clean[0]}
    known |= {(corruption, level): scores for level, (scores, _) in kept.items()}
    table: dict[str, list[list[int | None]]] = {}
    for method in (name for name in run.methods if name in clean[0]):
        scores = [known.get(step, {}).get(method, unknown)[rows] for step in steps]
        shares = percentileofscore(clean[0][method], np.stack(scores, axis=1), "mean")
        table[method] = [[None if np.isnan(p) else round(p) for p in image] for image in shares]
    return table


def _modes(trained: TrainedNetwork, batches: Sequence[Batch]) -> list[list[list[float]]]:
    """The modes of the field, by image and level."""
    if not trained.has_field:
        return []
    # one call for all levels: the cost of a call exceeds that of its few rows
    together = trained.field.modes(np.concatenate([each.logits.numpy() for each in batches]))
    modes = together.reshape(len(batches), -1, together.shape[1]).swapaxes(0, 1)
    return [[[float(f"{v:.3g}") for v in step] for step in image] for image in modes]


def strip(images: Sequence[NDArray]) -> str:
    """Images (C, H, W) in [0, 1] side by side, as the data URL of a PNG."""
    try:
        from PIL import Image
    except ImportError as error:
        raise missing_extra("Images on a page need Pillow", "bench") from error

    joined = np.concatenate([np.rint(255 * image).astype(np.uint8) for image in images], axis=2)
    pixels = joined[0] if len(joined) == 1 else np.moveaxis(joined, 0, -1)
    stream = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(stream, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode("ascii")
