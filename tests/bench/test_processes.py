"""Work in several processes; they import this module, which therefore imports little."""

import os

import pytest

from qipf.bench.processes import in_processes, stop_processes
from qipf.errors import QIPFError, QIPFInputError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _stopped():
    yield
    stop_processes()


def double(job):
    if job == "fail":
        raise QIPFInputError("no such thing")
    if job == "die":
        os._exit(3)
    return 2 * job


def test_all_results_come():
    assert sorted(in_processes(double, [1, 2, 3], 2)) == [2, 4, 6]


@pytest.mark.parametrize(
    ("job", "kind", "message"),
    [("fail", QIPFInputError, "no such thing"), ("die", QIPFError, "ended unexpectedly")],
)
def test_errors_in_a_worker_are_raised_here(job, kind, message):
    with pytest.raises(kind, match=message):
        list(in_processes(double, [job, 1], 2))
