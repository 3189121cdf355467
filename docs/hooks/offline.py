"""The site loads nothing from other servers: a build that would fails."""

import re
from pathlib import Path

from mkdocs.exceptions import PluginError

LOADED = re.compile(
    r"<(?:script|img|iframe|source|video|audio)\b[^>]*\bsrc=[\"']?(?:https?:)?//[^\"'\s>]+"
    r"|<link\b(?=[^>]*\brel=[\"']?(?:stylesheet|preconnect|preload|icon|modulepreload))"
    r"[^>]*\bhref=[\"']?(?:https?:)?//[^\"'\s>]+"
)


def foreign(html: str) -> list[str]:
    """What a page would load from other servers.

    >>> foreign('<script src="https://a.org/b.js"></script> <a href="https://a.org">a</a>')
    ['<script src="https://a.org/b.js']
    """
    return LOADED.findall(html)


def on_post_build(config) -> None:
    """Look through all pages."""
    for path in sorted(Path(config.site_dir).rglob("*.html")):
        found = foreign(path.read_text(encoding="utf-8"))
        if found:
            raise PluginError(f"{path} loads from another server: {found[0]}")
