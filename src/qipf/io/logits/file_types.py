"""What a file that should be text is instead, by how it begins and ends."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import BinaryIO


@dataclass(frozen=True)
class FileType:
    """What a file holds that is no text."""

    what: str  # in words
    unpack: str | None = None  # the program that writes it unpacked to standard output


_BZIP2 = FileType("compressed (bzip2)", "bzcat")
_PARQUET = b"PAR1"

#: By how they begin; as long as it takes for no line of text to begin so.
_KINDS = {
    b"\x1f\x8b": FileType("compressed (gzip)", "zcat"),
    b"\xfd7zXZ\x00": FileType("compressed (xz)", "xzcat"),
    b"\x28\xb5\x2f\xfd": FileType("compressed (zstd)", "zstdcat"),
    **{b"BZh%d1AY&SY" % size: _BZIP2 for size in range(1, 10)},
    **{b"BZh%d\x17rE8P\x90" % size: _BZIP2 for size in range(1, 10)},  # of nothing
    b"PK\x03\x04": FileType("a zip archive, as .npz files are"),
    b"\x93NUMPY": FileType("an .npy file"),
    _PARQUET: FileType("a Parquet file"),
}

_LONGEST = max(map(len, _KINDS))


def detect_binary(file: BinaryIO) -> FileType | None:
    """What a file, open at its start, is if it is no text; None if that cannot be told.

    >>> import io
    >>> detect_binary(io.BytesIO(b"\\x1f\\x8b\\x08"))
    FileType(what='compressed (gzip)', unpack='zcat')
    >>> detect_binary(io.BytesIO(b"PAR1,PAR2\\n1.5,2")) is None
    True
    """
    head = file.read(_LONGEST)
    if head.startswith(_PARQUET) and not _ends_as_parquet(file):
        return None  # a column may have that name
    return next((what for magic, what in _KINDS.items() if head.startswith(magic)), None)


def _ends_as_parquet(file: BinaryIO) -> bool:
    # the shortest one: the mark, the length of its footer, and the mark again
    if not file.seekable() or file.seek(0, os.SEEK_END) < 12:
        return False
    file.seek(-len(_PARQUET), os.SEEK_END)
    return file.read() == _PARQUET
