"""The Triton engine's number format, and the conditions under which it runs."""

import importlib.util
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qipf import QIPFInputError
from qipf.field.engines import triton as subject


@settings(max_examples=80, deadline=None)
@given(st.floats(-1e30, 1e30).filter(lambda x: x == 0 or abs(x) > 1e-7))
def test_two_halves_have_22_bits(x):
    scaled = torch.tensor([x], dtype=torch.float64) * 2.0 ** subject._exponent(torch.tensor([x]))
    high, low = subject._split(scaled)
    assert abs(float(high) + float(low) - float(scaled)) <= 2.0**-22 * abs(float(scaled))
    assert x == 0 or 2**14 <= abs(float(scaled)) <= 2**15


@pytest.mark.parametrize(
    ("installed", "interpreted", "dimension", "message"),
    [
        (False, False, 3, "needs the package triton, which is not installed"),
        (True, False, 3, "needs centers on an NVIDIA GPU, got cpu"),
        (True, True, 129, "takes up to 128 dimensions, got 129"),
    ],
)
def test_what_cannot_run_raises(monkeypatch, installed, interpreted, dimension, message):
    monkeypatch.setattr(subject, "INSTALLED", installed)
    monkeypatch.setattr(subject, "INTERPRETED", interpreted)
    with pytest.raises(QIPFInputError, match=message):
        subject.TritonEngine(torch.zeros(4, dimension), 1.0)
    assert subject.obstacle(torch.zeros(4, 128)) is None or not interpreted


def test_the_kernels_can_be_imported_without_triton(monkeypatch):
    """As on a machine with torch for CPUs alone."""
    path = Path(subject.__file__).with_name("triton_kernels.py")
    spec = importlib.util.spec_from_file_location("without_triton", path)
    kernels = importlib.util.module_from_spec(spec)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    spec.loader.exec_module(kernels)
    assert not kernels.INSTALLED
    assert callable(kernels.packed_kernel)
