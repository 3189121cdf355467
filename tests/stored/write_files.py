"""Writes the fixtures of the current format version: one file of each kind, and what it gives.

python -m tests.stored.write_files

Run once for a new format version, never for an old one: files of old versions stay as they are.
"""

from pathlib import Path

import numpy as np
import torch
from torch import nn

import qipf
from qipf.restoring import FORMAT_VERSION
from tests.conftest import make_logits

HERE = Path(__file__).parent


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 10)


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


def main() -> None:
    queries = make_logits(20, seed=5).numpy()
    few = {"max_centers": 30, "bandwidth": 3.0}
    train = make_logits(120).numpy()
    inputs = torch.randn(120, 4, generator=torch.Generator().manual_seed(1))
    field = calibrated()
    saved = {
        "field": qipf.QIPF(**few).fit(train),
        "weighted": qipf.QIPF(**few, reduction="coreset").fit(train),
        "model": qipf.wrap(network(), field=qipf.QIPF(**few)).fit(inputs.split(40)),
        "calibrated": field,
        "rule": field.rule_,
    }
    for name, thing in saved.items():
        path = HERE / f"{name}-v{FORMAT_VERSION}.qipf"
        qipf.save(thing, path)
        if name == "rule":
            continue
        judge = thing.field if name == "model" else thing
        answers = {"queries": queries, "uncertainty": judge.uncertainty(queries)}
        if name == "calibrated":
            answers |= {"p_values": judge.p_values(queries), "accepted": judge.accepts(queries)}
        np.savez_compressed(path.with_suffix(".npz"), **answers)


if __name__ == "__main__":
    main()
