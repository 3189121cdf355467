"""Calibration rows that are training rows: the limits by hand, and what counts as equal."""

import warnings

import numpy as np
import pytest
import torch

from qipf import QIPFInputError
from qipf.calibration.training_rows import (
    TrainingSample,
    _chance,
    refuse_training_rows,
    training_share,
    warn_of_repeated_rows,
)

RNG = np.random.default_rng(0)
SCALES = np.array([1.0, 5.0, 0.5, 3.0, 2.0])  # the second, fourth and fifth columns vary most
SAMPLE, NEW = (RNG.normal(size=(1000, 5)) * SCALES for _ in range(2))


def refuse(given, total, sample=SAMPLE):
    refuse_training_rows(torch.from_numpy(given), TrainingSample(torch.from_numpy(sample), total))


def rows_with(known, count=100):
    """Rows of which so many are of the sample."""
    return np.concatenate([SAMPLE[:known], NEW[: count - known]])


def test_the_fewest_that_prove_it():
    # no two rows of the sample match: chance counts as (0 + 3 + 3) in 1000 rows, in 64 steps, and
    # its standard error as that of one pair
    chance = 100 * 6 / 1000 / 64
    limit = 3 + 5 * (chance + (100 * 2 / 1000) ** 2) ** 0.5
    assert 4 - chance < limit < 5 - chance
    refuse(rows_with(4), 10_000)
    share = (5 - chance) / 100 * 10_000 / 1000
    with pytest.raises(QIPFInputError, match=f"About {share:.0%} of the calibration rows"):
        refuse(rows_with(5), 10_000)


def test_the_largest_share_that_may_be_training_rows():
    refuse(rows_with(20), 1000)
    with pytest.raises(QIPFInputError, match="About 21% of the calibration rows"):
        refuse(rows_with(21), 1000)
    with pytest.raises(QIPFInputError, match="About 100% of the calibration rows"):
        refuse(rows_with(100), 5000)


def test_rows_are_compared_by_the_three_columns_that_vary_most():
    given = SAMPLE.copy()
    given[:, [0, 2]] += 1.0
    with pytest.raises(QIPFInputError, match="training rows"):
        refuse(given, 1000)
    for column in (1, 3, 4):
        given = SAMPLE.copy()
        given[:, column] += SAMPLE[:, column].std() * 2.0**-15
        refuse(given, 1000)


def test_rounding_of_a_batch_leaves_rows_equal():
    given = SAMPLE * (1 + 1e-7)
    with pytest.raises(QIPFInputError, match="About (9|100)"):
        refuse(given, 1000)


def test_equal_rows_of_few_values_are_chance():
    few = RNG.integers(0, 3, size=(1000, 2)).astype(float)
    refuse(few, 1000, few)  # half of the sample holds every row of the other half


def test_too_few_rows_prove_nothing():
    refuse(SAMPLE[:1], 1, SAMPLE[:1])
    refuse(SAMPLE[:0], 1000)


def margins(rng, count, distinct):
    """One number for each row, few of them distinct and some frequent, as of boosted trees."""
    values = np.random.default_rng(1).normal(size=distinct)
    frequency = 1 / np.arange(1, distinct + 1)
    return rng.choice(values, (count, 1), p=frequency / frequency.sum())


@pytest.mark.parametrize("distinct", [20, 400, 20_000])
@pytest.mark.parametrize(("kept", "total"), [(30, 300), (70, 341)])
def test_held_out_margins_of_trees_are_no_training_rows(distinct, kept, total):
    """A small sample tells poorly how often rows are equal by chance."""
    rng = np.random.default_rng(0)
    for _ in range(40):
        refuse(margins(rng, 228, distinct), total, margins(rng, kept, distinct))


def test_training_margins_of_trees_are_still_found():
    rng = np.random.default_rng(0)
    for _ in range(5):
        sample = margins(rng, 1000, 20_000)
        with pytest.raises(QIPFInputError, match="training rows"):
            refuse(sample, 1000, sample)


def test_chance_by_hand():
    """A pair, three equal rows and five others; far apart in coarse steps too."""
    rows = 1e6 * np.array([[0.0], [0.0], [1.0], [1.0], [1.0], [2.0], [3.0], [4.0], [5.0], [6.0]])
    assert _chance(rows) == (0.5, (3 + 2 * 4 + 4) ** 0.5 / 10)


def test_chance_of_rows_that_are_close():
    """Two pairs that match in steps of 64 alone: four rows, and their sampling error."""
    rows = np.array([[0.0], [10.0], [6400.0], [6410.0], *([1e5 * k] for k in range(1, 7))])
    coarse = (4 + 3 + 3 * 5**0.5) / 10 / 64
    assert _chance(rows) == pytest.approx((coarse, 4**0.5 / 10), rel=1e-12)


def test_constant_logits_are_compared_without_overflow():
    sample = TrainingSample(torch.full((50, 3), 1e6, dtype=torch.float64), 50)
    assert training_share(torch.full((20, 3), 1e6).double(), sample) is None  # equal by chance
    assert training_share(torch.randn(20, 3).double(), sample) is None


def repeated(given, total=10_000, sample=SAMPLE):
    """What is warned of repeated rows; None without a warning."""
    known = TrainingSample(torch.from_numpy(sample), total)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        warn_of_repeated_rows(torch.from_numpy(given), known)
    return str(found[0].message) if found else None


def test_the_fewest_repeated_rows_that_are_more_than_chance():
    # as above; among 2,000 rows, twice as many as the sample has, a row has twice the chance
    chance = 2000 * 2 * 6 / 1000 / 64
    limit = chance + 3 + 5 * (chance + (2000 * 2 * 2 / 1000) ** 2) ** 0.5
    assert 43 < limit < 44
    new = np.random.default_rng(1).normal(size=(2000, 5)) * SCALES
    assert repeated(np.concatenate([new[43:], new[-43:]])) is None
    assert repeated(np.concatenate([new[44:], new[-44:]])) == (
        "44 of 2,000 calibration rows equal others. If examples were passed more than once "
        "(several epochs, drawing with replacement), rules and p-values promise too much: pass "
        "each of them once. Rounded or discrete inputs may be equal without that."
    )


def test_two_epochs_and_draws_with_replacement_are_repeated():
    assert "600 of 1,200" in repeated(np.concatenate([NEW[:600], NEW[:600]]))
    assert "593 of 1,200" in repeated(np.concatenate([NEW[:600], NEW[:600] * (1 + 1e-7)]))
    drawn = np.random.default_rng(0).integers(0, 100, 1000)
    assert "900 of 1,000" in repeated(NEW[drawn])


@pytest.mark.parametrize("distinct", [20, 400, 20_000])
@pytest.mark.parametrize("kept", [30, 300, 1000])
@pytest.mark.parametrize("count", [100, 1000, 8000])
def test_equal_margins_of_trees_are_not_repeated_rows(distinct, kept, count):
    rng = np.random.default_rng(0)
    for _ in range(10):
        given, sample = margins(rng, count, distinct), margins(rng, kept, distinct)
        assert repeated(given, sample=sample) is None


@pytest.mark.parametrize("columns", [1, 2])
def test_equal_rounded_numbers_are_not_repeated_rows(columns):
    """Of single numbers many are equal by chance in the steps in which they are compared."""
    rng = np.random.default_rng(0)
    for count in (500, 20_000):
        given, sample = (rng.normal(size=(n, columns)) for n in (count, 1000))
        assert repeated(given, sample=sample) is None
        assert repeated(np.round(given * 3), sample=np.round(sample * 3)) is None


@pytest.mark.parametrize(("kept", "count"), [(1000, 60_000), (300, 5000)])
def test_of_many_rows_repetitions_are_not_told_from_chance(kept, count):
    """The limit that docs/promises.md states; of 10,000 rows they are, with 1,000 kept."""
    rng = np.random.default_rng(0)
    new, sample = rng.normal(size=(count, 5)), rng.normal(size=(kept, 5))
    assert repeated(np.concatenate([new, new]), sample=sample) is None
    tenth = new[: count // 6]
    assert "calibration rows equal" in repeated(np.concatenate([tenth, tenth]), sample=sample)


def test_too_few_training_rows_tell_nothing_of_repeated_rows():
    assert repeated(np.concatenate([NEW, NEW]), sample=SAMPLE[:1]) is None
