"""Which columns of a table are logits, and which one is the label."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from qipf.errors import QIPFInputError

#: Columns taken as logits when none are named.
LOGITS = "logit*"

#: Columns taken as the label, if there, when none is named.
LABELS = ("labels", "label")

#: Ask for the label if there is one; None leaves it among the other columns.
AUTO = "auto"


def chosen_columns(path: str, present: Sequence[str], wanted: str | None) -> list[str]:
    """The logits' columns: names and patterns by comma, in the order asked for.

    A pattern takes columns that end in numbers by their number, others as they stand in the file.

    >>> chosen_columns("a.csv", ["id", "logit_10", "logit_2"], None)
    ['logit_2', 'logit_10']
    >>> chosen_columns("a.csv", ["cat", "dog", "id"], "dog,cat")
    ['dog', 'cat']
    """
    chosen: list[str] = []
    for pattern in (wanted or LOGITS).split(","):
        pattern = pattern.strip()
        if pattern in present:
            found = [pattern]
        else:
            found = _by_number([name for name in present if fnmatchcase(name, pattern)])
        if not found:
            near = difflib.get_close_matches(pattern, present, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise QIPFInputError(
                f"{path} has no column {pattern!r}.{hint} It has: {listed(present)}. Choose the "
                "logits with --columns, names or patterns by comma."
            )
        chosen += [name for name in found if name not in chosen]
    repeated = next((name for name in chosen if list(present).count(name) > 1), None)
    if repeated is not None:
        raise QIPFInputError(f"{path} has more than one column {repeated!r}. Rename one of them.")
    return chosen


def chosen_label(
    path: str, present: Sequence[str], wanted: str | None, what: str = "column"
) -> str | None:
    """The label's column (or array): the one named, with "auto" one called so, if there is one.

    >>> chosen_label("a.csv", ["label", "logit_0"], "auto")
    'label'
    """
    if wanted is None:
        return None
    if wanted == AUTO:
        return next((name for name in LABELS if name in present), None)
    if wanted not in present:
        raise QIPFInputError(
            f"{path} has no {what} {wanted!r} for the labels. It has: {listed(present)}."
        )
    return wanted


def listed(names: Sequence[str], most: int = 12) -> str:
    """Names by comma, the first of them if there are many."""
    return ", ".join(names[:most]) + (f", … ({len(names)} in all)" if len(names) > most else "")


def _by_number(names: list[str]) -> list[str]:
    numbers = [re.search(r"(\d+)$", name) for name in names]
    if not all(numbers):
        return names
    return sorted(names, key=lambda name: int(re.search(r"(\d+)$", name).group()))  # type: ignore[union-attr]
