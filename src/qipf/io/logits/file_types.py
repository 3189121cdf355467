"""Detection of files that are not text, by their first bytes."""

import re
from dataclasses import dataclass
from typing import BinaryIO


@dataclass(frozen=True)
class FileType:
    """A type of files that are not text."""

    what: str  # in words
    unpack: str | None = None  # the program that writes it unpacked to standard output


#: By patterns that no line of text begins with.
_TYPES = {
    rb"\x1f\x8b": FileType("compressed (gzip)", "zcat"),
    rb"\xfd7zXZ\x00": FileType("compressed (xz)", "xzcat"),
    rb"\x28\xb5\x2f\xfd": FileType("compressed (zstd)", "zstdcat"),
    rb"BZh[1-9](1AY&SY|\x17rE8P\x90)": FileType("compressed (bzip2)", "bzcat"),
    rb"PK\x03\x04": FileType("a zip archive, as .npz files are"),
    rb"\x93NUMPY": FileType("an .npy file"),
    rb"PAR1\x15": FileType("a Parquet file"),
}


def detect_binary(file: BinaryIO) -> FileType | None:
    """The type of a file, open at its start, that is not text; None if it is not known."""
    head = file.read(16)
    return next((found for pattern, found in _TYPES.items() if re.match(pattern, head)), None)
