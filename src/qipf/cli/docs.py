"""The reference page of the command line, made from the commands' own help.

``python -m qipf.cli.docs > docs/cli.md`` brings the page up to date; a test asks for it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any

import typer

from qipf.cli import EXIT_CODES, app

INTRODUCTION = """# The command line

Made from the commands' own help: do not edit, run `python -m qipf.cli.docs > docs/cli.md`.

Every command takes `--help`, and `--debug` for the traceback of an error. Progress bars appear in
terminals only. `qipf --install-completion` teaches the shell to complete commands and options.

"""


def commands() -> Iterator[tuple[str, Any]]:
    """Every command with its full name, groups left out."""

    def inside(name: str, command: Any) -> Iterator[tuple[str, Any]]:
        if not hasattr(command, "commands"):
            yield name, command
            return
        for child, each in command.commands.items():
            yield from inside(f"{name} {child}", each)

    yield from inside("qipf", typer.main.get_command(app))


def reference() -> str:
    """The page as Markdown."""
    parts = [INTRODUCTION + EXIT_CODES + "\n"]
    for name, command in commands():
        parts.append(f"\n## {name}\n\n{_help(command)}\n\n{_usage(name, command)}\n\n")
        parts.append("| | default | |\n| --- | --- | --- |\n")
        parts += [_line(each) for each in command.params if each.name != "help"]
    return "".join(parts)


def _help(command: Any) -> str:
    return inspect.cleandoc(command.help or "")


def _usage(name: str, command: Any) -> str:
    arguments = [each for each in command.params if not _is_option(each)]
    places = " ".join(
        each.name.upper() if each.required else f"[{each.name.upper()}]" for each in arguments
    )
    return f"Usage: `{name} {places} [OPTIONS]`".replace("  ", " ")


def _line(each: Any) -> str:
    if _is_option(each):
        called = ", ".join(f"`{name}`" for name in (*each.opts, *each.secondary_opts))
    else:
        called = f"`{each.name.upper()}`"
    if each.required:
        default = "needed"
    elif each.default is None or each.default is False or isinstance(each.default, bool):
        default = "on" if each.default else ""
    else:
        default = f"`{each.default}`"
    return f"| {called} | {default} | {(each.help or '').replace('|', chr(92) + '|')} |\n"


def _is_option(each: Any) -> bool:
    return each.param_type_name == "option"


if __name__ == "__main__":
    sys.stdout.write(reference())
