"""The types that a user's own type checker sees: arrays in, arrays out; tensors in, tensors out."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]

USER_CODE = """
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import assert_type

import qipf

logits = torch.zeros(4, 3)
array = np.zeros((4, 3))
field = qipf.QIPF().fit(logits)
assert_type(field, qipf.QIPF)
assert_type(field.uncertainty(logits), Tensor)
assert_type(field.uncertainty(array), NDArray[Any])
assert_type(field.uncertainty([[0.0, 1.0]]), NDArray[Any])
assert_type(field.p_values(logits), Tensor)
assert_type(field.accepts(array), NDArray[Any])
rule = field.accept_rule(max_risk=0.1)
assert_type(rule, qipf.AcceptRule)
assert_type(rule(np.zeros(4)), NDArray[np.bool_])
assert_type(rule(logits[0]), Tensor)
held_out = qipf.Calibration(array[:, 0])
assert_type(held_out.p_values(logits[0]), Tensor)
assert_type(held_out.p_values([0.1]), NDArray[np.float64])
net = torch.nn.Linear(3, 3)
model = qipf.LayeredQIPF(net).fit([(logits, torch.zeros(4))])
assert_type(model, qipf.LayeredQIPF)
assert_type(model.uncertainty(logits), Tensor)
assert_type(model(logits), qipf.Prediction)
assert_type(qipf.wrap(net).calibrate([logits]), qipf.WrappedModel)
"""


@pytest.mark.slow
def test_a_users_code_is_typed(tmp_path):
    """With the project's settings, so that mypy finds again what it knows of torch and NumPy."""
    (tmp_path / "user.py").write_text(USER_CODE)
    found = subprocess.run(
        [sys.executable, "-m", "mypy", tmp_path / "user.py"],
        cwd=REPOSITORY,
        env={**os.environ, "MYPYPATH": "src"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
