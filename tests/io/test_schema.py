"""Checks of file headers that every reader shares."""

import pytest

from qipf import QIPFFileError
from qipf.io.schema import checked_header, refuse, require_keys, require_version, written_by


def test_valid_headers_pass():
    require_version("f", {"format_version": 2}, newest=3)
    require_keys("f", "header", {"a": 1, "b": 2}, ("b", "a"))


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (None, "format version is None"),
        (0, "format version is 0"),
        (True, "is True"),
        (1, "format version is 1"),
        (5, "newer qipf"),
    ],
)
def test_unreadable_versions_are_rejected(version, message):
    with pytest.raises(QIPFFileError, match=message):
        require_version("f", {"format_version": version}, newest=4, oldest=3)


@pytest.mark.parametrize("found", [{"a": 1}, {"a": 1, "b": 2, "c": 3}, [1], None])
def test_other_keys_are_rejected(found):
    with pytest.raises(QIPFFileError, match="its header is"):
        require_keys("f", "header", found, ("a", "b"))


def test_the_reason_is_part_of_the_error():
    with pytest.raises(QIPFFileError, match=r"^model.qipf cannot be used: it is empty\.$"):
        refuse("model.qipf", "it is empty")


def test_older_headers_get_the_keys_they_lack():
    old = {"format_version": 3, "library_version": "0.3", "kind": "layers"}
    old |= {"parameters": {}, "layers": [], "network": None}
    assert checked_header(old, "f") == {
        **old,
        "rule": None,
        "detection": None,
        "training_rows": None,
        "lengths": [],
    }
    with pytest.raises(QIPFFileError, match="its header is"):
        checked_header({**old, **written_by()}, "f")


@pytest.mark.parametrize(
    ("changes", "phrase"),
    [
        ({"kind": "pickle"}, "its kind is 'pickle'"),
        ({"kind": ["rule"]}, "its kind is"),
        ({"kind": "monitor"}, "holds the state of a monitor"),
        ({"format_version": 2}, "its format version is 2"),
        ({"library_version": 3}, "its library_version is 3"),
        ({"extra": 1}, "its header is"),
    ],
)
def test_other_headers_are_rejected(changes, phrase):
    valid = {**written_by(), "kind": "rule", "rule": {}}
    assert checked_header(valid, "f") == valid
    with pytest.raises(QIPFFileError, match=phrase):
        checked_header({**valid, **changes}, "f")
