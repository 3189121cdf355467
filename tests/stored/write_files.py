"""Writes the fixtures of the present format versions: one file of each kind, and its scores.

python -m tests.stored.write_files

Run once for each new format version, and remove the files of the one before.
"""

import json
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import nn

import qipf
from qipf.io.schema import FORMAT_VERSION
from qipf.monitor import state as monitor_state
from tests.conftest import make_logits

HERE = Path(__file__).parent


def stored(kind: str) -> Path:
    """The file of this kind; its scores have the same name and another suffix."""
    version = monitor_state.FORMAT_VERSION if kind == "monitor" else FORMAT_VERSION
    return HERE / f"{kind}-v{version}.qipf"


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 10)


def layered_data() -> tuple[torch.Tensor, torch.Tensor]:
    """Three overlapping classes in four dimensions."""
    random = torch.Generator().manual_seed(1)
    labels = torch.randint(3, (300,), generator=random)
    return 2 * torch.eye(4)[labels] + torch.randn(300, 4, generator=random), labels


def layered_network() -> nn.Module:
    """A network of exact weights, whose last layer is partial to the first class."""
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3), nn.Tanh(), nn.Linear(3, 3))
    weights = (
        [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [1, -1, 0, 0], [0, 1, -1, 0], [-1, 0, 1, 0]],
        [[0.5, 0, 0, 0.25, 0, -0.25], [0, 0.5, 0, -0.25, 0.25, 0], [0, 0, 0.5, 0, -0.25, 0.25]],
        [[2, 1, 0.5], [-1, 1.5, 0], [-1, 0, 1]],
    )
    with torch.no_grad():
        for layer, values in zip(net[::2], weights, strict=True):
            layer.weight.copy_(torch.tensor(values))
            layer.bias.zero_()
    return net


def layered(reduction: str = "random") -> qipf.LayeredQIPF:
    """Fields of two layers."""
    inputs, labels = layered_data()
    model = qipf.LayeredQIPF(layered_network(), max_centers=40, max_tuning=50, reduction=reduction)
    return model.fit(zip(inputs.split(60), labels.split(60), strict=True))


def calibrated_layers() -> qipf.LayeredQIPF:
    """Fields of two layers, with a calibration set and a rule that accepts a part of it."""
    model = layered()
    random = torch.Generator().manual_seed(2)
    labels = torch.randint(3, (400,), generator=random)
    inputs = 2 * torch.eye(4)[labels] + torch.randn(400, 4, generator=random)
    model.calibrate([(inputs, labels)])
    model.accept_rule(max_risk=0.2)
    return model


def write_layered() -> None:
    """Layered models, of examples and of weighted centres, and their scores of a few inputs."""
    queries = torch.randn(20, 4, generator=torch.Generator().manual_seed(5))
    for name, model in (("layers", calibrated_layers()), ("condensed", layered("coreset"))):
        path = stored(name)
        qipf.save(model, path)
        answers = {"queries": queries.tolist(), **scores_of(model(queries))}
        if model.rule_ is not None:
            answers["p_values"] = model.p_values(queries).tolist()
            answers["accepted"] = model.accepts(queries).tolist()
        path.with_suffix(".json").write_text(json.dumps(answers))


def scores_of(found: qipf.Prediction) -> dict[str, list[float]]:
    """The scores of layered models, as JSON values."""
    names = ("uncertainty", "novelty", "p_error")
    return {name: getattr(found, name).tolist() for name in names}


def feature_arrays(count: int, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """A layer that knows the class of three, logits that err more often, and labels."""
    random = np.random.default_rng(seed)
    labels = random.integers(3, size=count)
    hidden = np.eye(3)[labels] + 0.3 * random.normal(size=(count, 3))
    return {"hidden": hidden}, 4 * hidden + 2 * random.normal(size=(count, 3)), labels


def write_features() -> None:
    """A model of given features, and its scores of a few rows."""
    model = qipf.FeatureQIPF(max_centers=40, max_tuning=50, reduction="random").fit(
        *feature_arrays(300, 1)
    )
    model.calibrate(*feature_arrays(400, 2)).accept_rule(max_risk=0.1)
    path = stored("features")
    qipf.save(model, path)
    features, logits, _ = feature_arrays(20, 5)
    answers = {
        "hidden": features["hidden"].tolist(),
        "logits": logits.tolist(),
        **scores_of(model(features, logits)),
        "p_values": model.p_values(features, logits).tolist(),
        "accepted": model.accepts(features, logits).tolist(),
    }
    path.with_suffix(".json").write_text(json.dumps(answers))


def by_entropy() -> qipf.QIPF:
    """A field of two classes, whose uncertainty is the entropy of the softmax."""
    logits = make_logits(120)[:, :2].numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", qipf.QIPFScoreWarning)
        return qipf.QIPF(bandwidth=3.0).fit(logits, np.arange(120) % 7 == logits.argmax(1))


def calibrated() -> qipf.QIPF:
    """A field with held-out predictions, some of them tied, and a rule that accepts a part."""
    held_out = make_logits(240, seed=2).numpy()
    held_out = np.concatenate([held_out, held_out[:40]])
    field = qipf.QIPF(bandwidth=3.0).fit(make_logits(120).numpy())
    uncertainty = field.uncertainty(held_out)
    wrong = (uncertainty > np.median(uncertainty)) & (np.arange(280) % 2 == 0)
    field.calibrate(held_out, wrong=wrong)
    field.accept_rule(max_risk=0.2, confidence=0.9)
    return field


def by_novelty() -> qipf.QIPF:
    """The same, with a rule that abstains from novel inputs too."""
    field = calibrated()
    field.accept_rule(max_risk=0.2, confidence=0.9, min_novelty_p=0.1)
    return field


def watched_field() -> qipf.QIPF:
    """The field of a monitor's state: a stored one, so that its digest is the same everywhere."""
    return qipf.load(stored("novelty"))


def write_monitor() -> None:
    """A monitor in mid-stream, after an alarm, with its verdicts then and after more."""
    field, random = watched_field(), np.random.default_rng(0)
    monitor = qipf.ShiftMonitor(field, alpha=0.05, window=30, random_state=7)
    held_out = field.calibration_
    scores = np.stack([held_out.scores, held_out.novelty])
    monitor.update_scores(*random.choice(scores, 60, axis=1))
    high = scores[:, held_out.novelty.argsort()[-60:]]
    monitor.update_scores(*np.c_[random.choice(high, 40, axis=1), [np.nan, np.nan]])
    monitor.notes = {"input": "standard input", "line": 104, "bad_lines": 3, "verdicts": 4}
    path = stored("monitor")
    monitor.save(path)
    more = random.choice(scores, 50, axis=1)
    answers = {
        "verdict": monitor.verdict().as_dict(),
        "more": more.tolist(),
        "verdict_after_more": monitor.update_scores(*more).as_dict(),
        "notes": monitor.notes,
    }
    path.with_suffix(".verdicts").write_text(json.dumps(answers, allow_nan=False))


def main() -> None:
    queries = make_logits(20, seed=5).numpy()
    few = {"max_centers": 30, "bandwidth": 3.0, "reduction": "random"}
    train = make_logits(120).numpy()
    inputs = torch.randn(120, 4, generator=torch.Generator().manual_seed(1))
    field = calibrated()
    saved = {
        "field": qipf.QIPF(**few).fit(train),
        "weighted": qipf.QIPF(**{**few, "reduction": "coreset"}).fit(train),
        "model": qipf.wrap(network(), field=qipf.QIPF(**few)).fit(inputs.split(40)),
        "calibrated": field,
        "rule": field.rule_,
        "entropy": by_entropy(),
        "novelty": by_novelty(),
    }
    for name, thing in saved.items():
        path = stored(name)
        qipf.save(thing, path)
        if name == "rule":
            continue
        judge = thing.field if name == "model" else thing
        rows = queries[:, : judge.n_features_in_]
        answers = {"queries": rows, "uncertainty": judge.uncertainty(rows)}
        if name in ("calibrated", "novelty"):
            answers |= {"p_values": judge.p_values(queries), "accepted": judge.accepts(queries)}
            answers["novelty"] = judge.novelty(queries)
        np.savez_compressed(path.with_suffix(".npz"), **answers)
    write_layered()
    write_features()
    write_monitor()


if __name__ == "__main__":
    main()
