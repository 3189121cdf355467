"""Selection of the columns of a table that hold the logits and the label."""

import difflib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from qipf.errors import QIPFInputError
from qipf.io.logits.table import is_number

#: Columns selected as logits when none are named.
LOGITS = "logit*"

#: Columns selected as the label, if present, when none is named.
LABELS = ("labels", "label")

#: Select the label if there is one; None leaves it among the other columns.
AUTO = "auto"


def is_header(fields: Sequence[str]) -> bool:
    """Whether the first line of a text file names its columns.

    It does if it is not all numbers, or if it is 0,1,2,…: the names that pandas gives.

    >>> is_header(["id", "0", "1"]), is_header(["0", "1"]), is_header(["0", "1.5"])
    (True, True, False)
    """
    return not all(map(is_number, fields)) or (len(fields) > 1 and _numbered(fields) == [*fields])


def require_commas(
    path: str, fields: Sequence[str], expected: Callable[[Sequence[str]], bool] = lambda parts: True
) -> None:
    """Raise if a first line is one field, which another mark separates into expected parts."""
    marks = {";": "semicolons", "\t": "tabs"}
    for mark, name in marks.items() if len(fields) == 1 else ():
        parts = [part.strip() for part in fields[0].split(mark)]
        if len(parts) > 1 and expected(parts):
            raise QIPFInputError(f"{path} separates its columns by {name}; commas are expected.")


def logit_columns(
    path: str, present: Sequence[str], wanted: str | None, label: str | None = None
) -> list[str]:
    """Names of the logits' columns, in the order of the names and patterns in `wanted`.

    Columns that match a pattern are ordered by the number they end in, if all of them do, else as
    in the file. Where nothing is wanted and no column is named ``logit*``, the logits are the
    columns 0, 1, 2, … (the names that pandas gives) other than `label`.

    >>> logit_columns("a.csv", ["id", "logit_10", "logit_2"], None)
    ['logit_2', 'logit_10']
    >>> logit_columns("a.csv", ["cat", "dog", "id"], "dog,cat")
    ['dog', 'cat']
    >>> logit_columns("a.csv", ["0", "1", "label"], None)
    ['0', '1']
    """
    chosen: dict[str, None] = {}  # in order; a list would take quadratic time
    names = set(present)
    for pattern in (wanted or LOGITS).split(","):
        pattern = pattern.strip()
        if pattern in names:
            found = [pattern]
        else:
            found = _by_number([name for name in present if fnmatchcase(name, pattern)])
        if not found and wanted is None:
            found = [name for name in _numbered(present) if name != label]
        if not found:
            near = difflib.get_close_matches(pattern, present, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise QIPFInputError(
                f"{path} has no column {pattern!r}.{hint} It has: {listed(present)}. Select the "
                "logits with --columns, names or patterns separated by commas."
            )
        chosen |= dict.fromkeys(found)
    return list(chosen)


def require_different(path: str, names: Sequence[str]) -> None:
    """Raise if two columns have the same name: one of them would be lost."""
    repeated = next((name for name, count in Counter(names).items() if count > 1), None)
    if repeated is not None:
        raise QIPFInputError(f"{path} has more than one column {repeated!r}. Rename one of them.")


def label_column(
    path: str, present: Sequence[str], wanted: str | None, what: str = "column"
) -> str | None:
    """Name of the label's column (or array): `wanted`, or with "auto" a usual name if present.

    >>> label_column("a.csv", ["label", "logit_0"], "auto")
    'label'
    """
    if wanted == AUTO:
        return next((name for name in LABELS if name in present), None)
    if wanted is not None and wanted not in present:
        raise QIPFInputError(
            f"{path} has no {what} {wanted!r} for the labels. It has: {listed(present)}."
        )
    return wanted


def logit_and_label_columns(
    path: str, present: Sequence[str], columns: str | None, labels: str | None
) -> tuple[list[str], str | None]:
    """Names of the logits' columns and of the label's, which must differ."""
    label = label_column(path, present, labels)
    chosen = logit_columns(path, present, columns, label)
    if label in chosen:
        raise QIPFInputError(
            f"{path}: the column {label!r} is selected both as a logit and as the label. Name "
            "fewer columns with --columns."
        )
    return chosen, label


def listed(names: Sequence[str], most: int = 12) -> str:
    """Join the first names by commas."""
    return ", ".join(names[:most]) + (f", … ({len(names)} in all)" if len(names) > most else "")


def _numbered(names: Sequence[str]) -> list[str]:
    """The columns 0, 1, 2, …; none unless they are numbered in this order."""
    found = [name for name in names if name.isdecimal()]
    return found if found == [str(k) for k in range(len(found))] else []


def _by_number(names: list[str]) -> list[str]:
    numbers = {name: re.search(r"\d+$", name) for name in names}
    if not all(numbers.values()):
        return names
    return sorted(names, key=lambda name: int(numbers[name][0]))  # type: ignore[index]
