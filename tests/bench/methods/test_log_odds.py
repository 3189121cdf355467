from __future__ import annotations

import math

import pytest

from qipf.bench.methods import create


def test_log_odds_of_the_mean_against_the_deterministic_prediction(clean, shifted):
    method = create("ensemble_log_odds", networks=2).fit(clean)
    found, mean = method.score(shifted), method.samples(shifted).mean
    for i in range(0, len(found), 60):
        p = mean[i, shifted.predicted[i]].item()
        assert found[i].item() == pytest.approx(math.log(1 - p) - math.log(p), rel=1e-9)


def test_all_scores_of_a_sampler_share_its_networks_and_draws(clean, shifted):
    names = ("ensemble", "ensemble_entropy", "ensemble_log_odds")
    methods = [create(name, networks=2).fit(clean) for name in names]
    assert len({id(method.samples(shifted)) for method in methods}) == 1
