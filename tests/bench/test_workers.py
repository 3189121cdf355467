import os

import pytest

from qipf.bench.workers import Pool
from qipf.errors import QIPFError, QIPFInputError


def counting(base):
    """Each job yields its own number of results; some do worse."""

    def do(job):
        if job == "fail":
            raise QIPFInputError("no such thing")
        if job == "crash":
            return [1 / 0]
        if job == "die":
            os._exit(3)
        return (base + i for i in range(job))

    return do


def results(jobs, needs=lambda job: [], processes=1):
    with Pool(processes, counting, 10) as pool:
        return list(pool.results(jobs, needs, lambda last, job: False))


def test_all_results_come_and_jobs_wait_for_what_they_need():
    # 1 waits for 2, which waits for 3: one order is possible
    came = results([1, 2, 3], needs=lambda job: {1: [2], 2: [3], 3: []}[job], processes=2)
    assert came == [10, 11, 12, 10, 11, 10]


@pytest.mark.parametrize(
    ("job", "kind", "message"),
    [
        ("fail", QIPFInputError, "no such thing"),
        ("crash", RuntimeError, "ZeroDivisionError('division by zero')"),
        (
            "die",
            QIPFError,
            "A worker process ended unasked (exit code 3), perhaps for want of memory. "
            "What was finished is kept: run again, with fewer jobs.",
        ),
    ],
)
def test_what_goes_wrong_elsewhere_is_told_here(job, kind, message):
    with pytest.raises(kind) as told:
        results([job])
    assert str(told.value) == message
