r"""Formulas of the pages and docstrings as MathML, which needs neither scripts nor fonts.

``$...$`` and ``:math:`...` `` are formulas in the text; ``$$...$$`` and ``.. math::`` blocks are
formulas on lines of their own.
"""

import re

from latex2mathml.converter import convert
from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor
from mkdocs.plugins import event_priority

FORMULAS = re.compile(
    r"""
    ^(?P<margin>[ ]*)\.\.[ ]math::[ ]*(?P<block>[^\n]*(?:\n(?P=margin)[ ]+\S[^\n]*)*)
    | ^\$\$\s*(?P<display>[^$]+?)\s*\$\$[ ]*$
    | :math:`(?P<role>[^`]+)`
    | (?P<code>(?P<ticks>`+)(?!`)[\s\S]*?(?<!`)(?P=ticks)(?!`))
    | (?<![\\$\w])\$(?P<inline>[^\s$](?:[^$\n]*[^\s$])?)\$(?![\d$])
    """,
    re.MULTILINE | re.VERBOSE,
)


def mathml(tex: str, display: bool) -> str:
    """One formula; one on a line of its own scrolls where the page is narrow."""
    tex = re.sub(r"\\([bB]igg?)[lrm]\b", r"\\\1", " ".join(tex.split()))
    html = convert(tex, display="block" if display else "inline")
    return f'<div class="formula">{html}</div>' if display else html


class Formulas(Preprocessor):
    """Replaces formulas by placeholders of their MathML; fenced code has been taken out before."""

    def run(self, lines: list[str]) -> list[str]:
        """Markdown's own interface."""
        return FORMULAS.sub(self._replaced, "\n".join(lines)).split("\n")

    def _replaced(self, found: re.Match[str]) -> str:
        if found["code"]:
            return found[0]
        display = found["block"] or found["display"]
        html = mathml(display or found["role"] or found["inline"], bool(display))
        place = self.md.htmlStash.store(html)
        return f"\n{found['margin'] or ''}{place}\n" if display else place


class Maths(Extension):
    """The preprocessor, after fenced code (25) and before raw HTML (20)."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        """Markdown's own interface."""
        md.preprocessors.register(Formulas(md), "maths", 23)


@event_priority(100)  # before mkdocstrings, which renders docstrings with the same extensions
def on_config(config):
    """Add the extension to MkDocs's Markdown, and to that of docstrings."""
    config.markdown_extensions.append(Maths())
    return config
