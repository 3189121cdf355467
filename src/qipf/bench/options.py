"""Options given as data: are their names known, and is each of the kind it must be?"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Union

from qipf.errors import QIPFInputError, unknown_name

_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def checked_options(
    owner: str, make: Callable[..., object], options: Mapping[str, Any]
) -> dict[str, Any]:
    """The options of a dataclass by name, whole numbers as floats and lists as tuples where due.

    >>> from qipf.bench.networks import Recipe
    >>> checked_options("recipe", Recipe, {"epochs": 3, "learning_rate": 1})
    {'epochs': 3, 'learning_rate': 1.0}
    """
    hints = typing.get_type_hints(make)
    known = {name: hints[name] for name, f in _fields(make).items() if f.init}
    for name in options:
        if name not in known:
            raise unknown_name(f"option of {owner}", name, known)
    return {name: _typed(owner, name, value, known[name]) for name, value in options.items()}


def _fields(make: Any) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = make.__dataclass_fields__
    return fields


def _typed(owner: str, name: str, value: Any, hint: Any) -> Any:
    choices = _choices(hint)
    if type(value) in choices:  # exactly: True is not taken for the number 1
        return value
    if type(value) is int and float in choices:
        return float(value)
    if isinstance(value, (list, tuple)):
        for choice in choices:
            items = typing.get_args(choice)
            if typing.get_origin(choice) is tuple and all(type(v) is items[0] for v in value):
                return tuple(value)
    expected = " or ".join(_word(choice) for choice in choices)
    raise QIPFInputError(f"{name} of {owner} must be {expected}; got {value!r}.")


def _choices(hint: Any) -> tuple[Any, ...]:
    if typing.get_origin(hint) in (Union, types.UnionType):
        return typing.get_args(hint)
    return (hint,)


def _word(choice: Any) -> str:
    if choice is type(None):
        return "nothing"
    if typing.get_origin(choice) is tuple:
        return f"a list of {_word(typing.get_args(choice)[0]).split(' ', 1)[1]}s"
    return _WORDS[choice]
