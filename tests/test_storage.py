"""Saved fields and models come back to the last bit; nothing else comes in."""

import json
import os
import re

import numpy as np
import pytest
import torch
from safetensors.numpy import save
from torch import nn

import qipf
from qipf import QIPF, QIPFFileError, QIPFInputError, QIPFNotFittedError, QIPFWarning
from qipf.estimator import LEARNED
from qipf.restoring import FITTED
from qipf.storage import describe, fingerprint, load_field

from .conftest import make_logits

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
    for name in (*LEARNED, "n_features_in_", "n_samples_seen_"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(field, name))
    assert loaded.centers_.dtype == dtype


def test_the_file_holds_everything_a_field_learns():
    assert {f"{name}_" for name in FITTED} | {"centers_", "log_weights_"} == (
        set(LEARNED) | {"n_samples_seen_"}
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


# ---------------------------------------------------------------------- broken and hostile files


class Forge:
    """A valid file taken apart: its safetensors header, qipf's header, and the bytes after."""

    def __init__(self, data):
        length = int.from_bytes(data[:8], "little")
        self.entries = json.loads(data[8 : 8 + length])
        self.header = json.loads(self.entries["__metadata__"]["qipf"])
        self.body = bytearray(data[8 + length :])

    def array(self, name):
        begin, end = self.entries[name]["data_offsets"]
        dtype = {"F32": np.float32, "F64": np.float64}[self.entries[name]["dtype"]]
        return np.frombuffer(self.body, dtype, (end - begin) // np.dtype(dtype).itemsize, begin)

    def data(self, signed=True):
        """Put together again, with a digest that fits unless told otherwise."""
        if signed and isinstance(self.header, dict):
            from qipf.tensor_file import _digest

            arrays = {
                name: self.array(name).reshape(entry["shape"])
                for name, entry in self.entries.items()
                if name != "__metadata__"
            }
            self.header.pop("digest", None)
            self.header["digest"] = _digest(self.header, arrays)
        self.entries["__metadata__"] = {"qipf": json.dumps(self.header)}
        head = json.dumps(self.entries).encode()
        return len(head).to_bytes(8, "little") + head + bytes(self.body)


@pytest.fixture(scope="module")
def valid(weighted, tmp_path_factory):
    path = tmp_path_factory.mktemp("valid") / "field.qipf"
    qipf.save(weighted, path)
    return path.read_bytes()


def changed(valid, *keys, value):
    """The valid file with one value of its header replaced, and signed again."""
    forge = Forge(valid)
    place = forge.header
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    return forge.data()


def test_a_forged_but_sound_file_is_read(tmp_path, valid, weighted):
    (tmp_path / "forged").write_bytes(changed(valid, "library_version", value="9.9"))
    same(qipf.load(tmp_path / "forged"), weighted)


@pytest.mark.parametrize(
    ("keys", "value", "reason"),
    [
        (("format_version",), 4, "a newer qipf wrote it (format 4, here 3): update qipf"),
        (("format_version",), 1, "its header is ["),
        (("format_version",), "1", "its format version is '1'"),
        (("format_version",), True, "its format version is True"),
        (("kind",), "pickle", "its kind is 'pickle'"),
        (("kind",), "model", "its kind is 'model'"),
        (("library_version",), 3, "its library_version is 3"),
        (("parameters",), {}, "its list of parameters is []"),
        (("parameters", "orders"), [10**9], "more than 256 orders, or one above 1000"),
        (("parameters", "orders"), "12", "its orders are '12'"),
        (("parameters", "orders"), 1, "its orders are 1"),
        (("parameters", "orders"), [0], "orders must be integers of at least 1"),
        (("parameters", "softening"), "1", "its softening is '1'"),
        (("parameters", "max_centers"), 0, "max_centers must be an integer of at least 1, got 0"),
        (("parameters", "bandwidth"), -1.0, "bandwidth must be 'cv', 'silverman' or a positive"),
        (("parameters", "engine"), "atention", "Did you mean 'attention'"),
        (("parameters", "random_state"), "x", "its random_state is 'x'"),
        (("parameters", "device"), 5, "its device is 5"),
        (("fitted", "bandwidth"), 0.0, "its bandwidth is 0.0"),
        (("fitted", "bandwidth"), "1", "its bandwidth is '1'"),
        (("fitted", "spread"), -1.0, "its spread is -1.0"),
        (("fitted", "spread"), 1e200, "its spread is 1e+200"),
        (("fitted", "offset"), None, "its offset is None"),
        (("fitted", "energies"), [1.0], "its energies are not 4 finite numbers"),
        (("fitted", "n_samples_seen"), -3, "its n_samples_seen is -3"),
        (("features",), ["a"], "it names ['a'] as the features of 10 columns"),
        (("network",), {"layer": None}, "its kind is 'field'"),
    ],
)
def test_a_header_that_lies_is_refused(tmp_path, valid, keys, value, reason):
    path = tmp_path / "forged.qipf"
    path.write_bytes(changed(valid, *keys, value=value))
    with pytest.raises(QIPFFileError, match=re.escape(f"{path} cannot be used: ")) as refused:
        qipf.load(path)
    assert reason in str(refused.value)


def nan_centers(forge):
    forge.array("centers")[7] = np.nan


def uneven_weights(forge):
    forge.array("log_weights")[:] += 1


def gigantic_shape(forge):
    forge.entries["centers"]["shape"] = [2**40, 2**20]


def wrong_dtype(forge):
    forge.entries["centers"].update(dtype="I32")


def another_array(forge):
    end = len(forge.body)
    forge.entries["extra"] = {"dtype": "F64", "shape": [0], "data_offsets": [end, end]}


def cut_weights(forge):
    forge.entries["log_weights"]["shape"] = [20, 2]


def appended(forge):
    forge.body += b"more"


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        (nan_centers, "its centres hold NaN or inf"),
        (uneven_weights, "its weights are not finite shares of one"),
        (gigantic_shape, "its array 'centers' claims 4611686018427387904 bytes and takes another"),
        (wrong_dtype, "its array 'centers' has dtype 'I32'; F32 or F64 is needed"),
        (another_array, "its arrays are ['centers', 'extra', 'log_weights']"),
        (cut_weights, "its weights are float64 of shape (20, 2)"),
        (appended, "it declares "),
    ],
)
def test_arrays_that_lie_are_refused(tmp_path, valid, lie, reason):
    forge = Forge(valid)
    lie(forge)
    path = tmp_path / "forged.qipf"
    path.write_bytes(forge.data(signed=lie not in (gigantic_shape, wrong_dtype)))
    with pytest.raises(QIPFFileError) as refused:
        qipf.load(path)
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "it is cut short, or no safetensors file at all"),
        (b"PK\x03\x04 a zip file, say", "it is cut short, or no safetensors file at all"),
        ((2**23).to_bytes(8, "little") + bytes(2**23), "its header claims 8388608 bytes"),
        ((2).to_bytes(8, "little") + b"{}", "it was not written by qipf.save"),
        ((2).to_bytes(8, "little") + b"[]", "its header is not a JSON object"),
        ((20000).to_bytes(8, "little") + b"[" * 20000, "its header is not JSON"),
        ((3).to_bytes(8, "little") + b"NaN", "its header is not JSON"),
        (save({str(i): np.zeros(1) for i in range(5000)}, {"qipf": "{}"}), "it holds 5000 arrays"),
    ],
)
def test_what_is_no_qipf_file_is_refused(tmp_path, data, reason):
    path = tmp_path / "other.qipf"
    path.write_bytes(data)
    with pytest.raises(QIPFFileError, match=re.escape(f"{path} cannot be read: {reason}")):
        qipf.load(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(QIPFFileError, match=re.escape(f"There is no file {tmp_path / 'no.qipf'}.")):
        qipf.load(tmp_path / "no.qipf")


def test_a_flipped_bit_is_damage(tmp_path, valid):
    data = bytearray(valid)
    data[-5] ^= 1
    path = tmp_path / "field.qipf"
    path.write_bytes(data)
    with pytest.raises(QIPFFileError, match="is damaged: its content does not match its digest"):
        qipf.load(path)


def test_a_device_that_is_not_here_becomes_auto(tmp_path, valid, weighted):
    path = tmp_path / "field.qipf"
    path.write_bytes(changed(valid, "parameters", "device", value="cuda:77"))
    with pytest.warns(QIPFWarning, match="was to be computed on 'cuda:77', which is not to be had"):
        loaded = qipf.load(path)
    assert loaded.device == "auto"
    same(loaded, weighted)


def test_what_is_no_file_is_told_without_waiting_for_it(tmp_path):
    os.mkfifo(tmp_path / "pipe.qipf")  # that nobody writes to
    for path, message in [
        (tmp_path, f"{tmp_path} is a folder; name a file."),
        (tmp_path / "pipe.qipf", f"{tmp_path}/pipe.qipf is a pipe or a device; name a file."),
        (tmp_path / ("x" * 300), f"Cannot read {tmp_path}/{'x' * 300}: File name too long."),
    ]:
        with pytest.raises(QIPFFileError) as refused:
            qipf.load(path)
        assert str(refused.value) == message


def test_a_file_without_a_digest_is_damaged(tmp_path, valid):
    """Not even where its header has no digest, because JSON has no word for what it holds."""
    for value in (1.0, 1e400):
        forge = Forge(valid)
        forge.header["fitted"]["offset"] = "a number"
        del forge.header["digest"]
        path = tmp_path / "forged.qipf"
        data = forge.data(signed=False).replace(b'\\"a number\\"', b"1e999" + b" " * 7, 1)
        assert b"1e999" in data
        path.write_bytes(data if value > 1 else data.replace(b"1e999", b"1.000"))
        with pytest.raises(QIPFFileError) as refused:
            qipf.load(path)
        assert str(refused.value) == (f"{path} is damaged: its content does not match its digest.")


def test_a_name_that_no_file_can_have_is_refused(weighted):
    for call in (lambda path: qipf.load(path), lambda path: qipf.save(weighted, path)):
        with pytest.raises(QIPFFileError) as refused:
            call("a\0b")
        assert str(refused.value) == (
            "No file can have the name 'a\\x00b': leave out its odd characters."
        )
