"""The trail of the evidence: evenly spaced, bounded, and the same however the stream is divided."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qipf import Calibration, ShiftMonitor
from qipf.monitor.trail import MOST, Trail


@given(st.lists(st.integers(0, 900), min_size=1, max_size=8), st.integers(0, 5))
def test_values_are_those_at_multiples_of_the_step(parts, start):
    total = sum(parts)
    evidence = np.arange(start + 1.0, start + total + 1)  # the evidence is the count itself
    trail, count = Trail(start), start
    for part in parts:
        trail = trail.added(evidence[count - start : count - start + part], count)
        count += part
    assert len(trail.values) <= MOST
    np.testing.assert_array_equal(trail.values, trail.seen)
    np.testing.assert_array_equal(
        trail.seen - start, np.arange(1, total // trail.step + 1) * trail.step
    )
    # no larger a step than needed
    assert trail.step == 1 or 2 * total // trail.step > MOST


@pytest.mark.parametrize(
    "sizes", [(1,) * 30 + (670,), (700,), (3, 690, 7)], ids=["ones", "one", "parts"]
)
def test_the_trail_of_a_monitor_is_its_evidence(rng, sizes):
    stream = rng.normal(loc=0.1, size=700)
    monitor, single = (ShiftMonitor(Calibration(np.linspace(-2, 2, 50))) for _ in range(2))
    for part in np.split(stream, np.cumsum(sizes)[:-1]):
        monitor.update_scores(part)
    evidence = [single.update_scores([score]).log_evidence for score in stream[:2]]
    trail = monitor._state.tests[0].martingale.trail
    assert (trail.step, len(trail.values)) == (2, 350)
    assert trail.values[0] == evidence[1]
    assert trail.values[-1] == monitor.verdict().log_evidence
