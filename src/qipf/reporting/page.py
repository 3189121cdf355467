"""Self-contained HTML pages, rendered from the Jinja2 templates of this package.

A page is a title, a lead and sections. Each section is a macro of a template, rendered with
autoescape on. Style and script are inlined, and the content security policy forbids every request.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from statistics import median
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from qipf._version import __version__
from qipf.errors import QIPFError
from qipf.io.atomic import atomic_write, checked_output
from qipf.plots.style import MISSING
from qipf.reporting.charts import choices

#: Largest page in bytes, so that it can be mailed.
LARGEST = 5_000_000

_SCRIPTS = ("scales.js", "draw.js", "charts.js", "tables.js", "gallery.js")


@dataclass(frozen=True)
class Section:
    """A section of a page: a heading and its rendered HTML."""

    heading: str
    body: Markup

    @property
    def anchor(self) -> str:
        """The section's name in links."""
        return re.sub(r"\W+", "-", self.heading.lower()).strip("-") or "section"


def percent(value: float) -> str:
    """A share as a percentage with three digits.

    >>> percent(0.01), percent(0.0123456), percent(0.9999)
    ('1%', '1.23%', '100%')
    """
    return f"{100 * value:.3g}%"


def page_html(title: str, sections: Sequence[Section], lead: str = "") -> str:
    """The whole page; `title` and `lead` are plain text."""
    return render_text(
        "page.html",
        title=title,
        lead=lead,
        sections=sections,
        version=__version__,
        style=_asset("page.css"),
        script=Markup("\n").join(_asset(name) for name in _SCRIPTS),
    )


def render(template: str, macro: str, **content: Any) -> Markup:
    """The HTML of a macro of a template; what it is given is escaped."""
    return getattr(_environment().get_template(template).module, macro)(**content)


def render_text(template: str, **content: Any) -> str:
    """The text of a whole template."""
    return _environment().get_template(template).render(content)


def write_page(path: Path | str, page: str) -> Path:
    """Write a page atomically."""
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
    """The path, if a page can be written there; call it before long work."""
    return checked_output(path, (".html", ".htm"))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("qipf.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": format, "percent": percent, "median": median}
    environment.globals |= {"choices": choices, "missing_text": MISSING}
    environment.policies["json.dumps_kwargs"] = {
        "ensure_ascii": False, "allow_nan": False, "separators": (",", ":"),
    }  # fmt: skip
    return environment


def _asset(name: str) -> Markup:
    folder = resources.files("qipf.reporting") / "assets"
    return Markup((folder / name).read_text(encoding="utf-8"))
