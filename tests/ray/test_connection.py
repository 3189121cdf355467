"""Connecting to a cluster."""

import sys

import pytest

import qipf
from qipf import QIPFError, QIPFInputError
from qipf import ray as distributed
from tests.cli.commands import run as command
from tests.ray.shared import LOGITS, RAY

ray = pytest.importorskip("ray")
pytestmark = RAY


def test_the_connected_cluster_is_used(plan):
    assert (plan.workers, plan.needs) == (2, {"num_cpus": 1.0})
    for address in (None, "auto", ray.get_runtime_context().gcs_address):
        with distributed.cluster(address) as other:
            assert other == plan
    assert ray.is_initialized()


@pytest.mark.parametrize("address", ["10.9.8.7:6379", "local", "ray://127.0.0.1:10001"])
def test_another_address_than_the_connected_one_is_rejected(address):
    for use in (lambda: distributed.cluster(address).__enter__(), lambda: on_ray(address)):
        with pytest.raises(QIPFInputError, match="Ray is already connected to"):
            use()


def on_ray(address):
    return distributed.on_ray(address=address)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "127.0.0.1:99999"])
def test_a_cluster_that_does_not_answer_is_an_error_at_once(address, monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with (
        pytest.raises(QIPFError, match="Cannot connect to the Ray cluster"),
        distributed.cluster(address),
    ):
        pass


def test_a_missing_ray_is_reported(monkeypatch, capsys, tmp_path, field):
    monkeypatch.setitem(sys.modules, "ray", None)
    for use in (distributed.on_ray, lambda: distributed.fit(LOGITS)):
        with pytest.raises(QIPFError, match="needs Ray: pip install"):
            use()
    qipf.save(field, tmp_path / "field.qipf")
    arguments = ("score", tmp_path / "field.qipf", tmp_path, "-o", tmp_path / "out")
    code, _, err = command(monkeypatch, capsys, *arguments, "--engine", "ray")
    assert code == 2
    assert "needs Ray: pip install" in err
