"""Errors and warnings of the library; each message says what to do."""

import difflib
import os
import sys
import warnings
from collections.abc import Iterable


class QIPFError(Exception):
    """Base of all errors that qipf raises on purpose."""


class QIPFInputError(QIPFError, ValueError):
    """Invalid argument; a `ValueError`, as scikit-learn expects."""


class QIPFFileError(QIPFError, ValueError):
    """Invalid file: damaged, of another network, or written by a newer version."""


class QIPFTypeError(QIPFInputError, TypeError):
    """Argument of an invalid type; a `TypeError`, as scikit-learn expects."""


class QIPFWarning(UserWarning):
    """Something was left out or replaced; the result is still valid."""


class QIPFScoreWarning(QIPFWarning):
    """A score should not be trusted as it is: another one is better, or the data are doubtful."""


def warn(message: str, category: type[QIPFWarning] = QIPFWarning) -> None:
    """Issue a warning that points at the line outside this package that led to it."""
    package = os.path.dirname(__file__) + os.sep
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(package):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def missing_extra(needed: str, extra: str) -> QIPFError:
    """The error for packages of an extra that are not installed.

    >>> str(missing_extra("Figures need matplotlib", "report"))
    "Figures need matplotlib: pip install 'qipf[report]', or pip install -e '.[report]' in a clone."
    """
    return QIPFError(
        f"{needed}: pip install 'qipf[{extra}]', or pip install -e '.[{extra}]' in a clone."
    )


def first_line(error: BaseException) -> str:
    """First line of an error's message, without the final dot; its type if there is no message.

    >>> first_line(OSError("Couldn't read it.\\nFooter at 4 .. 12"))
    "Couldn't read it"
    >>> first_line(KeyError())
    'KeyError'
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def shortened(text: str, most: int = 2000) -> str:
    """Text of at most so many characters, and how many it had."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"


def printable(text: str, most: int = 2000) -> str:
    """Text from a file that is safe to print: control characters escaped, long text shortened.

    >>> printable("layer\\x1b[2J"), printable("a" * 99, most=3)
    ('layer\\\\x1b[2J', 'aaa… (99 characters)')
    """
    text = shortened(text, most)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def unknown_name(what: str, name: object, known: Iterable[str]) -> QIPFInputError:
    """The error for an unknown name, with the most similar known names.

    >>> str(unknown_name("engine", "atention", ["reference", "attention"]))
    "Unknown engine 'atention'. Did you mean 'attention'? Known: attention, reference."
    """
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=3, cutoff=0.6)
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    return QIPFInputError(f"Unknown {what} {name!r}.{hint} Known: {', '.join(names)}.")
