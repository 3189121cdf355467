"""A suite's tasks on a Ray cluster: the same results, even when a worker is killed."""

import pytest

from qipf.bench import ray_workers, runner
from qipf.bench.results import read_results
from qipf.errors import QIPFError, QIPFInputError
from tests.bench.test_workers import counting
from tests.bench.tiny import TASKS, TINY, settled
from tests.cli.test_module import run as command
from tests.ray.ray_cluster import Missing, die_once, running

pytest.importorskip("ray")
# Ray's own: it warns of options that it sets itself
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module", autouse=True)
def plan():
    with running(workers=2) as plan:
        yield plan


def results(pool, jobs, needs=lambda job: []):
    return list(pool.results(jobs, needs, lambda last, job: False))


def test_jobs_wait_for_what_they_need_and_what_goes_wrong_is_told_here(monkeypatch):
    monkeypatch.setattr(ray_workers, "RETRIES", 1)
    with ray_workers.RayPool(2, counting, 10) as pool:
        assert len(pool.workers) == 2
        # 1 waits for 2, which waits for 3: one order is possible
        came = results(pool, [1, 2, 3], needs=lambda job: {1: [2], 2: [3], 3: []}[job])
        assert came == [10, 11, 12, 10, 11, 10]
        for job, kind, message in (
            ("fail", QIPFInputError, "no such thing"),
            ("crash", RuntimeError, "ZeroDivisionError('division by zero')"),
            (
                "die",
                QIPFError,
                "A job cost a worker its life 2 times, perhaps for want of memory. "
                "What was finished is kept: run again, with fewer jobs.",
            ),
        ):
            with pytest.raises(kind) as told:
                results(pool, [job])
            assert str(told.value) == message


def unusable(what):
    if what == "data":
        raise QIPFInputError("digits is not on this machine")
    raise ZeroDivisionError(what)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("data", "digits is not on this machine"),
        ("broken", "A worker could not start (ZeroDivisionError('broken'))."),
        (
            Missing(),
            "A worker could not start on the cluster (ModuleNotFoundError: No module named "
            "'not_installed_there'). Every machine of the cluster needs this Python and this qipf: "
            "pip install 'qipf[ray]'.",
        ),
    ],
)
def test_why_a_worker_does_not_start_is_told(argument, message):
    with (
        pytest.raises(QIPFError) as told,
        ray_workers.RayPool(2, unusable, argument) as pool,
    ):
        results(pool, [1, 2])
    assert str(told.value) == message


def test_another_address_than_that_of_the_connection_is_refused(tmp_path):
    with pytest.raises(QIPFInputError, match=r"already, so address='10\.9\.8\.7:1' cannot be used"):
        runner.run(TINY, tmp_path / "ray", device="cpu", jobs="ray", address="10.9.8.7:1")


def dying_once(marker):
    def do(job):
        for number in range(5):
            if number == 3:
                die_once(marker)
            yield job + number

    return do


def test_results_that_came_before_a_worker_died_do_not_come_again(tmp_path):
    with ray_workers.RayPool(1, dying_once, str(tmp_path / "died")) as pool:
        came = results(pool, [100, 200])
    assert came == [100, 101, 102, 103, 104, 200, 201, 202, 203, 204]


def test_a_suite_gives_the_same_numbers_though_a_worker_is_killed(tmp_path, monkeypatch):
    runner.run(TINY, tmp_path / "here", device="cpu")
    enlist, died = runner._enlist, tmp_path / "died"

    def dying(setting):
        do = enlist(setting)

        def results(job):
            for number, record in enumerate(do(job)):
                if number == 3:  # in the midst of it: some results are sent, others not
                    die_once(died)
                yield record

        return results

    monkeypatch.setattr(runner, "_enlist", dying)
    runner.run(TINY, tmp_path / "ray", device="cpu", jobs="ray")
    assert died.exists()
    assert len(read_results(tmp_path / "ray")) == TASKS
    assert settled(tmp_path / "ray") == settled(tmp_path / "here")


def test_the_command_takes_ray(monkeypatch, capsys, tmp_path):
    seen = {}

    def noted(suite, out, **options):
        seen.update(options)
        out.mkdir(parents=True)
        (out / "results.jsonl").touch()

    monkeypatch.setattr(runner, "run", noted)
    code, *_ = command(
        monkeypatch, capsys, "bench", "run", "--jobs", "ray", "--address", "auto", "--out",
        tmp_path / "out",
    )  # fmt: skip
    assert (code, seen["jobs"], seen["address"]) == (0, "ray", "auto")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--jobs", "many"), "--jobs must be a whole number or ray, got 'many'."),
        (("--address", "auto"), "address is that of a Ray cluster: it goes with jobs='ray'."),
        (("--jobs", "0"), "jobs must be at least 1; got 0."),
    ],
)
def test_the_command_refuses_in_one_line(arguments, message, monkeypatch, capsys, tmp_path):
    code, out, err = command(
        monkeypatch, capsys, "bench", "run", "--out", tmp_path / "out", *arguments
    )
    assert (code, out, err) == (2, "", f"qipf: {message}\n")
    assert not (tmp_path / "out").exists()
