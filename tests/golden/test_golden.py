"""The faithful method against committed values, so that no refactoring changes them."""

import json

import numpy as np
import pytest
import torch

from qipf import QIPF
from qipf.field.potential import NORMALIZATIONS
from tests.golden.make import FILE, text

GOLDEN = json.loads(FILE.read_text(encoding="utf-8"))
TRAIN, QUERIES = np.array(GOLDEN["train"]), np.array(GOLDEN["queries"])
VARIANTS = GOLDEN["variants"]


def equal(found, expected):
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-10, atol=1e-10)


def test_every_normalization_is_there_with_and_without_softening():
    found = {(entry["normalization"], entry["softening"]) for entry in VARIANTS}
    assert found == {(name, softening) for name in NORMALIZATIONS for softening in (0.0, 0.1)}


@pytest.mark.parametrize("engine", ["auto", "reference"])
@pytest.mark.parametrize("expected", VARIANTS, ids=lambda entry: entry["normalization"])
def test_field_equals_the_committed_values(expected, engine):
    divisor = expected["divisor"]
    queries = QUERIES / divisor
    field = QIPF(
        bandwidth="silverman",
        normalization=expected["normalization"],
        softening=expected["softening"],
        engine=engine,
    ).fit(TRAIN / divisor)
    assert field.centers_.dtype == np.float64
    equal(field.bandwidth_, GOLDEN["bandwidth"] / divisor)
    equal(field.energies_, expected["energies"])
    equal(field.ground_energy_, GOLDEN["ground_energy"])
    equal(field.modes(queries), expected["modes"])
    equal(field.uncertainty(queries), expected["uncertainty"])
    equal(field.potential(queries), GOLDEN["potential"])
    equal(field.log_density(queries), GOLDEN["log_density"])
    equal(-field.score_samples(queries), expected["uncertainty"])
    many = torch.from_numpy(queries).repeat(20, 1)  # of more rows than NumPy is used for
    equal(field.uncertainty(many), np.tile(expected["uncertainty"], 20))


@pytest.mark.slow
def test_the_script_writes_the_committed_file():
    assert text() == FILE.read_text(encoding="utf-8")
