"""Generate the reference page of the command line from the commands' own help.

``python docs/cli_reference.py > docs/cli.md`` updates the page; a test checks it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any

import typer

from qipf.cli import EXIT_CODES, app

INTRODUCTION = """# The command line

Generated from the commands' help: do not edit, run `python docs/cli_reference.py > docs/cli.md`.

Every command accepts `--help`, and `--debug` to show the traceback of an error. Progress bars are
shown in terminals only. `qipf --install-completion` installs shell completion.

"""


def commands(name: str = "qipf", command: Any = None) -> Iterator[tuple[str, Any]]:
    """Every command with its full name, without groups."""
    command = typer.main.get_command(app) if command is None else command
    if not hasattr(command, "commands"):
        yield name, command
        return
    for child, each in command.commands.items():
        yield from commands(f"{name} {child}", each)


def reference() -> str:
    """The page as Markdown."""
    parts = [INTRODUCTION + EXIT_CODES + "\n"]
    for name, command in commands():
        usage = [f"[{_name(p)}]" if not p.required else _name(p) for p in _arguments(command)]
        parts.append(f"\n## {name}\n\n{inspect.cleandoc(command.help)}\n\n")
        parts.append(f"Usage: `{' '.join([name, *usage])} [OPTIONS]`\n\n")
        parts.append("| | default | |\n| --- | --- | --- |\n")
        parts += [_row(each) for each in command.params if each.name != "help"]
    return "".join(parts)


def _arguments(command: Any) -> list[Any]:
    return [each for each in command.params if each.param_type_name == "argument"]


def _name(argument: Any) -> str:
    return str(argument.name.upper())


def _row(each: Any) -> str:
    names = (*each.opts, *each.secondary_opts)
    if each.param_type_name == "argument":
        names = (_name(each),)
    default = f"`{each.default}`"
    if each.required:
        default = "required"
    elif each.default is None or isinstance(each.default, bool):
        default = "on" if each.default else ""
    listed = ", ".join(f"`{name}`" for name in names)
    return f"| {listed} | {default} | {(each.help or '').replace('|', chr(92) + '|')} |\n"


if __name__ == "__main__":
    sys.stdout.write(reference())
