"""Tutorials: scripts in docs/tutorials/ that are run in the build and shown with their output.

A script has cells: ``# %% [markdown]`` is followed by text in comments, ``# %%`` by code. What a
cell prints, the value of its last expression, our warnings and its figures are shown below it. An
exception ends the build. Results are kept in build/tutorials/, by the content of the script and
the package.
"""

import ast
import base64
import contextlib
import hashlib
import io
import json
import os
import re
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import matplotlib
from mkdocs.structure.files import File, Files
from mkdocs.utils import log

from qipf.errors import QIPFWarning

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "tutorials"
KEPT = ROOT / "build" / "tutorials"

Part = dict[str, str]  # kind ("text", "code", "output" or "figure") -> content


def cells(script: str) -> list[tuple[str, str]]:
    """Kind ("text" or "code") and content of each cell.

    >>> cells("# %% [markdown]\\n# # Title\\n# %%\\nx = 1\\n")
    [('text', '# Title'), ('code', 'x = 1')]
    """
    found = []
    for part in re.split(r"^# %%", script, flags=re.MULTILINE)[1:]:
        mark, _, content = part.partition("\n")
        if mark.strip() == "[markdown]":
            content = re.sub(r"^# ?", "", content, flags=re.MULTILINE)
            found.append(("text", content.strip()))
        elif content.strip():
            found.append(("code", content.strip()))
    return found


def run_cell(code: str, names: dict[str, Any], name: str, warned: list[Any]) -> list[Part]:
    """Run a cell; what it printed, the value of its last expression, `warned`, and its figures."""
    tree = ast.parse(code, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, name, "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), name, "eval"), names)
            if value is not None and "matplotlib" not in repr(value):
                print(value if isinstance(value, str) else repr(value))
    for each in warned:
        if issubclass(each.category, QIPFWarning):
            printed.write(f"{each.category.__name__}: {each.message}\n")
    warned.clear()
    parts = [{"output": printed.getvalue().rstrip()}] if printed.getvalue().strip() else []
    return [*parts, *figures()]


def figures() -> list[Part]:
    """All open figures as PNG images; they are closed."""
    from matplotlib import pyplot

    found = []
    for number in pyplot.get_fignums():
        image = io.BytesIO()
        pyplot.figure(number).savefig(image, format="png", dpi=110, bbox_inches="tight")
        found.append({"figure": base64.b64encode(image.getvalue()).decode()})
    pyplot.close("all")
    return found


def run_script(path: Path) -> list[Part]:
    """All cells of a script with what they gave, run in an empty folder."""
    matplotlib.use("agg")
    names: dict[str, Any] = {"__name__": "__tutorial__"}
    parts: list[Part] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        warnings.catch_warnings(record=True) as warned,
    ):
        warnings.simplefilter("always")
        for kind, content in cells(path.read_text(encoding="utf-8")):
            parts.append({kind: content})
            if kind == "code":
                parts += run_cell(content, names, path.name, warned)
    return parts


def page(parts: list[Part], name: str) -> tuple[str, dict[str, bytes]]:
    """Markdown of a tutorial, and its images by file name."""
    lines, images = [], {}
    for part in parts:
        ((kind, content),) = part.items()
        if kind == "text":
            lines.append(content)
        elif kind == "code":
            lines.append(f"```python\n{content}\n```")
        elif kind == "output":
            lines.append(f"``` {{ .text .output }}\n{content}\n```")
        else:
            file = f"{name}-{len(images) + 1}.png"
            images[file] = base64.b64decode(content)
            lines.append(f"![Figure {len(images)}]({file})")
    lines.append(f"[This tutorial as a script]({name}.py), which runs as it is.")
    return "\n\n".join(lines) + "\n", images


def kept(path: Path) -> list[Part]:
    """The parts of a script, from the last build if neither it nor the package has changed."""
    sources = [path, Path(__file__), *sorted((ROOT / "src").rglob("*.py"))]
    digest = hashlib.sha256(b"".join(each.read_bytes() for each in sources)).hexdigest()
    place = KEPT / f"{path.stem}.json"
    if place.exists():
        stored = json.loads(place.read_text(encoding="utf-8"))
        if stored["digest"] == digest:
            return stored["parts"]
    start, cpu = time.monotonic(), time.process_time()
    parts = run_script(path)
    took = f"{time.monotonic() - start:.1f} s, {time.process_time() - cpu:.1f} s of a core"
    log.info(f"{path.name}: {took}")
    KEPT.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps({"digest": digest, "parts": parts}), encoding="utf-8")
    return parts


def on_files(files: Files, config) -> Files:
    """Add a page for every script."""
    only = os.environ.get("QIPF_TUTORIALS")  # names, to try some of them
    for path in sorted(FOLDER.glob("*.py")):
        wanted = only is None or path.stem in only.split(",")
        parts = kept(path) if wanted else [{"text": f"# {path.stem}\n\nNot run."}]
        text, images = page(parts, path.stem)
        files.append(File.generated(config, f"tutorials/{path.stem}.md", content=text))
        for name, image in images.items():
            files.append(File.generated(config, f"tutorials/{name}", content=image))
    return files


if __name__ == "__main__":  # python docs/hooks/tutorials.py NAME…: run and print
    import sys

    for name in sys.argv[1:]:
        for part in run_script(FOLDER / f"{name}.py"):
            ((kind, content),) = part.items()
            print(f"--- {kind}", content if kind != "figure" else f"{len(content)} bytes", sep="\n")
