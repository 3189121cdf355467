import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qipf.field.coreset import field_of
from qipf.field.reservoir import Reservoir, TrainingRows
from tests.conftest import make_logits


def drawn(stream, cuts, capacity, seed=0):
    reservoir = Reservoir(capacity, np.random.RandomState(seed))
    for part in torch.tensor_split(stream, sorted(cuts)):
        reservoir.add(part)
    return reservoir


def nearness_of(rows):
    """Infinite at both ends, and numbers that float32 keeps; told by the first of the row."""
    first = rows[:, 0].numpy().astype(np.float64)
    return np.select([first % 7 < 2, first % 7 > 6], [np.inf, -np.inf], -np.abs(first))


@settings(deadline=None)
@given(
    cuts=st.lists(st.integers(0, 200), max_size=12),
    capacity=st.integers(1, 250),
    count=st.integers(0, 200),
)
def test_the_sample_does_not_depend_on_the_cuts(cuts, capacity, count):
    stream = torch.arange(count)[:, None]
    cut, whole = drawn(stream, cuts, capacity), drawn(stream, [], capacity)
    assert cut.seen == whole.seen == count
    assert torch.equal(cut.rows, whole.rows)
    assert cut.rows.shape[0] == min(capacity, count)
    assert len(set(cut.rows.flatten().tolist())) == min(capacity, count)


@settings(deadline=None)
@given(cuts=st.lists(st.integers(0, 200), max_size=12), capacity=st.integers(1, 250))
def test_every_row_stays_or_leaves_and_the_order_of_leaving_does_not_depend_on_the_cuts(
    cuts, capacity
):
    stream = torch.arange(200)[:, None]
    left = []
    for places in (sorted(cuts), []):
        reservoir = Reservoir(capacity, np.random.RandomState(0))
        parts = torch.tensor_split(stream, places)
        left.append(torch.cat([reservoir.add(part) for part in parts]).flatten().tolist())
        stayed = reservoir.rows.flatten().tolist()
        assert sorted(left[-1] + stayed) == list(range(200))
    assert left[0] == left[1]


@pytest.mark.parametrize("reduction", ["random", "coreset"])
def test_training_rows_are_split_without_overlap(reduction):
    rows = torch.arange(400.0)[:, None]
    seen = TrainingRows(30, reduction, np.random.RandomState(0))
    for part in rows.split(90):
        seen.add(part, nearness_of(part))
    assert (seen.count, seen.varied, seen.labelled) == (400, True, True)
    held = seen.held_out()
    assert held == (370 if reduction == "random" else 80)
    sample = seen.sample[:, 0].numpy()
    np.testing.assert_array_equal(seen.sample_nearness(), nearness_of(seen.sample))
    part = seen.condensed(held, torch.device("cpu"))
    assert part.centers.shape == (30, 1)
    others = np.setdiff1d(np.arange(400.0), sample[-held:])
    if reduction == "random":
        assert set(part.centers[:, 0].tolist()) == set(others)
        assert part.spread == 0.0
    else:
        assert part.count == len(others) == 320
        mean = float(part.weights @ part.centers[:, 0].double()) / 320
        assert mean == pytest.approx(others.mean(), rel=1e-6)
        assert seen.condensed(0, torch.device("cpu")).count == 400


def test_what_is_gathered_is_what_is_condensed():
    rows, cpu = make_logits(400), torch.device("cpu")
    seen = {
        name: TrainingRows(30, name, np.random.RandomState(0)) for name in ("random", "coreset")
    }
    for kept in seen.values():
        kept.add(rows, None)
    kept = seen["coreset"]
    everything = kept.gathered(0, cpu)
    assert everything.spread == 0.0
    np.testing.assert_array_equal(np.sort(everything.centers, 0), np.sort(rows, 0))
    held = kept.held_out()
    part = kept.gathered(held, cpu)
    assert part.count == 400 - held
    left = {tuple(row) for row in kept.sample[-held:].tolist()}
    assert not left & {tuple(row) for row in part.centers.tolist()}
    # centres that are rows are already all there is
    random = seen["random"]
    assert torch.equal(random.gathered(0, cpu).centers, random.condensed(0, cpu).centers)
    assert torch.equal(random.condensed(0, cpu, 9.0).centers, random.condensed(0, cpu).centers)


def test_a_known_bandwidth_is_fitted_to():
    rows, cpu, sigma = make_logits(2000), torch.device("cpu"), 12.0
    queries = make_logits(300, seed=2)
    seen = TrainingRows(60, "coreset", np.random.RandomState(0))
    seen.add(rows, None)
    truth = field_of("auto", rows, sigma)(queries).log_density

    def error(part):
        found = field_of("auto", part.centers, sigma, part.log_weights, part.spread)(queries)
        return float((found.log_density - truth).square().mean())

    fitted = seen.condensed(0, cpu, sigma)
    assert fitted.count == pytest.approx(2000)
    assert error(fitted) < error(seen.condensed(0, cpu)) / 2


def test_every_row_has_the_same_chance():
    stream = torch.arange(50)[:, None]
    hits = np.zeros(50)
    for seed in range(2000):
        hits[drawn(stream, [7, 31], 10, seed).rows.flatten().numpy()] += 1
    expected, deviation = 400, np.sqrt(2000 * 0.2 * 0.8)
    assert np.abs(hits - expected).max() < 4.5 * deviation


def test_rows_are_copied_out_of_the_batch():
    batch = torch.zeros(4, 2)
    reservoir = Reservoir(10, np.random.RandomState(0))
    reservoir.add(batch)
    batch += 1
    assert float(reservoir.rows.sum()) == 0.0


# ---------------------------------------------------------------------- rows that pass elsewhere


@settings(deadline=None)
@given(
    cuts=st.lists(st.integers(0, 200), max_size=12),
    capacity=st.integers(1, 250),
    elsewhere=st.lists(st.booleans(), min_size=13, max_size=13),
)
def test_samples_merge_into_the_sample_of_all_rows(cuts, capacity, elsewhere):
    stream = torch.arange(200)[:, None]
    whole, merged = drawn(stream, [], capacity), Reservoir(capacity, np.random.RandomState(0))
    left = []
    for part, away in zip(torch.tensor_split(stream, sorted(cuts)), elsewhere, strict=False):
        if not away:
            left.append(merged.add(part))
            continue
        random = np.random.RandomState()
        random.set_state(merged.skip(len(part)))
        other = Reservoir(capacity, random)
        left.append(other.add(part))
        left.append(merged.merge(other.numbers, other.rows, other.seen))
    assert merged.seen == 200
    assert torch.equal(merged.rows, whole.rows)
    np.testing.assert_array_equal(merged.numbers, whole.numbers)
    assert (np.diff(merged.numbers) > 0).all()
    gone = torch.cat([rows.reshape(-1) for rows in left]).tolist()
    assert sorted(gone + merged.rows.flatten().tolist()) == list(range(200))


@pytest.mark.parametrize("reduction", ["random", "coreset"])
def test_training_rows_that_passed_elsewhere_count_as_if_they_had_passed_here(
    reduction, monkeypatch
):
    monkeypatch.setattr("qipf.field.reservoir.HELD_OUT", 100)  # so that rows leave the sample
    rows, cpu = make_logits(900), torch.device("cpu")
    nearness = nearness_of(rows)
    here, merged = (TrainingRows(40, reduction, np.random.RandomState(0)) for _ in range(2))
    here.add(rows, nearness)
    for start, end in ((0, 300), (300, 301), (301, 900)):
        lot = merged.lot(end - start)
        merged.merge(lot.drawn(rows[start:end], nearness[start:end]), labelled=True)
    assert (merged.count, merged.varied, merged.labelled) == (900, True, True)
    assert torch.equal(merged.sample, here.sample)
    np.testing.assert_array_equal(merged.sample_nearness(), here.sample_nearness())
    np.testing.assert_array_equal(here.sample_nearness(), nearness_of(here.sample))
    found, known = merged.condensed(0, cpu), here.condensed(0, cpu)
    assert found.count == known.count
    if reduction == "random":
        assert torch.equal(found.centers, known.centers)
        return
    mean = found.weights @ found.centers.double() / found.count
    torch.testing.assert_close(mean, rows.double().mean(0), rtol=1e-4, atol=1e-4)


def test_rows_that_never_differ_are_known_though_they_came_in_parts():
    for rows, varied in ((torch.zeros(6, 2), False), (torch.arange(6.0)[:, None] // 3, True)):
        seen = TrainingRows(4, "random", np.random.RandomState(0))
        for part in rows.split(3):
            seen.merge(seen.lot(3).drawn(part, None), labelled=False)
        assert (seen.varied, seen.sample_nearness()) == (varied, None)
