"""benchmarks/guarantees.py: a small part of its simulations, that they would notice, its page."""

import importlib
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.special import bdtr

import qipf

HOME = Path(__file__).parents[2]


@pytest.fixture
def guarantees(monkeypatch):
    monkeypatch.syspath_prepend(HOME / "benchmarks")
    return importlib.import_module("guarantees")


SMALL = [
    ("accept", "flat", (22, 0.1, 0.9), 150),
    ("accept", "errors before the starts", (600, 0.05, 0.95), 40),
    ("cover", "five values", (200, 0.8, 0.95), 60),
    ("curve", "falling", (100, 0.5, 0.95), 60),
    ("conformal", "half of them equal", (19,), 150),
    ("monitor", "without replacement", (20,), 40),
    ("accuracy threshold", "usual", (100, 100), 150),
    ("novel", "errors at the limit", (60, 0.1, 0.9, 0.1), 60),
    ("odds", "novel ones are wrong", (100, 100), 100),
    ("both", "opposite", (200, 3000), 5),
    ("classes", "all errors in one class", (100, 100), 40),
]


@pytest.mark.parametrize(("kind", "population", "numbers", "draws"), SMALL)
def test_no_promise_is_broken(guarantees, kind, population, numbers, draws):
    setting = guarantees.Setting(kind, population, numbers)
    assert setting in guarantees.settings()
    for row in guarantees.simulate(setting, draws):
        assert row.draws == draws
        assert row.surprise() > 0.01, row


@pytest.mark.slow
def test_a_search_without_correction_is_noticed(guarantees, monkeypatch):
    def every_rank(uncertainty, wrong, risk, confidence):
        wrong = wrong[np.argsort(uncertainty)]
        passed = bdtr(wrong.cumsum(), np.arange(1, len(wrong) + 1), risk) <= 1 - confidence
        last = np.flatnonzero(passed)[-1:]
        found = np.sort(uncertainty)[last]
        return type("Rule", (), {"threshold": found[0] if len(found) else -math.inf})

    monkeypatch.setattr(qipf, "accept_rule", every_rank)
    setting = guarantees.Setting("accept", "flat", (600, 0.05, 0.95))
    (row,) = guarantees.simulate(setting, 300)
    assert row.surprise() < 1e-4


def test_the_evidence_is_that_of_a_monitor(guarantees):
    rng = np.random.default_rng(0)
    held_out, stream = qipf.Calibration(rng.normal(size=20)), rng.normal(0.5, size=200)
    monitor = qipf.ShiftMonitor(held_out, 0.05, guarantees.WINDOW, random_state=3)
    verdict = monitor.update_scores(stream)
    peak, p_value = guarantees.evidence(held_out, stream, 3)
    assert verdict.p_value == math.exp(-peak)
    assert verdict.start.ks_p_value == p_value


@pytest.mark.parametrize("name", ["flat", "two values", "all magnitudes", "cliff"])
def test_the_risk_of_a_population_is_that_of_its_predictions(guarantees, name):
    population = guarantees.populations(0.1, 100, 0.1)[name]
    for threshold in (*population.scores[[0, 70_000, 150_000]], -math.inf, math.inf):
        below = population.scores <= threshold
        wanted = population.rates[below].mean() if below.any() else 0.0
        assert population.coverage(threshold) == below.mean()
        assert population.risk(threshold) == pytest.approx(wanted, rel=1e-9)


def test_populations_are_in_order_and_exceed_the_bound(guarantees):
    for risk, count, level in ((0.1, 22, 0.1), (0.05, 600, 0.05)):
        for name, population in guarantees.populations(risk, count, level).items():
            assert (np.diff(population.scores) >= 0).all(), name
            assert ((population.rates >= 0) & (population.rates <= 1)).all(), name
            risks = population.rates.cumsum() / np.arange(1, len(population.rates) + 1)
            assert (risks > risk * (1 + guarantees.ABOVE / 2)).any(), name


def test_the_pages_show_what_the_table_holds(guarantees):
    rows = guarantees.read(HOME / "results" / "guarantees.csv")
    assert (HOME / "results" / "guarantees.md").read_text() == guarantees.page(rows)
    promises = (HOME / "docs" / "promises.md").read_text()
    assert "\n".join(guarantees.summary(rows)) in promises, "copy results/guarantees.md"
    assert min(row.draws for row in rows) >= 20_000
    assert all(row.surprise() >= 0.05 / len(rows) for row in rows)


def test_a_table_is_read_as_it_was_written(guarantees, tmp_path):
    rows = [guarantees.Row("a promise", "flat", "n = 2, t = 0.1", 100, 3, 0.05)]
    guarantees.write(rows, tmp_path / "table.csv")
    assert guarantees.read(tmp_path / "table.csv") == rows
