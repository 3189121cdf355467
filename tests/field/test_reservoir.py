import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qipf.field import reservoir as reservoir_module
from qipf.field.kernel import field_of
from qipf.field.reservoir import Reservoir, TrainingRows
from tests.conftest import make_logits


def sampled(stream, cuts, capacity, seed=0):
    """The reservoir of a stream cut into batches, and the rows that it returned."""
    reservoir, random, others = Reservoir(capacity), np.random.RandomState(seed), []
    for part in torch.tensor_split(stream, sorted(cuts)):
        others.append(reservoir.add(random.random_sample(len(part)), {"x": part, "y": -part})["x"])
    return reservoir, torch.cat(others)


def nearness_of(rows):
    """Infinite at both ends, and numbers that float32 keeps; made from the row's first number."""
    first = rows[:, 0].numpy().astype(np.float64)
    return np.select([first % 7 < 2, first % 7 > 6], [np.inf, -np.inf], -np.abs(first))


@settings(deadline=None)
@given(
    cuts=st.lists(st.integers(0, 200), max_size=12),
    capacity=st.integers(1, 250),
    count=st.integers(0, 200),
)
def test_batches_change_neither_the_sample_nor_the_order_of_the_other_rows(cuts, capacity, count):
    stream = torch.arange(count)
    (cut, others), (whole, expected) = (sampled(stream, c, capacity) for c in (cuts, []))
    numbers = np.random.RandomState(0).random_sample(count)
    smallest = np.argsort(numbers)[:capacity]
    np.testing.assert_array_equal(cut.values["x"], smallest)
    np.testing.assert_array_equal(cut.values["y"], -smallest)
    np.testing.assert_array_equal(cut.numbers, numbers[smallest])
    assert torch.equal(others, expected)
    assert sorted([*others.tolist(), *smallest.tolist()]) == stream.tolist()
    assert len(whole) == len(cut) == min(capacity, count)


def test_candidates_are_the_rows_that_would_stay():
    random, reservoir = np.random.RandomState(0), Reservoir(10)
    for start in range(0, 300, 7):
        numbers = random.random_sample(7)
        index = reservoir.candidates(numbers)
        everything = np.sort([*reservoir.numbers, *numbers])[:10]
        reservoir.add(numbers[index], {"x": start + torch.from_numpy(index)})
        np.testing.assert_array_equal(reservoir.numbers, everything)


@pytest.mark.parametrize("capacity", [1, 30, 299, 300, 301])
def test_candidates_are_no_others(capacity):
    random = np.random.RandomState(capacity)
    for _ in range(20):
        reservoir = Reservoir(capacity)
        numbers = random.random_sample(300)
        last = np.sort(numbers)[: min(capacity, 300)][-1]
        assert reservoir.candidates(numbers).tolist() == np.flatnonzero(numbers <= last).tolist()


def test_numbers_of_another_precision_are_promoted():
    reservoir = Reservoir(3)
    reservoir.add(np.array([0.3, 0.1]), {"x": torch.tensor([1.0, 2.0])})
    precise = torch.tensor([1 / 3, 4.0], dtype=torch.float64)
    others = reservoir.add(np.array([0.2, 0.0]), {"x": precise})
    assert reservoir.values["x"].tolist() == [4.0, 2.0, 1 / 3]
    assert others["x"].tolist() == [1.0]


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


@pytest.mark.parametrize("reduction", ["random", "coreset"])
def test_of_long_rows_fewer_are_held_out(monkeypatch, reduction):
    monkeypatch.setattr(reservoir_module, "HELD_NUMBERS", 7 * 50 + 49)
    seen = TrainingRows(30, reduction, np.random.RandomState(0))
    seen.add(torch.arange(100.0 * 50).view(100, 50), None)
    assert seen.held_out() == 7
    part = seen.condensed(7, torch.device("cpu"))
    assert part.centers.shape == (30, 50)
    monkeypatch.setattr(reservoir_module, "HELD_NUMBERS", 49)  # less than a row
    assert seen.held_out() == 1


def test_weighted_rows_are_what_is_condensed():
    rows, cpu = make_logits(400), torch.device("cpu")
    seen = {
        name: TrainingRows(30, name, np.random.RandomState(0)) for name in ("random", "coreset")
    }
    for kept in seen.values():
        kept.add(rows, None)
    kept = seen["coreset"]
    everything = kept.weighted_rows(0, cpu)
    assert everything.spread == 0.0
    np.testing.assert_array_equal(np.sort(everything.centers, 0), np.sort(rows, 0))
    held = kept.held_out()
    part = kept.weighted_rows(held, cpu)
    assert part.count == 400 - held
    left = {tuple(row) for row in kept.sample[-held:].tolist()}
    assert not left & {tuple(row) for row in part.centers.tolist()}
    # centres that are rows are already all there is
    random = seen["random"]
    assert torch.equal(random.weighted_rows(0, cpu).centers, random.condensed(0, cpu).centers)
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
    stream, hits = torch.arange(50), np.zeros(50)
    for seed in range(500):
        hits[sampled(stream, [7, 31], 10, seed)[0].values["x"].numpy()] += 1
    expected, deviation = 100, np.sqrt(500 * 0.2 * 0.8)
    assert np.abs(hits - expected).max() < 4.5 * deviation


def test_rows_are_copied_out_of_the_batch():
    batch = torch.zeros(4, 2)
    reservoir = Reservoir(10)
    reservoir.add(np.arange(4) / 4, {"x": batch})
    batch += 1
    assert float(reservoir.values["x"].sum()) == 0.0


# ---------------------------------------------------------------------- parts sampled elsewhere


@settings(deadline=None)
@given(
    cuts=st.lists(st.integers(0, 200), max_size=12),
    capacity=st.integers(1, 250),
    elsewhere=st.lists(st.booleans(), min_size=13, max_size=13),
)
def test_samples_merge_into_the_sample_of_all_rows(cuts, capacity, elsewhere):
    stream, random = torch.arange(200), np.random.RandomState(0)
    (whole, _), merged = sampled(stream, [], capacity), Reservoir(capacity)
    others = []
    for part, away in zip(torch.tensor_split(stream, sorted(cuts)), elsewhere, strict=False):
        other = Reservoir(capacity) if away else merged
        others.append(other.add(random.random_sample(len(part)), {"x": part})["x"])
        if away:
            others.append(merged.merge(other.numbers, other.values)["x"])
    assert torch.equal(merged.values["x"], whole.values["x"])
    np.testing.assert_array_equal(merged.numbers, whole.numbers)
    assert (np.diff(merged.numbers) > 0).all()
    rest = torch.cat(others).tolist()
    assert sorted(rest + merged.values["x"].tolist()) == list(range(200))


@pytest.mark.parametrize("reduction", ["random", "coreset"])
def test_training_rows_sampled_elsewhere_are_those_sampled_here(reduction, monkeypatch):
    monkeypatch.setattr("qipf.field.reservoir.HELD_OUT", 100)  # so that rows leave the sample
    rows, cpu = make_logits(900), torch.device("cpu")
    nearness = nearness_of(rows)
    here, merged = (TrainingRows(40, reduction, np.random.RandomState(0)) for _ in range(2))
    here.add(rows, nearness)
    for start, end in ((0, 300), (300, 301), (301, 900)):
        sampler = merged.remote_sampler(end - start)
        merged.merge(sampler.sample(rows[start:end], nearness[start:end]), labelled=True)
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


def test_a_remote_part_of_more_than_a_block_skips_its_random_numbers():
    count, random = 2**20 + 3, np.random.RandomState(0)
    seen = TrainingRows(4, "random", random)
    later = np.random.RandomState()
    later.set_state(random.get_state())
    later.random_sample(count)
    seen.remote_sampler(count)
    assert random.random_sample() == later.random_sample()


def test_a_part_keeps_its_first_row_to_compare():
    seen = TrainingRows(4, "random", np.random.RandomState(0))
    part = seen.remote_sampler(3).sample(torch.arange(6.0).reshape(3, 2), None)
    assert part.first.tolist() == [[0.0, 1.0]]


def test_whether_rows_differ_is_known_across_parts():
    for rows, varied in ((torch.zeros(6, 2), False), (torch.arange(6.0)[:, None] // 3, True)):
        seen = TrainingRows(4, "random", np.random.RandomState(0))
        for part in rows.split(3):
            seen.merge(seen.remote_sampler(3).sample(part, None), labelled=False)
        assert (seen.varied, seen.sample_nearness()) == (varied, None)


def test_a_full_reservoir_promotes_too():
    """As exact as the rows that come later, wherever they find their place."""
    reservoir = Reservoir(3)
    reservoir.add(np.array([0.7, 0.8, 0.9]), {"x": torch.zeros(3)})
    exact = torch.tensor([1.0 + 2.0**-40], dtype=torch.float64)
    reservoir.add(np.array([0.1]), {"x": exact})
    assert reservoir.values["x"].tolist() == [1.0 + 2.0**-40, 0.0, 0.0]


def test_rows_are_logits_until_told_otherwise():
    assert TrainingRows(5, "random", np.random.RandomState(0)).are_logits
