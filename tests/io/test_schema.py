"""Checks of file headers that every reader shares."""

import pytest

from qipf import QIPFFileError
from qipf.io.schema import check_header, refuse, require_keys, require_version, written_by


def test_valid_headers_pass():
    require_version("f", {"format_version": 3}, 3, "fit again")
    require_keys("f", "header", {"a": 1, "b": 2}, ("b", "a"))


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (None, "format version is None"),
        (0, "format version is 0"),
        (True, "is True"),
        (1, r"an earlier version of qipf wrote it \(format 1, here 4\): fit again"),
        (5, r"a newer qipf wrote it \(format 5, here 4\): update qipf"),
    ],
)
def test_other_versions_are_rejected(version, message):
    with pytest.raises(QIPFFileError, match=message):
        require_version("f", {"format_version": version}, 4, "fit again")


@pytest.mark.parametrize("found", [{"a": 1}, {"a": 1, "b": 2, "c": 3}, [1], None])
def test_other_keys_are_rejected(found):
    with pytest.raises(QIPFFileError, match="its header is"):
        require_keys("f", "header", found, ("a", "b"))


def test_the_reason_is_part_of_the_error():
    with pytest.raises(QIPFFileError, match=r"^model.qipf cannot be used: it is empty\.$"):
        refuse("model.qipf", "it is empty")


@pytest.mark.parametrize(
    ("changes", "phrase"),
    [
        ({"kind": "pickle"}, "its kind is 'pickle'"),
        ({"kind": ["rule"]}, "its kind is"),
        ({"kind": "monitor"}, "holds the state of a monitor"),
        ({"format_version": 5}, "an earlier version .*: fit and save the model again"),
        ({"library_version": 3}, "its library_version is 3"),
        ({"extra": 1}, "its header is"),
    ],
)
def test_other_headers_are_rejected(changes, phrase):
    valid = {**written_by(), "kind": "rule", "rule": {}}
    check_header(valid, "f")
    with pytest.raises(QIPFFileError, match=phrase):
        check_header({**valid, **changes}, "f")
