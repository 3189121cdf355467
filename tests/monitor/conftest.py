"""A calibrated field, and lines to watch."""

import numpy as np
import pytest

import qipf
from tests.conftest import make_logits
from tests.monitor.watching import LINES


@pytest.fixture(scope="module")
def field():
    fitted = qipf.QIPF(bandwidth="silverman").fit(make_logits(100).numpy())
    return fitted.calibrate(make_logits(80, seed=1).numpy(), np.arange(80) % 10)


@pytest.fixture
def stream(tmp_path):
    """57 lines, of which line 11 is bad and line 30 is empty."""
    rows = [",".join(map(repr, row)) for row in make_logits(LINES, seed=2).tolist()]
    rows[10], rows[29] = "1,2", ""
    path = tmp_path / "stream.csv"
    path.write_text("\n".join(rows) + "\n")
    return path
