"""Locks that survive a fork."""

import os
import threading
from typing import Any
from weakref import WeakSet


class Lock:
    """A reentrant lock that can be copied and pickled, and is free in a forked process.

    The process that `os.fork` makes has one thread. A lock that another thread held would never be
    released there.

    >>> import pickle
    >>> with pickle.loads(pickle.dumps(Lock())):
    ...     pass
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return (Lock, ())


_locks: "WeakSet[Lock]" = WeakSet()


def _renew() -> None:
    for lock in _locks:
        lock._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
