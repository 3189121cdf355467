"""Models that one thread may fit while others score with them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    from typing_extensions import Self

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound="Snapshots")


class Snapshots:
    """A model whose attributes change all at once.

    Whatever changes several attributes does so in a copy (`_changed`), whose attributes then
    replace the model's in one step. Methods that read several run on a snapshot (`on_snapshot`),
    which keeps the attributes it was made with. So a call never mixes two fits.
    """

    if TYPE_CHECKING:

        def _require_fitted(self) -> None: ...

    def _snapshot(self) -> "Self":
        """The fitted model as it is now, whatever is fitted later."""
        self._require_fitted()
        view = object.__new__(type(self))
        view.__dict__ = self.__dict__  # the same dict: what a call caches is kept
        return view

    @contextmanager
    def _changed(self) -> "Iterator[Self]":
        """A copy to change. At the end its attributes become the model's; not if that fails."""
        copy = object.__new__(type(self))
        copy.__dict__ = dict(self.__dict__)
        yield copy
        self.__dict__ = copy.__dict__


def on_snapshot(method: "Callable[Concatenate[M, P], R]") -> "Callable[Concatenate[M, P], R]":
    """Make a method run on a snapshot of its model, which must be fitted."""

    @wraps(method)
    def call(model: M, /, *args: P.args, **options: P.kwargs) -> R:
        return method(model._snapshot(), *args, **options)

    return call
