"""Which recipe of layers, centres, widths and weights detects errors best under shift.

    python research/recipes.py --run runs/paper --data DATA -o OUT [--networks … --seed 0]

Chosen by: errors on perturbed training images of a family that neither metrics nor weights have
seen (each family left out in turn), ROC-AUC and PR-AUC averaged. The benchmark's corruptions are
evaluated into a file of their own, for the report and as ablations. Writes OUT/chosen-by.jsonl and
OUT/report-only.jsonl, one line a network and recipe, and by the first of them OUT/chosen.json: what
the rule in `choose.py` takes. `--chosen OUT/chosen.json` tries that, all of it together.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from choose import AS_SHIPPED, CHOSEN_BY, FIRST_FIVE, choose
from fields import Fields, Plan
from studies import BLEND, FAMILIES, FIXED, KEPT, Seen, Study, set_name, study_of
from torch import Tensor

from qipf.bench.scoring import NetworkBench, Setting
from qipf.bench.suites import find
from qipf.errors import QIPFInputError, unknown_name
from qipf.layered.mixture import likeliest_weights, log_odds_of_error, weighted_mean
from qipf.layered.mixture_fit import LEAST, WIDTHS
from qipf.layered.selection import SHRINKAGES
from qipf.metrics.error_detection import pr_auc, roc_auc


@dataclass(frozen=True)
class Recipe:
    """What is tried. The defaults are those of `LayeredQIPF`."""

    name: str
    dims: int = 128
    centers: int = 60_000
    condensed: int | None = None
    shrinkages: tuple[float, ...] = SHRINKAGES
    last_only: bool = False
    widths: tuple[float, ...] = WIDTHS
    least: float = LEAST
    softmax: bool = True
    weights: str = "em"  # or "equal"
    score: str = "log_odds_of_error"  # or "entropy"
    families: tuple[str, ...] = FAMILIES
    kept: tuple[float, ...] = (0.9, 0.7, 0.5)  # none, and none fixed: from clean images alone
    fixed: tuple[float, ...] = ()

    @property
    def plan(self) -> Plan:
        """What the layers' fields are made of."""
        return Plan(self.dims, self.centers, self.condensed, self.shrinkages)

    def sets(self, families: Iterable[str]) -> list[str]:
        """Names of the sets that are learned from."""
        return ["clean", *(name for f in families for name in _sets(f, self.kept, self.fixed))]


def _sets(family: str, kept: Iterable[float], fixed: Iterable[float]) -> list[str]:
    return [
        *(set_name(family, share) for share in kept),
        *(set_name(family, t, fixed=True) for t in fixed),
    ]


RECIPES = (
    Recipe(AS_SHIPPED),
    Recipe("all layers kept", least=0.0),
    Recipe("one width a layer", widths=(1.0,)),
    Recipe("last layer only", last_only=True),
    Recipe("no softmax", softmax=False),
    Recipe("equal weights", weights="equal"),
    Recipe("entropy of the mixture", score="entropy"),
    Recipe("weights from clean images", kept=()),
    Recipe("mild perturbations only", kept=(0.97,)),
    Recipe("five families", families=FIRST_FIVE),
    Recipe("with a blend", families=(*FAMILIES, BLEND)),
    Recipe("fixed amounts", kept=(), fixed=FIXED),
    Recipe("as at first", families=(*FIRST_FIVE, BLEND), kept=(), fixed=FIXED),
    Recipe("not whitened", shrinkages=(1.0,)),
    Recipe("64 dimensions", dims=64),
    Recipe("20,000 centres", centers=20_000),
    Recipe("6,000 centres", centers=6000),
    Recipe("coreset of 6,000", condensed=6000),
    Recipe("coreset of 2,000", condensed=2000),
)


class Learned:
    """Which metrics, layers and widths, and their weights, from clean data and some families."""

    def __init__(
        self, study: Study, fields: Fields, recipe: Recipe, families: Sequence[str]
    ) -> None:
        self._fields, self._plan, self._score = fields, recipe.plan, recipe.score
        names = recipe.sets(families)
        self._choices = [fields.chosen(site, recipe.plan, names) for site in study.sites]
        shown = [self._posteriors(name) for name in names]
        truth = study.tuning.labels[:, None, None]
        told = torch.cat([o.gather(2, truth.expand(-1, o.shape[1], 1))[..., 0] for o in shown])
        sites = study.sites[-1:] if recipe.last_only else study.sites
        layers = [study.sites.index(site) for site in sites]
        numbers = [WIDTHS.index(width) for width in recipe.widths]
        first = [0] if recipe.softmax else []
        every = [1 + layer * len(WIDTHS) + number for layer in layers for number in numbers]
        found = likeliest_weights(told[:, [*first, *every]])[len(first) :]
        best = found.view(len(layers), len(numbers)).argmax(1).tolist()
        columns = [every[i * len(numbers) + number] for i, number in enumerate(best)]
        found = likeliest_weights(told[:, [*first, *columns]])[len(first) :]
        least = min(recipe.least, float(found.max()))
        columns = [c for c, weight in zip(columns, found.tolist(), strict=True) if weight >= least]
        self.columns = [*first, *columns]
        self.weights = likeliest_weights(told[:, self.columns])
        if recipe.weights == "equal":
            self.weights = torch.full_like(self.weights, 1 / len(self.columns))

    def score(self, name: str, predicted: Tensor) -> Tensor:  # (n,)
        """The log_odds_of_error at the network's own class, or the entropy of the mixture."""
        mixture = weighted_mean(self._posteriors(name)[:, self.columns], self.weights)
        if self._score == "entropy":
            return torch.special.entr(mixture).sum(1)
        return log_odds_of_error(mixture, predicted)

    def _posteriors(self, name: str) -> Tensor:  # (n, 1 + layers · widths, classes)
        return self._fields.posteriors(self._plan, self._choices, name).double()


def detection(
    learned: Learned | None, name: str, seen: Seen, labels: Tensor
) -> tuple[float, float]:
    """ROC-AUC and PR-AUC of a recipe, or of the softmax's entropy."""
    logits = seen[0]
    predicted = logits.argmax(1)
    wrong = (predicted != labels).cpu().numpy()
    if learned is None:
        score = torch.special.entr(logits.double().softmax(1)).sum(1)
    else:
        score = learned.score(name, predicted)
    doubt = score.cpu().numpy()
    return roc_auc(doubt, wrong), pr_auc(doubt, wrong)


def left_out(study: Study, fields: Fields, recipe: Recipe | None) -> dict[str, Any]:
    """Detection in each family, learned from the others; entropy's where there is no recipe.

    By what accuracy is left, which counts, and under "fixed" at fixed amounts, for comparison. A
    set without errors, or with nothing else, tells nothing.
    """
    found: dict[str, list[float]] = {}
    fixed: dict[str, list[float]] = {}
    for family in FAMILIES:
        learned = None
        if recipe is not None:
            others = [other for other in recipe.families if other != family]
            learned = Learned(study, fields, recipe, others)
        judges = (found, _sets(family, KEPT, ())), (fixed, _sets(family, (), FIXED))
        for judged, names in judges:
            told = [
                detection(learned, name, study.tuning.sets[name], study.tuning.labels)
                for name in names
            ]
            told = [areas for areas in told if np.isfinite(areas).all()]
            if told:
                judged[family] = np.mean(told, axis=0).tolist()
    mean = np.mean(list(found.values()), axis=0).tolist()
    return {"mean": mean, **found, "fixed": fixed}


def reported(study: Study, fields: Fields, recipe: Recipe | None) -> dict[str, object]:
    """Detection under each corruption of the benchmark, learned from all families."""
    learned = None
    if recipe is not None:
        learned = Learned(study, fields, recipe, recipe.families)
    told: dict[str, list[tuple[float, float]]] = {}
    for name, seen in study.test.items():
        found = detection(learned, name, seen, study.test_labels)
        told.setdefault(name.split("/")[0], []).append(found)
    cells: dict[str, object] = {c: np.nanmean(v, axis=0).tolist() for c, v in told.items()}
    if learned is not None:
        names = ["softmax", *(f"{site} {width:.2f}" for site in study.sites for width in WIDTHS)]
        weights = zip((names[c] for c in learned.columns), learned.weights.tolist(), strict=True)
        cells["weights"] = dict(weights)
    return cells


def as_chosen(path: Path) -> Recipe:
    """What the rule took, ingredient by ingredient, as one recipe."""
    known = {recipe.name: recipe for recipe in RECIPES}
    changed: dict[str, Any] = {}
    for name, ingredient in json.loads(path.read_text())["ingredients"].items():
        if ingredient["taken"] is None:
            raise QIPFInputError(
                f"{path} does not tell which {name} to take. Try all recipes first."
            )
        taken = known[ingredient["recipe"]]
        changed |= {k: v for k, v in vars(taken).items() if v != getattr(RECIPES[0], k)}
    return replace(RECIPES[0], **{**changed, "name": "as chosen"})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--networks", nargs="+")
    parser.add_argument("--recipes", nargs="+")
    parser.add_argument("--chosen", type=Path, help="a chosen.json, tried as a recipe of its own")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draw", type=int, default=1, help="of the tuning images")
    parser.add_argument("--centers", type=int, default=60_000)
    parser.add_argument("--tuning", type=int, default=1000)
    parser.add_argument("--test", type=int, default=2000)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    recipes: dict[str, Recipe | None] = {"softmax entropy": None, **{r.name: r for r in RECIPES}}
    if options.chosen:
        recipes["as chosen"] = as_chosen(options.chosen)
    for name in options.recipes or ():
        if name not in recipes:
            raise unknown_name("recipe", name, recipes)
    suite = replace(find("paper"), seed=options.seed)
    options.output.mkdir(parents=True, exist_ok=True)
    chosen_by, report_only = (
        (options.output / name).open("a") for name in (CHOSEN_BY, "report-only.jsonl")
    )
    for network in options.networks or [n.name for n in suite.networks]:
        bench = NetworkBench(Setting(suite, options.run, options.device, options.data), network)
        study = study_of(bench, options.centers, options.tuning, options.test, options.draw)
        fields = Fields(study)
        for name, recipe in recipes.items():
            if options.recipes and name not in options.recipes:
                continue
            head: dict[str, Any] = {"network": network, "seed": options.seed}
            head |= {"draw": options.draw, "recipe": name}
            if recipe is not None:
                head["options"] = asdict(recipe)
            line = {**head, **left_out(study, fields, recipe)}
            print(network, name, *np.round(line["mean"], 4), flush=True)
            chosen_by.write(json.dumps(line) + "\n")
            report_only.write(json.dumps({**head, **reported(study, fields, recipe)}) + "\n")
            chosen_by.flush()
            report_only.flush()
    choose(options.output)


if __name__ == "__main__":
    main()
