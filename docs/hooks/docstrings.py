"""Our docstrings as Markdown: sections of names, examples, and comments beside attributes.

A section lists ``name : what it is`` without types, which are in the signatures; the readers of
NumPy's style would take the text for a type.
"""

import re

import griffe

SECTION = re.compile(r"^(Parameters|Attributes|Examples|Returns|Raises|Notes)\n-{3,}\n", re.M)
ITEM = re.compile(r"^([\w*]+(?:, [\w*]+)*) : (.*)$")


def markdown(text: str) -> str:
    """A docstring with its sections as Markdown.

    >>> print(markdown("Adds.\\n\\nParameters\\n----------\\na : a number,\\n    or two."))
    Adds.
    <BLANKLINE>
    **Parameters**
    <BLANKLINE>
    - `a`: a number,
      or two.
    """
    lines: list[str] = []
    for line in SECTION.sub(r"**\1**\n\n", text).split("\n"):
        item = ITEM.match(line)
        if item:
            names = ", ".join(f"`{name}`" for name in item[1].split(", "))
            lines.append(f"- {names}: {item[2]}")
        elif line.startswith("    ") and lines and lines[-1].startswith(("- ", "  ")):
            lines.append(line[2:])
        else:
            lines.append(line)
    return _fenced(lines)


def _fenced(lines: list[str]) -> str:
    """The lines with every interpreter session in a fence."""
    found: list[str] = []
    session = False
    for line in lines:
        if not session and line.startswith(">>>"):
            found.append("```pycon")
            session = True
        elif session and not line.strip():
            found.append("```")
            session = False
        found.append(line)
    return "\n".join([*found, "```"] if session else found)


class Docstrings(griffe.Extension):
    """Rewrites what Griffe reads."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Called for every module, class, function and attribute."""
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)
        elif obj.is_attribute and obj.lineno:
            line = obj.lines_collection[obj.filepath][obj.lineno - 1]
            comment = re.search(r"  # (?!type:|noqa)(.+)$", line)
            if comment:
                obj.docstring = griffe.Docstring(comment[1], parent=obj)
