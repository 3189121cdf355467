"""Numbers in text, as every command reads them."""

from __future__ import annotations


def parse_number(text: str | bytes) -> float:
    """What a text says, if it is a number; what only Python calls one is none.

    >>> parse_number("-1.5e3"), parse_number(b" inf")
    (-1500.0, inf)
    >>> parse_number("1_0")
    Traceback (most recent call last):
    ...
    ValueError: not a number
    """
    # Python's own: 1_0 is ten, and digits of other scripts are digits
    if not text.isascii() or (b"_" if isinstance(text, bytes) else "_") in text:  # type: ignore[operator]
        raise ValueError("not a number")
    return float(text)


def is_number(text: str | bytes) -> bool:
    """Whether `number` can read it.

    >>> is_number("1e-3"), is_number("one")
    (True, False)
    """
    try:
        parse_number(text)
    except ValueError:
        return False
    return True
