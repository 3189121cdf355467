"""Saved fields and models come back to the last bit; nothing else comes in."""

import json
import os

import numpy as np
import pytest
import torch
from torch import nn

import qipf
from qipf import QIPF, QIPFFileError, QIPFInputError, QIPFNotFittedError, QIPFWarning
from qipf.field.state import FITTED
from qipf.storage.save_load import describe, fingerprint, load_field
from tests.conftest import make_logits
from tests.storage.forged_files import changed, saved

QUERIES = make_logits(50, seed=5).numpy()


@pytest.fixture(scope="module")
def weighted():
    """A field whose centres carry weights and stand for more rows than there are centres."""
    return QIPF(max_centers=40, reduction="coreset", bandwidth=3.0).fit(make_logits(300).numpy())


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def inputs(count=60, seed=0):
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))


def same(one, other, queries=QUERIES):
    for scores in ("uncertainty", "modes", "potential", "log_density", "decision_function"):
        np.testing.assert_array_equal(
            getattr(one, scores)(queries), getattr(other, scores)(queries)
        )


# ---------------------------------------------------------------------- round trips


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"max_centers": 30},
        {"max_centers": 30, "reduction": "random", "engine": "reference"},
        {"bandwidth": "silverman", "orders": [2, 5], "softening": 0.1, "contamination": 0.2},
        {"bandwidth": 2.5, "random_state": None, "device": "cpu"},
    ],
)
def test_a_field_comes_back_to_the_last_bit(tmp_path, dtype, parameters):
    train = make_logits(200).numpy().astype(dtype)
    field = QIPF(**parameters).fit(train, train.argmax(1))
    qipf.save(field, tmp_path / "field.qipf")
    loaded = qipf.load(tmp_path / "field.qipf")
    same(field, loaded, QUERIES.astype(dtype))
    expected = {**field.get_params(), "orders": tuple(field.orders)}
    assert loaded.get_params() == expected
    for name in (*field.learned, "n_features_in_", "n_samples_seen_"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(field, name))
    assert loaded.centers_.dtype == dtype


def test_the_file_holds_everything_a_field_learns():
    assert {f"{name}_" for name in FITTED} | {"centers_", "log_weights_"} == (
        set(QIPF().learned) | {"n_samples_seen_"}
    )


def test_the_same_field_gives_the_same_bytes(tmp_path, weighted):
    qipf.save(weighted, tmp_path / "a")
    qipf.save(qipf.load(tmp_path / "a"), tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_column_names_come_back(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(make_logits(60).numpy(), columns=[f"class {k}" for k in range(10)])
    qipf.save(QIPF(bandwidth=3.0).fit(frame), tmp_path / "field.qipf")
    loaded = qipf.load(tmp_path / "field.qipf")
    assert loaded.feature_names_in_.tolist() == list(frame.columns)
    with pytest.raises(QIPFInputError, match="feature names"):
        loaded.uncertainty(frame[frame.columns[::-1]])


def test_a_field_still_being_built_is_saved_as_it_stands(tmp_path):
    rows = make_logits(100).numpy()
    field = QIPF(bandwidth=3.0).partial_fit(rows[:50]).partial_fit(rows[50:])
    qipf.save(field, tmp_path / "field.qipf")
    same(QIPF(bandwidth=3.0).fit(rows), qipf.load(tmp_path / "field.qipf"))


@pytest.mark.parametrize("layer", [None, "1"])
def test_a_wrapped_model_comes_back_around_its_network(tmp_path, net, layer):
    model = qipf.wrap(net, layer, pooling="flatten").fit(inputs().split(20))
    qipf.save(model, tmp_path / "model.qipf")
    loaded = qipf.load(tmp_path / "model.qipf", net)
    assert (loaded.net, loaded.layer, loaded.pooling) == (net, layer, "flatten")
    expected, got = model(inputs(9, seed=1)), loaded(inputs(9, seed=1))
    assert torch.equal(got.uncertainty, expected.uncertainty)
    assert torch.equal(got.logits, expected.logits)
    rows = model.field.centers_
    np.testing.assert_array_equal(
        load_field(tmp_path / "model.qipf").uncertainty(rows), model.field.uncertainty(rows)
    )


def test_another_networks_field_is_refused_unless_told_otherwise(tmp_path, net):
    qipf.save(qipf.wrap(net).fit(inputs().split(20)), tmp_path / "model.qipf")
    other = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    with pytest.raises(QIPFFileError) as refused:
        qipf.load(tmp_path / "model.qipf", other)
    assert str(refused.value) == (
        f"{tmp_path / 'model.qipf'} belongs to another network: fitted with weights "
        f"{fingerprint(net)}, this network has {fingerprint(other)}. Load the weights it was "
        "fitted with, or pass check=False."
    )
    assert qipf.load(tmp_path / "model.qipf", other, check=False).net is other


def test_a_fingerprint_is_of_the_weights_and_buffers():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).bfloat16()
    before = fingerprint(net)
    assert fingerprint(nn.ModuleDict({"renamed": net})) == before
    net[1].running_mean += 1
    assert fingerprint(net) != before


def test_net_and_file_must_belong_together(tmp_path, net, weighted):
    qipf.save(weighted, tmp_path / "field.qipf")
    with pytest.raises(QIPFInputError, match="holds a field alone"):
        qipf.load(tmp_path / "field.qipf", net)
    qipf.save(qipf.wrap(net).fit(inputs().split(20)), tmp_path / "model.qipf")
    with pytest.raises(QIPFInputError, match=r"Pass its network: qipf\.load\(path, net\)"):
        qipf.load(tmp_path / "model.qipf")


def test_describe_tells_what_is_inside(tmp_path, weighted):
    qipf.save(weighted, tmp_path / "field.qipf")
    told = describe(tmp_path / "field.qipf")
    assert told["format_version"] == 3
    assert told["library_version"] == qipf.__version__
    assert (told["kind"], told["network"], told["weighted"]) == ("field", None, True)
    assert told["centers"] == {"count": 40, "dimension": 10}
    assert told["fitted"]["n_samples_seen"] == 300
    assert told["parameters"]["bandwidth"] == 3.0
    assert json.loads(json.dumps(told)) == told


# ---------------------------------------------------------------------- writing


def test_what_cannot_be_saved_is_refused_before_anything_is_written(tmp_path, net, weighted):
    target = tmp_path / "field.qipf"
    with pytest.raises(QIPFNotFittedError, match="There is nothing to save yet"):
        qipf.save(QIPF(), target)
    with pytest.raises(
        QIPFInputError, match="Only a QIPF field, a wrapped model or an accept rule"
    ):
        qipf.save({"centers": 1}, target)
    model = qipf.wrap(net, "1", pooling=lambda output: output).fit(inputs().split(20))
    with pytest.raises(QIPFInputError, match="pooling is a function, which a file cannot hold"):
        qipf.save(model, target)
    seeded = QIPF(bandwidth=3.0, random_state=np.random.RandomState(0)).fit(QUERIES)
    with pytest.raises(QIPFInputError, match="random_state is a RandomState"):
        qipf.save(seeded, target)
    with pytest.raises(QIPFFileError, match="more than 256 orders, or one above 1000"):
        qipf.save(QIPF(orders=[1001], bandwidth=3.0).fit(QUERIES), target)
    with pytest.raises(QIPFInputError, match="is a folder; name a file in it"):
        qipf.save(weighted, tmp_path)
    with pytest.raises(QIPFInputError, match="There is no folder"):
        qipf.save(weighted, tmp_path / "nowhere" / "field.qipf")
    assert list(tmp_path.iterdir()) == []


def test_a_crash_while_writing_leaves_the_old_file(tmp_path, weighted, monkeypatch):
    target = tmp_path / "field.qipf"
    qipf.save(weighted, target)
    before = target.read_bytes()

    def full(_handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(qipf.QIPFError, match=r"Cannot write .*: No space left on device\."):
        qipf.save(QIPF(bandwidth=1.0).fit(QUERIES), target)
    assert target.read_bytes() == before
    assert list(tmp_path.iterdir()) == [target]


# ---------------------------------------------------------------------- forged but sound


@pytest.fixture(scope="module")
def valid(weighted, tmp_path_factory):
    return saved(weighted, tmp_path_factory)


def test_a_forged_but_sound_file_is_read(tmp_path, valid, weighted):
    (tmp_path / "forged").write_bytes(changed(valid, "library_version", value="9.9"))
    same(qipf.load(tmp_path / "forged"), weighted)


def test_a_device_that_is_not_here_becomes_auto(tmp_path, valid, weighted):
    path = tmp_path / "field.qipf"
    path.write_bytes(changed(valid, "parameters", "device", value="cuda:77"))
    with pytest.warns(QIPFWarning, match="was to be computed on 'cuda:77', which is not to be had"):
        loaded = qipf.load(path)
    assert loaded.device == "auto"
    same(loaded, weighted)
