"""What bad input gets: one family of errors, each of which says the way out."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class QIPFError(Exception):
    """Everything that qipf itself refuses."""


class QIPFInputError(QIPFError, ValueError):
    """An argument that cannot be used; a `ValueError`, as scikit-learn expects."""


class QIPFFileError(QIPFError, ValueError):
    """A file that is not what it should be: broken, forged, of another network or a newer qipf."""


class QIPFTypeError(QIPFInputError, TypeError):
    """An argument of a kind that cannot be used; a `TypeError` where scikit-learn expects it."""


class QIPFWarning(UserWarning):
    """Something was left out or replaced, and the result still holds."""


def first_line(error: BaseException) -> str:
    """What another library's error says first, to stand in a sentence; its kind if it says nothing.

    >>> first_line(OSError("Couldn't read it.\\nFooter at 4 .. 12"))
    "Couldn't read it"
    >>> first_line(KeyError())
    'KeyError'
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def unknown_name(what: str, name: object, known: Iterable[str]) -> QIPFInputError:
    """The error for a name that is not among the known ones, with the nearest of them.

    >>> str(unknown_name("engine", "atention", ["reference", "attention"]))
    "Unknown engine 'atention'. Did you mean 'attention'? Known: attention, reference."
    """
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=3, cutoff=0.6)
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    return QIPFInputError(f"Unknown {what} {name!r}.{hint} Known: {', '.join(names)}.")
