"""What a process forked from this one does."""

import os
import signal
import warnings
from collections.abc import Callable


def in_child(check: Callable[[], bool]) -> bool:
    """Whether a check holds in a forked process; one that hangs is ended after 20 seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that other threads exist is the point
        child = os.fork()
    if child == 0:
        signal.alarm(20)
        code = 1
        try:
            code = 0 if check() else 1
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0
