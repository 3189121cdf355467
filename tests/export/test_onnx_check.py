"""What an exported file is compared with, and how far it may differ."""

import numpy as np
import pytest
import torch

from qipf import QIPF, QIPFError
from qipf.export.onnx import TOLERANCE, checked, expected, rounding_margins


def test_near_a_pole_the_margin_is_wide():
    """A mode of order 2 has its pole at ψ = 0.707: float32 networks cannot agree there."""
    field = QIPF(orders=(2,), bandwidth=1.0, normalization="peak")
    field.fit(np.array([[0.0, 0.0], [1e-9, 0.0]]))
    pole = np.sqrt(2 * np.log(2))  # ρ = 1/2
    at = torch.tensor([[pole + 1e-6, 0.0], [0.1, 0.0]], dtype=torch.float64)
    want = expected(*field.both_scores(at), None, rounding_margins(field.both_scores, at))
    scale = np.maximum(1, np.abs(want.scores["uncertainty"]))
    allowed = want.allowed["uncertainty"] / scale
    assert allowed[0] > 1
    assert allowed[1] < 3e-4
    assert want.allowed["novelty"].max() < 3e-4


def test_the_tolerance_is_relative_above_one():
    want = expected(torch.tensor([0.5, -200.0]), torch.tensor([3.0, 0.0]), torch.zeros(2, 3))
    np.testing.assert_allclose(want.allowed["uncertainty"], [TOLERANCE, 200 * TOLERANCE])
    np.testing.assert_allclose(want.allowed["novelty"], [3 * TOLERANCE, TOLERANCE])
    first = want.first()
    assert first.logits.shape == (1, 3)
    assert {name: own.tolist() for name, own in first.scores.items()} == {
        "uncertainty": [0.5],
        "novelty": [3.0],
    }


def test_a_broken_file_is_rejected():
    pytest.importorskip("onnxruntime")
    with pytest.raises(QIPFError, match="ONNX Runtime cannot run the file"):
        checked(b"not a graph", [({}, expected(torch.zeros(1), torch.zeros(1), None))])
