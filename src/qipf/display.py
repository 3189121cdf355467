"""How results show: as text in a terminal, as a table in a notebook."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup, escape


def percent(share: float) -> str:
    """A share in percent, with four digits.

    >>> percent(0.05), percent(0.123456)
    ('5 %', '12.35 %')
    """
    return f"{100 * share:.4g} %"


def counted(number: int, what: str) -> str:
    """A number of things, in the singular or the plural.

    >>> counted(1, "held-out prediction"), counted(2000, "row")
    ('1 held-out prediction', '2,000 rows')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def aligned(facts: Mapping[str, str]) -> str:
    """Lines of names and values, the values below each other."""
    wide = max([14, *(len(name) + 2 for name in facts)])
    return "\n".join(
        f"{name:<{wide}}" + value.replace("\n", f"\n{'':{wide}}") for name, value in facts.items()
    )


class Shown(NamedTuple):
    """A title, named facts, and a table of which the first rows are given.

    >>> rows = [("a", "1"), ("b", "2")]
    >>> print(Shown("Two numbers", {"sum": "3"}, ("name", "value"), rows).text())
    Two numbers
      sum           3
      name  value
         a      1
         b      2
    """

    title: str
    facts: Mapping[str, str]
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    note: str = ""  # below the table, such as how many rows were left out

    def text(self) -> str:
        """Plain text, the columns of the table aligned."""
        lines = [self.title]
        if self.facts:
            lines += ["  " + line for line in aligned(self.facts).splitlines()]
        table = [self.header, *self.rows] if self.rows else []
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines += ["  " + "  ".join(map(str.rjust, row, widths)) for row in table]
        return "\n".join([*lines, *(["  " + self.note] if self.note else [])])

    def html(self) -> str:
        """The same as HTML; everything is escaped."""
        facts = [_row("th", name) + _row("td", value) for name, value in self.facts.items()]
        parts = [Markup("<p><strong>{}</strong></p>").format(self.title), _table(facts)]
        if self.rows:
            head = Markup("").join(_row("th", name) for name in self.header)
            rows = [Markup("").join(_row("td", cell) for cell in row) for row in self.rows]
            parts.append(_table([head, *rows]))
        if self.note:
            parts.append(Markup("<p>{}</p>").format(self.note))
        return str(Markup("").join(parts))


def _row(tag: str, text: str) -> Markup:
    lines = Markup("<br>").join(escape(line) for line in text.split("\n"))
    return Markup('<{0} style="text-align:left">{1}</{0}>').format(Markup(tag), lines)


def _table(rows: Sequence[Markup]) -> Markup:
    inner = Markup("").join(Markup("<tr>{}</tr>").format(row) for row in rows)
    return Markup("<table>{}</table>").format(inner) if rows else Markup("")
