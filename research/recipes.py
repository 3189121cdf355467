"""Which recipe of layers, centres, widths and weights detects errors best under shift.

    python research/recipes.py --run runs/paper --data DATA -o OUT [--networks … --seed 0]

Chosen by: errors on disturbed training images of a family that the weights have not seen (each
family left out in turn), ROC-AUC and PR-AUC averaged. The benchmark's corruptions are evaluated
into a file of their own, for the report and as ablations. Writes OUT/chosen-by.jsonl and
OUT/report-only.jsonl, one line a network and recipe.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from studies import CLASSES, FAMILIES, Seen, Study, study_of
from torch import Tensor

from qipf.bench.evaluation import pr_auc, roc_auc
from qipf.bench.scoring import Contender, Setting
from qipf.bench.suites import find
from qipf.layered.choosing import SHRINKAGES, chosen_metric, condensed_field
from qipf.layered.class_field import ClassField
from qipf.layered.gathering import LABELS
from qipf.layered.mixture import gap, likeliest_weights, mixed
from qipf.layered.taps import Tap
from qipf.layered.weighing import LEAST, WIDTHS

#: Families before two photometric ones, a warp and a coarse one were added.
FIRST_FIVE = ("noise", "drop", "blur", "hole", "shift")


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
    score: str = "gap"  # or "entropy"
    families: tuple[str, ...] = FAMILIES
    kept: tuple[float, ...] = (0.9, 0.7, 0.5)  # none: weights from clean images alone

    @property
    def fields(self) -> tuple[object, ...]:
        """What the layers' fields depend on."""
        return self.dims, self.centers, self.condensed, self.shrinkages, self.families, self.kept

    def sets(self, families: Sequence[str]) -> list[str]:
        """Names of the sets that are learned from."""
        return ["clean", *(f"{family}/{share}" for family in families for share in self.kept)]


RECIPES = (
    Recipe("as shipped"),
    Recipe("all layers kept", least=0.0),
    Recipe("one width a layer", widths=(1.0,)),
    Recipe("last layer only", last_only=True),
    Recipe("no softmax", softmax=False),
    Recipe("equal weights", weights="equal"),
    Recipe("entropy of the mixture", score="entropy"),
    Recipe("weights from clean images", kept=()),
    Recipe("mild disturbances only", kept=(0.97,)),
    Recipe("five families", families=FIRST_FIVE),
    Recipe("not whitened", shrinkages=(1.0,)),
    Recipe("64 dimensions", dims=64),
    Recipe("20,000 centres", centers=20_000),
    Recipe("6,000 centres", centers=6000),
    Recipe("coreset of 6,000", condensed=6000),
    Recipe("coreset of 2,000", condensed=2000),
)


class Opinions:
    """What the softmax, first, and every layer at every width think of all sets."""

    def __init__(self, study: Study, recipe: Recipe) -> None:
        self.parts: dict[str, Tensor] = {}  # set -> (n, 1 + layers · widths, classes) float32
        fields = [_field(study, tap, recipe) for tap in study.taps]
        for name, (logits, rows) in {**study.tuning.sets, **study.test}.items():
            opinions = [logits.double().softmax(1)]
            for tap, field in zip(study.taps, fields, strict=True):
                widths = [width * field.bandwidth for width in WIDTHS]
                opinions += [judged.posterior for judged in field.judged(rows[tap], widths)]
            self.parts[name] = torch.stack([o.float() for o in opinions], 1)


def _field(study: Study, tap: Tap, recipe: Recipe) -> ClassField:
    values = study.centers.values
    device = study.tuning.labels.device
    rows = values[tap][: recipe.centers].to(device)
    labels = values[LABELS][: recipe.centers].to(device)
    sets = {name: study.tuning.sets[name][1][tap] for name in recipe.sets(recipe.families)}
    found = chosen_metric(
        rows, labels, sets, study.tuning.labels, CLASSES, recipe.dims, recipe.shrinkages
    )
    assert found is not None
    metric, width = found
    examples = torch.from_numpy(study.centers.places[: recipe.centers])
    field = ClassField(metric, metric(rows), labels, CLASSES, width, examples)
    return field if recipe.condensed is None else condensed_field(field, recipe.condensed)


class Learned:
    """Which layers at which widths, and their weights, from clean data and the families named."""

    def __init__(
        self, study: Study, opinions: Opinions, recipe: Recipe, families: Sequence[str]
    ) -> None:
        self._opinions, self._score = opinions, recipe.score
        shown = [opinions.parts[name].double() for name in recipe.sets(families)]
        truth = study.tuning.labels[:, None, None]
        told = torch.cat([o.gather(2, truth.expand(-1, o.shape[1], 1))[..., 0] for o in shown])
        taps = study.taps[-1:] if recipe.last_only else study.taps
        layers = [study.taps.index(tap) for tap in taps]
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
        """The gap at the network's own class, or the entropy of the mixture."""
        opinions = self._opinions.parts[name][:, self.columns].double()
        mixture = mixed(opinions, self.weights)
        if self._score == "entropy":
            return torch.special.entr(mixture).sum(1)
        return gap(mixture, predicted)


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


def left_out(
    study: Study, opinions: Opinions | None, recipe: Recipe | None
) -> dict[str, list[float]]:
    """Detection in each family, learned from the others; entropy's where there is no recipe."""
    found = {}
    for family in FAMILIES:
        learned = None
        if recipe is not None and opinions is not None:
            others = [other for other in recipe.families if other != family]
            learned = Learned(study, opinions, recipe, others)
        told = [
            detection(learned, name, seen, study.tuning.labels)
            for name, seen in study.tuning.sets.items()
            if name.split("/")[0] == family
        ]
        found[family] = np.nanmean(told, axis=0).tolist()
    return found


def reported(study: Study, opinions: Opinions | None, recipe: Recipe | None) -> dict[str, object]:
    """Detection under each corruption of the benchmark, learned from all families."""
    learned = None
    if recipe is not None and opinions is not None:
        learned = Learned(study, opinions, recipe, recipe.families)
    told: dict[str, list[tuple[float, float]]] = {}
    for name, seen in study.test.items():
        found = detection(learned, name, seen, study.test_labels)
        told.setdefault(name.split("/")[0], []).append(found)
    cells: dict[str, object] = {c: np.nanmean(v, axis=0).tolist() for c, v in told.items()}
    if learned is not None:
        names = ["softmax", *(f"{tap} {width:.2f}" for tap in study.taps for width in WIDTHS)]
        weights = zip((names[c] for c in learned.columns), learned.weights.tolist(), strict=True)
        cells["weights"] = dict(weights)
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--networks", nargs="+")
    parser.add_argument("--recipes", nargs="+")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--centers", type=int, default=60_000)
    parser.add_argument("--tuning", type=int, default=1000)
    parser.add_argument("--test", type=int, default=2000)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    suite = replace(find("paper"), seed=options.seed)
    options.output.mkdir(parents=True, exist_ok=True)
    chosen_by, report_only = (
        (options.output / f"{name}.jsonl").open("a") for name in ("chosen-by", "report-only")
    )
    for network in options.networks or [n.name for n in suite.networks]:
        setting = Setting(suite, options.run, options.device, options.data)
        study = study_of(Contender(setting, network), options.centers, options.tuning, options.test)
        made: dict[object, Opinions] = {}
        for recipe in (None, *RECIPES):
            name = "softmax entropy" if recipe is None else recipe.name
            if options.recipes and name not in options.recipes:
                continue
            opinions = None
            if recipe is not None:
                if recipe.fields not in made:  # beside those as shipped, only the last are kept
                    made = {k: v for k, v in made.items() if k == RECIPES[0].fields}
                    made[recipe.fields] = Opinions(study, recipe)
                opinions = made[recipe.fields]
            head: dict[str, object] = {"network": network, "seed": options.seed, "recipe": name}
            found = left_out(study, opinions, recipe)
            mean = np.nanmean(list(found.values()), axis=0)
            print(f"{network} {name}: {mean[0]:.4f} {mean[1]:.4f}", flush=True)
            if recipe is not None:
                head["options"] = asdict(recipe)
            chosen_by.write(json.dumps({**head, "mean": mean.tolist(), **found}) + "\n")
            report_only.write(json.dumps({**head, **reported(study, opinions, recipe)}) + "\n")
            chosen_by.flush()
            report_only.flush()


if __name__ == "__main__":
    main()
