"""A fast fit tries out less than a full one."""

import pytest

from qipf import LayeredQIPF
from qipf.layered import fitting, tuning
from qipf.layered import model as layered_model
from qipf.layered.effort import EFFORTS, FULL
from qipf.layered.perturbations import strengths
from tests.layered.conftest import fitted


def test_full_is_the_default_and_no_size_of_fast_is_larger(net):
    assert LayeredQIPF(net).effort == "full"
    assert set(EFFORTS) == {"full", "fast"}
    fast = EFFORTS["fast"]
    for name in ("tuning", "halvings", "rows", "centers", "metric_rows"):
        assert getattr(fast, name) <= getattr(FULL, name)


@pytest.mark.parametrize("halvings", [3, 6])
def test_strengths_are_found_as_precisely_as_there_are_halvings(halvings):
    tried = []

    def accuracy(t):
        tried.append(t)
        return 1 - t

    found = list(strengths(accuracy, 0.0, (0.9, 0.3), halvings))
    assert found == pytest.approx([0.1, 0.7], abs=0.5**halvings / 2)
    assert len(tried) == len(set(tried)) <= 2 * halvings + 1


@pytest.mark.slow
def test_what_a_fast_fit_tries(net, data, monkeypatch):
    """At most so many held-out inputs, all of which judge the strengths."""
    fast = EFFORTS["fast"]._replace(tuning=40)
    monkeypatch.setitem(EFFORTS, "fast", fast)
    given, judged = [], []
    plain_sets, plain_run = layered_model.tuning_sets, tuning._run
    plain_fields = fitting.chosen_fields

    def sets(*parts):
        given.append(parts[-1])
        found = plain_sets(*parts)
        assert len(found.labels) == 40
        return found

    def run(net, groups, sites, *more):
        if not sites:
            judged.append(sum(group.rows for group in groups))
        return plain_run(net, groups, sites, *more)

    def fields(*parts):
        given.append(parts[-1])
        return plain_fields(*parts)

    monkeypatch.setattr(layered_model, "tuning_sets", sets)
    monkeypatch.setattr(fitting, "chosen_fields", fields)
    monkeypatch.setattr(tuning, "_run", run)
    found = fitted(net, data, effort="fast", max_tuning=100)
    assert given == [fast, fast]
    assert set(judged) == {40}
    assert "effort=fast" in str(found.summary())
