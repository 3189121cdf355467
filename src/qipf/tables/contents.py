"""What a file that should be text is instead, by its first bytes."""

from __future__ import annotations

#: By how they begin.
_KINDS = {
    b"\x1f\x8b": "compressed (gzip)",
    b"BZh": "compressed (bzip2)",
    b"\xfd7zXZ": "compressed (xz)",
    b"\x28\xb5\x2f\xfd": "compressed (zstd)",
    b"PK\x03\x04": "a zip archive, as .npz files are",
    b"\x93NUMPY": "an .npy file",
    b"PAR1": "a Parquet file",
}

#: Bytes that tell.
HEAD = max(map(len, _KINDS))


def not_text(head: bytes) -> str | None:
    """In words, what begins with these bytes and is no text; None if that cannot be told.

    >>> not_text(b"\\x1f\\x8b\\x08")
    'compressed (gzip)'
    >>> not_text(b"1.5,2") is None
    True
    """
    return next((what for magic, what in _KINDS.items() if head.startswith(magic)), None)
