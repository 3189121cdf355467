"""Connecting to a cluster, or to none."""

import sys

import pytest

import qipf
from qipf import QIPFError, QIPFInputError
from qipf import ray as distributed
from qipf.ray import connection as connecting
from tests.cli.commands import run as command
from tests.ray.made import LOGITS

ray = pytest.importorskip("ray")
# Ray's own: it warns of options that it sets itself
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def test_the_cluster_has_a_worker_for_each_cpu(plan):
    assert (plan.workers, plan.needs) == (2, {"num_cpus": 1.0})


def test_the_address_of_the_cluster_that_is_connected_may_be_given():
    host, port = ray.get_runtime_context().gcs_address.rsplit(":", 1)
    for address in (None, "auto", f"{host}:{port}", f"localhost:{port}", f"127.0.0.1:{port}"):
        with distributed.cluster(address) as plan:
            assert plan.workers == 2
    assert ray.is_initialized()


@pytest.mark.parametrize(
    "address",
    ["10.9.8.7:6379", "127.0.0.1:1", "local", "ray://127.0.0.1:10001", "no.such.host.invalid:1"],
)
def test_another_address_than_that_of_the_connection_is_refused(address):
    message = (
        f"Ray is connected to {ray.get_runtime_context().gcs_address} already, so "
        f"address={address!r} cannot be used. Leave the address out to work there, or call "
        "ray.shutdown() first."
    )
    with pytest.raises(QIPFInputError) as refused, distributed.cluster(address):
        pass
    assert str(refused.value) == message
    with pytest.raises(QIPFInputError) as refused:
        distributed.on_ray(address=address)
    assert str(refused.value) == message


@pytest.mark.parametrize("place", ["10.9.8.7:6379", "ray://10.9.8.7:10001"])
def test_auto_is_the_cluster_of_this_machine_and_a_client_is_outside(place, monkeypatch):
    monkeypatch.setattr(connecting, "_connected_place", lambda: place)
    connecting.require_connection(place)
    if not place.startswith("ray://"):
        connecting.require_connection("auto")
        return
    with pytest.raises(QIPFInputError, match=rf"^Ray is connected to {place} already, so addr"):
        connecting.require_connection("auto")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "127.0.0.1:99999"])
def test_a_cluster_that_does_not_answer_is_told_at_once(address, monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with (
        pytest.raises(QIPFError, match=rf"^Cannot connect to the Ray cluster at '{address}' \("),
        distributed.cluster(address),
    ):
        pass


def test_without_ray_the_way_to_it_is_told(monkeypatch, capsys, tmp_path, field):
    monkeypatch.setitem(sys.modules, "ray", None)
    for given in (distributed.on_ray, lambda: distributed.fit(LOGITS)):
        with pytest.raises(QIPFError) as refused:
            given()
        assert str(refused.value) == "Work on a cluster needs Ray: pip install 'qipf[ray]'."
    qipf.save(field, tmp_path / "field.qipf")
    code, _, err = command(
        monkeypatch, capsys, "score", tmp_path / "field.qipf", tmp_path, "-o", tmp_path / "out",
        "--engine", "ray",
    )  # fmt: skip
    assert (code, err) == (2, "qipf: Work on a cluster needs Ray: pip install 'qipf[ray]'.\n")
