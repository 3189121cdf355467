"""Checks of file headers that every reader shares."""

import pytest

from qipf import QIPFFileError
from qipf.io.schema import refuse, require_keys, require_version


def test_valid_headers_pass():
    assert require_version("f", {"format_version": 2}, newest=3) == 2
    require_keys("f", "header", {"a": 1, "b": 2}, ("b", "a"))


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (None, "format version is None"),
        (0, "format version is 0"),
        (True, "is True"),
        (4, "newer qipf"),
    ],
)
def test_unreadable_versions_are_rejected(version, message):
    with pytest.raises(QIPFFileError, match=message):
        require_version("f", {"format_version": version}, newest=3)


@pytest.mark.parametrize("found", [{"a": 1}, {"a": 1, "b": 2, "c": 3}, [1], None])
def test_other_keys_are_rejected(found):
    with pytest.raises(QIPFFileError, match="its header is"):
        require_keys("f", "header", found, ("a", "b"))


def test_the_reason_is_part_of_the_error():
    with pytest.raises(QIPFFileError, match=r"^model.qipf cannot be used: it is empty\.$"):
        refuse("model.qipf", "it is empty")
