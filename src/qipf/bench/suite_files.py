"""A user's own suite, in YAML.

.. code-block:: yaml

    name: mine
    networks:
      - digits_mlp
      - {name: digits_short, dataset: digits, network: mlp, recipe: {epochs: 5}}
    corruptions:
      rotation: all
      zoom: [0.5, 2]
    methods: [qipf, entropy, ensemble]
    options:
      ensemble: {networks: 5}
    seed: 0

Only ``networks`` must be there. ``corruptions`` and ``methods`` may be ``all``, ``methods`` also
``paper``; ``clean: false`` leaves the clean images out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from qipf.bench.corruptions import CORRUPTIONS
from qipf.bench.methods import METHODS
from qipf.bench.networks import Recipe
from qipf.bench.options import checked_options
from qipf.bench.suites import (
    BENCH_NETWORKS,
    PAPER_METHODS,
    BenchNetwork,
    Suite,
    check_levels,
    method_options,
)
from qipf.errors import QIPFError, QIPFInputError, first_line, unknown_name

T = TypeVar("T")


def read_suite(path: Path) -> Suite:
    """The suite that a YAML file describes; what is wrong with it is told with its line."""
    yaml = _yaml()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise QIPFInputError(f"Cannot read the suite {path}: {reason}.") from error
    try:
        loader = yaml.SafeLoader(text)
    except yaml.YAMLError as error:  # a character that no YAML holds
        raise QIPFInputError(f"{path}: not YAML ({first_line(error)}).") from error
    try:
        node = loader.get_single_node()
        if node is None:
            raise QIPFInputError(f"{path} is empty; a suite names at least its networks.")
        return _Reader(path, loader).suite(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise QIPFInputError(f"{path}{line}: not YAML ({error.problem}).") from error
    finally:
        loader.dispose()


class _Reader:
    """Turns the nodes of one file into a suite; nodes know their lines."""

    def __init__(self, path: Path, loader: Any) -> None:
        self._path = path
        self._loader = loader

    def suite(self, node: Any) -> Suite:
        parts = self._mapping(node, "a suite")
        readers: dict[str, Callable[[Any], Any]] = {
            "name": lambda n: self._plain(n, "name", str, "a text"),
            "networks": lambda n: tuple(self._items(n, "networks", self._network)),
            "corruptions": self._corruptions,
            "methods": self._methods,
            "options": self._options,
            "seed": lambda n: self._plain(n, "seed", int, "a whole number"),
            "clean": lambda n: self._plain(n, "clean", bool, "true or false"),
        }
        given: dict[str, Any] = {"name": self._path.stem}
        for key, (key_node, value) in parts.items():
            with self._at(key_node):
                if key not in readers:
                    raise unknown_name("key of a suite", key, readers)
            with self._at(value):
                given[key] = readers[key](value)
        with self._at(node):
            if "networks" not in given:
                raise QIPFInputError("networks is missing. For example: networks: [digits_mlp]")
            return Suite(**given)

    def _network(self, node: Any) -> BenchNetwork:
        value = self._value(node)
        if isinstance(value, str):
            if value not in BENCH_NETWORKS:
                raise unknown_name("network", value, BENCH_NETWORKS)
            return BENCH_NETWORKS[value]
        parts = self._mapping(node, "a network")
        known = ("name", "dataset", "network", "recipe")
        for key, (key_node, _) in parts.items():
            with self._at(key_node):
                if key not in known:
                    raise unknown_name("key of a network", key, known)
        for key in ("dataset", "network"):
            if key not in parts:
                raise QIPFInputError(f"{key} of the network is missing.")
        names = {
            key: self._plain(parts[key][1], key, str, "a text") for key in known[:3] if key in parts
        }
        names.setdefault("name", f"{names['dataset']}_{names['network']}")
        recipe = self._checked(parts["recipe"][1], "recipe") if "recipe" in parts else {}
        return BenchNetwork(**names, recipe=recipe)

    def _checked(self, node: Any, what: str) -> dict[str, Any]:
        """Options one by one, so that the error has the line of the one that is wrong."""
        checked: dict[str, Any] = {}
        for key, (_, value) in self._mapping(node, what).items():
            with self._at(value):
                if what == "recipe":
                    checked |= checked_options(what, Recipe, {key: self._value(value)})
                else:
                    checked |= method_options(what, {key: self._value(value)})
        return checked

    def _corruptions(self, node: Any) -> Mapping[str, Any]:
        if self._value(node) == "all":
            return dict.fromkeys(CORRUPTIONS)
        chosen: dict[str, Any] = {}
        for key, (key_node, value) in self._mapping(node, "corruptions").items():
            with self._at(key_node):
                check_levels(key, None)
            with self._at(value):
                levels = self._value(value)
                if levels != "all" and not isinstance(levels, list):
                    raise QIPFInputError(
                        f"The levels of {key} must be a list of numbers, or all; got {levels!r}."
                    )
                chosen[key] = None if levels == "all" else levels
                check_levels(key, chosen[key])
        return chosen

    def _methods(self, node: Any) -> tuple[str, ...]:
        value = self._value(node)
        if value in ("all", "paper"):
            return METHODS if value == "all" else PAPER_METHODS
        return tuple(self._items(node, "methods", self._method))

    def _method(self, node: Any) -> str:
        name = self._plain(node, "a method", str, "a text")
        if name not in METHODS:
            raise unknown_name("method", name, METHODS)
        return name

    def _options(self, node: Any) -> dict[str, dict[str, Any]]:
        chosen = {}
        for method, (key_node, value) in self._mapping(node, "options").items():
            with self._at(key_node):
                method_options(method, {})
            chosen[method] = self._checked(value, method)
        return chosen

    def _value(self, node: Any) -> Any:
        return self._loader.construct_object(node, deep=True)

    def _plain(self, node: Any, what: str, kind: type[T], word: str) -> T:
        with self._at(node):
            value = self._value(node)
            if type(value) is not kind:  # exactly: true is not taken for the number 1
                raise QIPFInputError(f"{what} must be {word}; got {value!r}.")
            return value

    def _items(self, node: Any, what: str, read: Callable[[Any], T]) -> Iterator[T]:
        if not isinstance(node.value, list) or node.id != "sequence":
            raise QIPFInputError(f"{what} must be a list; got {self._value(node)!r}.")
        for item in node.value:
            with self._at(item):
                yield read(item)

    def _mapping(self, node: Any, what: str) -> dict[str, tuple[Any, Any]]:
        """Key to the nodes of key and value."""
        with self._at(node):
            if node.id != "mapping":
                raise QIPFInputError(f"{what} must be keys with values; got {self._value(node)!r}.")
        parts: dict[str, tuple[Any, Any]] = {}
        for key_node, value in node.value:
            with self._at(key_node):
                key = str(self._value(key_node))
                if key in parts:
                    raise QIPFInputError(f"{key!r} of {what} is there twice.")
                parts[key] = (key_node, value)
        return parts

    @contextmanager
    def _at(self, node: Any) -> Iterator[None]:
        """Errors from within get the node's line, unless they have one."""
        try:
            yield
        except _LocatedError:
            raise
        except QIPFInputError as error:
            line = node.start_mark.line + 1
            raise _LocatedError(f"{self._path}, line {line}: {error}") from error


class _LocatedError(QIPFInputError):
    """An error that names its line already."""


def _yaml() -> Any:
    try:
        import yaml
    except ImportError as error:
        raise QIPFError("Suites from files need PyYAML: pip install 'qipf[bench]'.") from error
    return yaml
