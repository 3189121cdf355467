"""Scripts of benchmarks/ as modules."""

import sys
from importlib import import_module
from pathlib import Path

FOLDER = str(Path(__file__).parents[2] / "benchmarks")


def script(name):
    """A script of benchmarks/, which may import others of them."""
    sys.path.insert(0, FOLDER)
    try:
        return import_module(name)
    finally:
        sys.path.remove(FOLDER)
