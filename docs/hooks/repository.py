"""Files outside docs/ that pages link to: they become part of the site, and links lead to them.

A page in docs/ links to ``../results/README.md`` as it does in the repository. Here that file is
added to the site as ``results/README.md``, with whatever it links to in turn.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]

#: Pages of the navigation that are outside docs/.
PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "results/README.md", "results/paper/README.md")

LINK = re.compile(
    r"(?P<before>!?\[(?:[^\]\[]|\[[^\]]*\])*\]\()(?P<target>[^)\s#:]+)(?P<after>#[^)\s]*)?\)"
)


def place(uri: str) -> str:
    """Path in the repository of a file of the site.

    >>> place("theory.md"), place("results/README.md")
    ('docs/theory.md', 'results/README.md')
    """
    own = ROOT / "docs" / uri
    return uri if not own.exists() and (ROOT / uri).exists() else f"docs/{uri}"


def target_of(link: str, page: str) -> str | None:
    """Path in the repository of a relative link on the page with this path; None if no file."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
    if (ROOT / path).is_dir():
        path = posixpath.join(path, "README.md")
    return path if not path.startswith("..") and (ROOT / path).is_file() else None


def uri_of(path: str) -> str:
    """Name in the site of a file of the repository; a tutorial's script is a page.

    >>> uri_of("docs/theory.md"), uri_of("docs/tutorials/text.py")
    ('theory.md', 'tutorials/text.md')
    """
    return re.sub(r"^(tutorials/\w+)\.py$", r"\1.md", path.removeprefix("docs/"))


def relinked(text: str, page: str) -> str:
    """The page's text with links as they are in the site."""

    def changed(found: re.Match[str]) -> str:
        target = target_of(found["target"], page)
        if target is None:
            return found[0]
        link = posixpath.relpath(uri_of(target), posixpath.dirname(uri_of(page)) or ".")
        return f"{found['before']}{link}{found['after'] or ''})"

    return LINK.sub(changed, text)


def linked_files(pages: list[str]) -> set[str]:
    """Files outside docs/ that these pages link to, and those that they link to in turn."""
    found: set[str] = set()
    waiting = list(pages)
    while waiting:
        page = waiting.pop()
        text = (ROOT / page).read_text(encoding="utf-8")
        for link in LINK.finditer(text):
            target = target_of(link["target"], page)
            if target and not target.startswith("docs/") and target not in found:
                found.add(target)
                waiting += [target] if target.endswith(".md") else []
    return found


def on_files(files: Files, config) -> Files:
    """Add the files, and the pages of the navigation."""
    own = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    pages = [page for page in own if (ROOT / page).exists()]
    for path in sorted({*PAGES, *linked_files([*pages, *PAGES])}):
        files.append(File.generated(config, uri_of(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page, config, files) -> str:
    """Rewrite the links of every page that is a file of the repository."""
    path = place(page.file.src_uri)
    return relinked(markdown, path) if (ROOT / path).exists() else markdown
