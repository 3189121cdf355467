"""A run that takes seconds and has everything a figure or a page can show."""

from dataclasses import replace
from pathlib import Path

import pytest

from qipf.bench.runner import run
from qipf.bench.suites import BenchNetwork, Suite

TINY = Suite(
    "tiny",
    (
        BenchNetwork("tiny_mlp", "digits", "mlp", {"epochs": 8}),
        BenchNetwork("short_mlp", "digits", "mlp", {"epochs": 2}),
    ),
    corruptions={"rotation": (15, 30, 90), "zoom": (0.5, 2)},
    methods=("qipf", "entropy", "energy", "mc_dropout", "mc_dropout_entropy"),
    options={"mc_dropout": {"passes": 4}, "qipf": {"bandwidth": "silverman"}},
)

#: What accuracy estimates are compared on.
PAIRED = replace(TINY, name="paired", methods=("qipf", "softmax"))


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory) -> Path:
    """The run's folder; tests must not change it."""
    folder = tmp_path_factory.getbasetemp() / "runs" / "tiny"
    run(TINY, folder, device="cpu")  # finds what it has done already for other folders' tests
    return folder


@pytest.fixture(scope="session")
def paired_run(tmp_path_factory) -> Path:
    """The same networks, scored by qipf and softmax."""
    folder = tmp_path_factory.getbasetemp() / "runs" / "paired"
    run(PAIRED, folder, device="cpu")
    return folder
