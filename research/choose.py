"""What the left-out families take for each ingredient of the recipe.

    python research/choose.py research/results      # recipes.py does it too, when it is done

The rule. A recipe's merit is the mean of ROC-AUC and PR-AUC of error detection, over all families,
each left out of what the recipe learns from, and over all networks. Merits that differ by 0.002 or
less are equal. Of each ingredient's alternatives, the rest as shipped, the cheapest of those equal
to the best is taken; `INGREDIENTS` lists them from the cheapest to the dearest for a user: in a
prediction fewer layers, widths, posteriors, dimensions, centres; in the fit fewer sets to learn by.
Alternatives that cost a user the same (`COST_THE_SAME`) are taken by merit alone.

Only chosen-by.jsonl is read. Its families and their strengths are themselves among what is chosen,
so the merits are also computed by the first five families alone and by all families at fixed
strengths; these are reported, but do not count.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from qipf.io.atomic import atomic_write

CHOSEN_BY, CHOSEN = "chosen-by.jsonl", "chosen.json"

#: Merits that differ by so much or less are equal.
EQUAL = 0.002

#: Families before two photometric ones, a warp and a coarse one were added.
FIRST_FIVE = ("noise", "drop", "blur", "hole", "shift")

AS_SHIPPED = "as shipped"

#: Ingredient -> alternative -> recipe, from the cheapest to the dearest.
INGREDIENTS: dict[str, dict[str, str]] = {
    "families": {
        "the first five": "five families",
        "nine": AS_SHIPPED,
        "nine, and a blend of two images": "with a blend",
    },
    "strengths": {
        "none: clean images": "weights from clean images",
        "97 % of the accuracy left": "mild perturbations only",
        "fixed amounts": "fixed amounts",
        "90, 70 and 50 % of the accuracy left": AS_SHIPPED,
    },
    "families and strengths": {
        "the first five and a blend, fixed amounts": "as at first",
        "nine, by the accuracy left": AS_SHIPPED,
    },
    "layers": {"the last": "last layer only", "those of 5 %": AS_SHIPPED, "all": "all layers kept"},
    "widths a layer": {"one": "one width a layer", "four": AS_SHIPPED},
    "softmax": {"without": "no softmax", "with": AS_SHIPPED},
    "weights": {"equal": "equal weights", "learned": AS_SHIPPED},
    "score": {"log_odds_of_error": AS_SHIPPED, "entropy": "entropy of the mixture"},
    "metric": {"not whitened": "not whitened", "whitened": AS_SHIPPED},
    "dimensions": {"64": "64 dimensions", "128": AS_SHIPPED},
    "centres": {
        "coreset of 2,000": "coreset of 2,000",
        "6,000": "6,000 centres",
        "coreset of 6,000": "coreset of 6,000",
        "20,000": "20,000 centres",
        "all, up to 60,000": AS_SHIPPED,
    },
}

#: Equal weights save no fit: which layers and widths there are is learned in the same way.
COST_THE_SAME = ("weights", "score")

Line = dict[str, Any]
Areas = list[list[float]]  # ROC-AUC and PR-AUC, by family

#: Fields of a line that are no family.
HEAD = ("network", "seed", "draw", "recipe", "options", "mean", "fixed")

#: What an evaluation uses of a line; the first one decides.
EVALUATIONS: dict[str, Callable[[Line], Areas]] = {
    "all families": lambda line: [areas for name, areas in line.items() if name not in HEAD],
    "the first five families": lambda line: [line[name] for name in FIRST_FIVE],
    "all families at fixed amounts": lambda line: list(line.get("fixed", {}).values()),
}


def read(path: Path) -> dict[str, dict[tuple[object, ...], Line]]:
    """The last line of every recipe on every network, seed and draw of tuning images."""
    found: dict[str, dict[tuple[object, ...], Line]] = {}
    for text in path.read_text().splitlines():
        line = json.loads(text)
        where = line["network"], line["seed"], line.get("draw", 1)
        found.setdefault(line["recipe"], {})[where] = line
    return found


def taken(merits: dict[str, float], equal: float = EQUAL) -> str:
    """The first, and cheapest, of those equal to the best.

    >>> taken({"cheap": 0.7, "fair": 0.8985, "dear": 0.9})
    'fair'
    """
    best = max(merits.values())
    return next(name for name, merit in merits.items() if best - merit <= equal)


def _merit(areas: Iterable[Areas]) -> float:
    """NaN where an evaluation has nothing to use."""
    found = [mean for one in areas for mean in one]
    return float(np.mean(found)) if found else float("nan")


def decided(lines: dict[str, dict[tuple[object, ...], Line]], ingredient: str) -> dict[str, Any]:
    """What is taken for an ingredient, and by how much; None where a recipe is missing."""
    alternatives = INGREDIENTS[ingredient]
    shipped = next(name for name, recipe in alternatives.items() if recipe == AS_SHIPPED)
    missing = [recipe for recipe in alternatives.values() if recipe not in lines]
    shared = set.intersection(*(set(lines.get(recipe, ())) for recipe in alternatives.values()))
    if missing or not shared:
        return {"taken": None, "shipped": shipped, "missing": missing}
    equal = 0.0 if ingredient in COST_THE_SAME else EQUAL
    choices, merits = {}, {}
    for evaluation, areas in EVALUATIONS.items():
        own = {
            name: _merit(areas(lines[recipe][where]) for where in sorted(shared, key=str))
            for name, recipe in alternatives.items()
        }
        if not np.isnan(list(own.values())).any():
            choices[evaluation], merits[evaluation] = taken(own, equal), own
    first, *others = EVALUATIONS
    return {
        "taken": choices[first],
        "shipped": shipped,
        "recipe": alternatives[choices[first]],
        "as shipped": choices[first] == shipped,
        "judged on": sorted(map(list, shared), key=str),
        "merits": merits[first],
        "other judges": {
            evaluation: {"taken": choices[evaluation], "merits": merits[evaluation]}
            for evaluation in others
            if evaluation in choices
        },
    }


def choose(folder: Path) -> dict[str, Any]:
    """Decide on all ingredients by a folder's chosen-by.jsonl; print it and write chosen.json."""
    lines = read(folder / CHOSEN_BY)
    found = {ingredient: decided(lines, ingredient) for ingredient in INGREDIENTS}
    for ingredient, choice in found.items():
        if choice["taken"] is None:
            missing = ", ".join(choice["missing"])
            print(f"{ingredient}: undecided, not tried: {missing or 'together'}")
            continue
        merits = ", ".join(f"{name} {merit:.4f}" for name, merit in choice["merits"].items())
        note = "" if choice["as shipped"] else f" INSTEAD OF {choice['shipped']}"
        print(f"{ingredient}: {choice['taken']}{note} ({merits})")
        for evaluation, other in choice["other judges"].items():
            if other["taken"] != choice["taken"]:
                print(f"    {evaluation} would take: {other['taken']}")
    result = {
        "rule": f"cheapest alternative at most {EQUAL} below the best mean of both areas; the best "
        f"where all cost the same ({', '.join(COST_THE_SAME)})",
        "not as shipped": [
            name for name, choice in found.items() if choice.get("as shipped") is False
        ],
        "ingredients": found,
    }
    with atomic_write(folder / CHOSEN) as file:
        file.write((json.dumps(result, indent=1, ensure_ascii=False) + "\n").encode())
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help=f"with {CHOSEN_BY}")
    choose(parser.parse_args().folder)


if __name__ == "__main__":
    main()
