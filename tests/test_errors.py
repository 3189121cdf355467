"""Warnings point at the line of the user that led to them."""

import warnings

from qipf import QIPFWarning
from qipf.errors import warn


def test_a_warning_points_outside_the_package():
    code = compile("def inside():\n    warn('look')", warn.__code__.co_filename, "exec")
    names = {"warn": warn}
    exec(code, names)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        names["inside"]()
    assert [(w.category, w.filename) for w in warned] == [(QIPFWarning, __file__)]
