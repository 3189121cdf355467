from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qipf.bench.methods import Batch, create


def score(name: str, logits: list[list[float]], **options) -> list[float]:
    tensor = torch.tensor(logits)
    batch = Batch(torch.zeros(len(tensor), 1, 1, 1), tensor, torch.zeros(len(tensor), 1))
    return create(name, **options).score(batch).tolist()


rows = st.lists(st.floats(-30, 30, width=32), min_size=2, max_size=6)


@given(rows)
def test_naive_references(row):
    exps = [math.exp(z) for z in row]
    p = [e / sum(exps) for e in exps]
    close = {"rel": 1e-9, "abs": 1e-12}
    assert score("softmax", [row])[0] == pytest.approx(1 - max(p), **close)
    assert score("entropy", [row])[0] == pytest.approx(-sum(q * math.log(q) for q in p), **close)
    assert score("max_logit", [row])[0] == -max(row)
    assert score("energy", [row])[0] == pytest.approx(-math.log(sum(exps)), **close)
    if max(p) < 0.999:  # beyond, 1 - p loses the digits of the reference
        gen = sum((q * (1 - q)) ** 0.1 for q in p)
        assert score("gen", [row])[0] == pytest.approx(gen, rel=1e-6)
        same = sum(q * q for q in p)
        assert score("doctor", [row])[0] == pytest.approx(
            math.log((1 - same) / same), rel=1e-6, abs=1e-9
        )


@given(rows, st.floats(-5, 5))
def test_softmax_and_entropy_ignore_a_common_shift(row, shift):
    # exact in float32: shifts by multiples of 1/8
    row, shift = [round(8 * z) / 8 for z in row], round(8 * shift) / 8
    moved = [z + shift for z in row]
    for name in ("softmax", "entropy"):
        assert score(name, [moved])[0] == pytest.approx(score(name, [row])[0], rel=1e-9, abs=1e-12)
    assert score("max_logit", [moved])[0] == pytest.approx(score("max_logit", [row])[0] - shift)
    assert score("energy", [moved])[0] == pytest.approx(score("energy", [row])[0] - shift)


def test_very_confident_predictions_are_still_ranked():
    logits = [[30.0, 0.0], [34.0, 0.0]]  # both probabilities are 1 in float32
    for name in ("softmax", "entropy"):
        less, more = score(name, logits)
        assert less > more > 0
    assert score("softmax", logits)[0] == pytest.approx(math.exp(-30), rel=1e-3)


def test_huge_logits_stay_finite():
    logits = [[1e30, -1e30], [-1e30, -1e30]]
    assert score("softmax", logits) == [0.0, 0.5]
    assert score("energy", logits) == pytest.approx([-1e30, 1e30])


def test_temperature_of_the_energy():
    assert score("energy", [[1.0, 2.0]], temperature=2.0)[0] == pytest.approx(
        -2 * math.log(math.exp(0.5) + math.exp(1.0))
    )


def test_sure_predictions_are_ranked_by_gen_and_doctor():
    rows = [[40.0, 0.0, 0.0], [60.0, 0.0, 0.0], [800.0, 0.0, 0.0]]
    for name in ("gen", "doctor"):
        first, second, last = score(name, rows)
        assert first > second >= last > -math.inf
    assert score("gen", [[3.0, 2.0, 1.0]], classes=2) < score("gen", [[3.0, 2.0, 1.0]])
