"""Many plain lines at once: what most lines of a stream are, without a look at each number.

Whoever calls these gets every row, exactly as if each line had been read for itself, or None: then
some line is not plain, and each must be.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain
from operator import methodcaller

import numpy as np
from numpy.typing import NDArray

_commas = methodcaller("count", b",")
_decoded = json.JSONDecoder().raw_decode


def csv_rows(
    texts: list[bytes],
    width: int,
    at: Sequence[int],
    header: bytes | None,
) -> NDArray[np.float64] | None:  # (n, len(at))
    """The numbers at some of the `width` fields of each line; no line may be the header.

    >>> csv_rows([b"a,1,2", b"b,3,nan"], 3, [1, 2], None).tolist()
    [[1.0, 2.0], [3.0, nan]]
    >>> csv_rows([b"a,1,2", b"b,3"], 3, [1, 2], None) is None
    True
    """
    if width < 2:  # a line without commas may be empty
        return None
    block = _joined(texts)
    if block is None or '"' in block or set(map(_commas, texts)) != {width - 1}:
        return None
    lines = block.split("\n")
    if header is not None and header.decode() in lines:
        return None  # it may be all numbers where the logits stand
    try:
        rows = np.loadtxt(lines, delimiter=",", comments=None, usecols=at, ndmin=2)
    except ValueError:
        return None
    return rows if len(rows) == len(texts) else None


def json_rows(
    texts: list[bytes],
    dimension: int,
    key: str,
) -> NDArray[np.float64] | None:  # (n, dimension)
    """The list that is each line, or that the line's object has under a key; null becomes NaN.

    >>> json_rows([b"[1, 2.5]", b'{"logits": [3, null]}'], 2, "logits").tolist()
    [[1.0, 2.5], [3.0, nan]]
    >>> json_rows([b"[1, 2]", b"[1, true]"], 2, "logits") is None
    True
    """
    block = _joined(texts)
    if block is None:
        return None
    rows = []
    try:
        for text in block.split("\n"):
            value, end = _decoded(text)
            rows.append(value[key] if type(value) is dict else value)
            if end != len(text):
                return None
        sound = set(map(type, rows)) == {list} and set(map(len, rows)) == {dimension}
        if not sound or not set(map(type, chain.from_iterable(rows))) <= {float, int, type(None)}:
            return None
        return np.array(rows, np.float64)
    except (ValueError, KeyError, OverflowError, RecursionError):
        return None


def _joined(texts: list[bytes]) -> str | None:
    """The lines, without the carriage returns before their ends; None if there is more to them."""
    block = b"\n".join(texts)
    if b"\r" in block:
        block = (block + b"\n").replace(b"\r\n", b"\n")[:-1]
    # control characters: numpy, Python and JSON disagree about which of them are spaces
    control = np.count_nonzero(np.frombuffer(block, np.uint8) < 32)
    return block.decode("ascii") if block.isascii() and control == len(texts) - 1 else None
