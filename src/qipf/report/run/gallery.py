"""Sample images under rising corruption: what the network says, and how far it is to be trusted."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qipf.bench.corruptions import CORRUPTIONS
from qipf.bench.suites import CLEAN, CLEAN_LEVEL
from qipf.errors import QIPFError
from qipf.progress import progress
from qipf.report.charts import embedded
from qipf.report.page import paragraph
from qipf.report.run.run import IDENTITY, Run, Scores, level_text, of_one_seed, unit_of
from qipf.report.run.trained import Predictions, TrainedNetwork, checkpoint_of

#: Sample images, at most.
IMAGES = 12

Step = tuple[str, float]  # a corruption (or CLEAN) and its level


def gallery_html(run: Run, data: Path | str | None = None) -> str:
    """The gallery of all networks of a run; those that cannot be shown are told with the reason."""
    networks: dict[str, Any] = {}
    sprites: dict[str, list[str]] = {}
    notes: list[str] = []
    for name in progress(run.networks, "gallery"):
        trained = _opened(run, name, data)
        if isinstance(trained, TrainedNetwork):
            networks[name] = _network(run, trained, name, sprites)
        else:
            notes.append(paragraph(f"Left out for {name}: {trained}", style="note"))
    if not networks:
        return "".join(notes)
    intro = paragraph(
        "The first test image of each class. Turn the corruption up and watch the answers: "
        "percentiles tell how many of the clean test predictions the method trusts more than "
        "this one (100 = all of them). Choose an image for the details." + of_one_seed(run)
    )
    content = embedded({"networks": networks, "sprites": sprites})
    return f'{intro}<div class="gallery" data-gallery>{content}</div>{"".join(notes)}'


def _opened(run: Run, network: str, data: Path | str | None) -> TrainedNetwork | str:
    """The network; or why it cannot be shown, without paths, because pages are mailed."""
    if not checkpoint_of(run, network).is_file():
        return "the trained network is not in the run's folder."
    try:
        return TrainedNetwork(run, network, data)
    except QIPFError:
        return (
            "its test images were not found where this page was made (--data names their folder)."
        )


def _network(
    run: Run, trained: TrainedNetwork, name: str, sprites: dict[str, list[str]]
) -> dict[str, Any]:
    rows = first_of_each_class(trained.labels)
    clean = run.clean_scores(name)
    shown = {}
    for corruption in run.corruptions(name):
        if corruption not in CORRUPTIONS:
            continue  # the user's own, not registered here
        steps = steps_of(run, name, corruption)
        said = [trained.predict(*step, rows) for step in steps]
        key = f"{trained.dataset.name} {corruption} {[level for _, level in steps]}"
        if key not in sprites:  # networks on the same data share their pictures
            sprites[key] = [
                strip([each.images[i].numpy() for each in said]) for i in range(len(rows))
            ]
        shown[corruption] = {
            "levels": [level_text(*step) for step in steps],
            "start": steps.index((CLEAN, CLEAN_LEVEL)),
            "sprites": key,
            "predicted": [[int(each.predicted[i]) for each in said] for i in range(len(rows))],
            "percentiles": _percentiles(run, name, corruption, steps, rows, clean),
            "modes": _modes(trained, said),
        }
    return {
        "classes": list(trained.dataset.class_names),
        "truth": trained.labels[rows].tolist(),
        "orders": list(trained.field.orders) if trained.has_field else [],
        "corruptions": shown,
    }


def first_of_each_class(labels: NDArray) -> NDArray:
    """Rows of the first example of each class, in the order of the classes, at most IMAGES.

    >>> first_of_each_class(np.array([1, 1, 0, 2])).tolist()
    [2, 0, 3]
    """
    return np.unique(labels, return_index=True)[1][:IMAGES]


def steps_of(run: Run, network: str, corruption: str) -> list[Step]:
    """The levels in rising order, with the clean images where the corruption does nothing."""
    unmoved = IDENTITY.get(unit_of(corruption), -np.inf)
    steps: list[tuple[float, Step]] = [(unmoved, (CLEAN, CLEAN_LEVEL))]
    steps += [(level, (corruption, level)) for level in run.levels(network, corruption)]
    return [step for _, step in sorted(steps, key=lambda pair: pair[0])]


def _percentiles(
    run: Run,
    network: str,
    corruption: str,
    steps: Sequence[Step],
    rows: NDArray,
    clean: Scores | None,
) -> dict[str, list[list[int | None]]]:
    """By method, image and level; none where there is nothing to compare with."""
    if clean is None:
        return {}
    try:
        kept = run.scores(network, corruption)
    except QIPFError:
        return {}
    known: dict[Step, Mapping[str, NDArray]] = {(CLEAN, CLEAN_LEVEL): clean}
    known |= {(corruption, level): scores for level, (scores, _) in kept.items()}
    table: dict[str, list[list[int | None]]] = {}
    for method in run.methods:
        if method not in clean:
            continue
        columns = [_ranks(known.get(step, {}).get(method), rows, clean[method]) for step in steps]
        table[method] = [list(image) for image in zip(*columns, strict=True)]
    return table


def _ranks(scores: NDArray | None, rows: NDArray, clean: NDArray) -> list[int | None]:
    if scores is None:
        return [None] * len(rows)
    return [percentile(float(scores[row]), clean) for row in rows]


def percentile(value: float, reference: NDArray) -> int:
    """How many of a hundred of the reference lie below a value, ties counting half.

    >>> percentile(2.0, np.array([1.0, 2.0, 3.0, 4.0]))
    38
    """
    below, equal = np.mean(reference < value), np.mean(reference == value)
    return round(100 * float(below + equal / 2))


def _modes(trained: TrainedNetwork, said: Sequence[Predictions]) -> list[list[list[float]]]:
    """By image and level: the field's modes, in the order of its orders."""
    if not trained.has_field:
        return []
    # all at once: a call of the field costs more than the few rows of a level
    together = trained.field.modes(np.concatenate([each.logits for each in said]))
    modes = together.reshape(len(said), -1, together.shape[1]).swapaxes(0, 1)
    return [[[float(f"{v:.3g}") for v in step] for step in image] for image in modes]


def strip(images: Sequence[NDArray]) -> str:
    """Images (C, H, W) in [0, 1] side by side, as the address of a PNG that is its own content."""
    from PIL import Image

    joined = np.concatenate([np.rint(255 * image).astype(np.uint8) for image in images], axis=2)
    pixels = joined[0] if len(joined) == 1 else np.moveaxis(joined, 0, -1)
    stream = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(stream, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode("ascii")
