"""One HTML page in one file: works offline, asks no address for anything.

A page is a title, a lead and sections; a section is a heading and HTML, made of the blocks here
and of `qipf.report.charts.chart_html`. Style and script are inlined, and the page forbids itself
every request.

>>> page = page_html("A page", [Section("Hello", paragraph("2 < 3"))])
>>> "2 &lt; 3" in page
True
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template

from qipf._version import __version__
from qipf.errors import QIPFError, QIPFInputError
from qipf.io.atomic import atomic_write, checked_output
from qipf.report.charts import Choice

#: A page must fit in a mail.
LARGEST = 5_000_000

_SCRIPTS = ("scales.js", "draw.js", "charts.js", "tables.js", "gallery.js")


@dataclass(frozen=True)
class Section:
    """A part of a page: a heading, and HTML under it.

    `body` is HTML: build it with the functions of this module, which escape what they are given.
    """

    heading: str
    body: str

    @property
    def anchor(self) -> str:
        """The section's name in links."""
        return re.sub(r"\W+", "-", self.heading.lower()).strip("-") or "section"


@dataclass(frozen=True)
class Value:
    """A cell of a table: what is read, what it is sorted by, and whether it stands out.

    Without `key` a cell is sorted by its text; `note` is a second, smaller line.
    """

    text: str
    key: float | None = None
    best: bool = False
    note: str = ""


def page_html(title: str, sections: Sequence[Section], lead: str = "") -> str:
    """The whole page; `lead` is plain text under the title."""
    links = "".join(
        f'<li><a href="#{section.anchor}">{html.escape(section.heading)}</a></li>'
        for section in sections
    )
    parts = "".join(
        f'<section id="{section.anchor}" aria-labelledby="{section.anchor}-heading">'
        f'<h2 id="{section.anchor}-heading">{html.escape(section.heading)}</h2>'
        f"{section.body}</section>"
        for section in sections
    )
    return Template(_asset("page.html")).substitute(
        title=html.escape(title),
        lead=paragraph(lead, style="lead") if lead else "",
        links=links,
        sections=parts,
        version=html.escape(__version__),
        style=_asset("page.css"),
        script="\n".join(_asset(name) for name in _SCRIPTS),
    )


def write_page(path: Path | str, page: str) -> Path:
    """Write a page in one step: the file is whole, or what it was before."""
    path = checked_page(path)
    content = page.encode()
    if len(content) > LARGEST:
        raise QIPFError(
            f"The page would have {len(content) / 1e6:.1f} MB, more than {LARGEST / 1e6:g} MB. "
            "Report fewer networks or methods at once."
        )
    with atomic_write(path) as file:
        file.write(content)
    return path


def checked_page(path: Path | str) -> Path:
    """A place where a page can be written; call it before long work."""
    return checked_output(Path(path), (".html", ".htm"))


def paragraph(text: str, style: str = "") -> str:
    """A paragraph of plain text; `style` is a class: lead, note."""
    named = f' class="{style}"' if style else ""
    return f"<p{named}>{html.escape(text)}</p>"


def bullets(items: Sequence[str]) -> str:
    """A list of plain texts."""
    return "<ul>" + "".join(f"<li>{html.escape(item)}</li>" for item in items) + "</ul>"


def code(text: str) -> str:
    """Something to type, as it is."""
    return f'<pre tabindex="0"><code>{html.escape(text)}</code></pre>'


def subheading(text: str) -> str:
    """A heading within a section."""
    return f"<h3>{html.escape(text)}</h3>"


def facts(pairs: Mapping[str, str]) -> str:
    """Names with their values, one a line."""
    lines = "".join(
        f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>"
        for name, value in pairs.items()
    )
    return f'<dl class="facts">{lines}</dl>'


def table_html(
    header: Sequence[str],
    rows: Sequence[Sequence[Value | str]],
    caption: str,
    foot: Sequence[Sequence[Value | str]] = (),
) -> str:
    """A table whose columns can be sorted by click and by key; the first column names the row.

    `foot` rows stay below, whatever is sorted.
    """
    for row in (*rows, *foot):
        if len(row) != len(header):
            raise QIPFInputError(
                f"Every row must have the header's {len(header)} cells; got {len(row)}."
            )
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in header)
    body = "".join(_row(row) for row in rows)
    tail = f"<tfoot>{''.join(_row(row) for row in foot)}</tfoot>" if foot else ""
    label = html.escape(caption)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">'
        f'<table class="sortable"><caption>{label}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody>{tail}</table></div>"
    )


def views_html(views: Mapping[tuple[str, ...], str], choices: Sequence[Choice]) -> str:
    """Blocks of which selection boxes show one; in print all are there.

    `views` are HTML by the keys chosen in `choices`, in their order.
    """
    boxes = "".join(
        f"<label{' hidden' * (len(choice.options) == 1)}>{html.escape(choice.label)} <select>"
        + "".join(
            f'<option value="{html.escape(key)}">{html.escape(text)}</option>'
            for key, text in choice.options.items()
        )
        + "</select></label>"
        for choice in choices
    )
    blocks = "".join(
        f'<div data-key="{html.escape("|".join(key))}">{body}</div>' for key, body in views.items()
    )
    return f'<div data-views><div class="choices">{boxes}</div>{blocks}</div>'


def _row(cells: Sequence[Value | str]) -> str:
    values = [Value(cell) if isinstance(cell, str) else cell for cell in cells]
    first = f'<th scope="row">{html.escape(values[0].text)}</th>'
    return f"<tr>{first}{''.join(map(_cell, values[1:]))}</tr>"


def _cell(value: Value) -> str:
    key = "" if value.key is None else f' data-key="{value.key:.10g}"'
    text = html.escape(value.text)
    text = f"<strong>{text}</strong>" if value.best else text
    note = f"<small>{html.escape(value.note)}</small>" if value.note else ""
    return f"<td{key}>{text}{note}</td>"


def _asset(name: str) -> str:
    folder = resources.files("qipf.report") / "assets"
    return (folder / name).read_text(encoding="utf-8")
