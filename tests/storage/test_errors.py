"""Files of fields that lie, are broken, or are none: each is refused, none believed."""

import os
import re

import numpy as np
import pytest
from safetensors.numpy import save

import qipf
from qipf import QIPF, QIPFFileError
from tests.conftest import make_logits
from tests.storage.forged_files import Forge, changed, saved


@pytest.fixture(scope="module")
def weighted():
    """A field whose centres carry weights and stand for more rows than there are centres."""
    return QIPF(max_centers=40, reduction="coreset", bandwidth=3.0).fit(make_logits(300).numpy())


@pytest.fixture(scope="module")
def valid(weighted, tmp_path_factory):
    return saved(weighted, tmp_path_factory)


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
        (gigantic_shape, "is not a valid safetensors file"),
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
        (b"", "it is cut short"),
        (b"PK\x03\x04 a zip file, say", "it is cut short"),
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
