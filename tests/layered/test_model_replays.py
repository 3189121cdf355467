"""Calls of LayeredQIPF that a CUDA graph repeats; here the graph is the function itself."""

import math

import pytest
import torch
from torch import nn

from qipf import QIPFInputError
from qipf.layered import model as subject
from qipf.layered import replays
from tests.stored.write_files import layered


@pytest.fixture
def graphs(monkeypatch):
    """The graphs that were made; each repeats the function that it was made of."""
    made = []

    class Graph:
        def __init__(self, function, inputs):
            function(*inputs)
            self.function, self.calls = function, 0
            made.append(self)

        def __call__(self, inputs):
            self.calls += 1
            return self.function(*inputs)

        def wait(self):
            pass

    monkeypatch.setattr(replays, "_Graph", Graph)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(subject, "_on_gpu", lambda example: True)
    return made


@pytest.fixture
def own():
    return layered()


def assert_same(found, wanted):
    for name, value in vars(wanted).items():
        if value is not None:
            torch.testing.assert_close(getattr(found, name), value)


def test_replayed_calls_are_the_same(own, fresh, graphs, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("QIPF_CUDA_GRAPHS", "0")
        wanted = own(fresh)
        assert not graphs
    for _ in range(3):
        assert_same(own(fresh), wanted)
    assert [graph.calls for graph in graphs] == [2]


def test_no_graph_outlives_a_change(own, fresh, graphs):
    for _ in range(2):
        own(fresh)
    before = own(fresh).logits
    own.fitted_with = None
    with torch.no_grad():
        next(own.net.parameters()).mul_(1.1)
        after = own.net(fresh)
    assert not torch.allclose(before, after)
    for _ in range(2):
        torch.testing.assert_close(own(fresh).logits, after)
    own.weights_ = own.weights_.clone()
    for _ in range(2):
        own(fresh)
    # started before the network was looked at, and dropped
    assert [graph.calls for graph in graphs] == [3, 1, 1]


def test_changed_weights_are_refused_every_time(own, fresh, graphs):
    for _ in range(2):
        own(fresh)
    with torch.no_grad():
        next(own.net.parameters()).mul_(1.1)
    for _ in range(3):
        with pytest.raises(QIPFInputError, match="changed since fit"):
            own(fresh)
    assert len(graphs) == 1


VERBS = ["uncertainty", "novelty", "both_scores", "p_values", "novelty_p_values", "accepts"]


@pytest.mark.parametrize("verb", VERBS)
def test_verbs_are_replayed(own, fresh, graphs, verb):
    own.calibrate([(fresh[:20], fresh[:20, :3].argmax(1))])
    own.accept_rule(min_coverage=0.5)
    first = getattr(own, verb)(fresh)
    for _ in range(2):
        torch.testing.assert_close(getattr(own, verb)(fresh), first)
    assert [graph.calls for graph in graphs] == [2]


def test_nan_is_refused_as_usual(own, fresh, graphs):
    for _ in range(2):
        own(fresh)
    fresh = fresh.clone()
    fresh[3] = math.nan
    with pytest.raises(QIPFInputError, match="row 3"):
        own(fresh)
    own.nan_policy = "propagate"
    found = own(fresh)
    assert torch.isnan(found.uncertainty).nonzero().flatten().tolist() == [3]
    assert len(graphs) == 1


def test_a_network_that_changes_itself_is_not_captured(own, fresh, graphs):
    class Counting(nn.Module):
        calls = 0

        def forward(self, values):
            self.calls += 1
            return values

    own.net.append(Counting())
    own.fitted_with = None
    for _ in range(4):
        own(fresh)
    assert own.net[-1].calls >= 4
    assert not graphs


def test_a_network_with_a_hook_is_not_captured(own, fresh, graphs):
    seen = []
    own.net.register_forward_hook(lambda *_: seen.append(1))
    for _ in range(3):
        own(fresh)
    assert len(seen) == 3
    assert not graphs


def test_nan_does_not_reach_the_rule(own, fresh, graphs):
    own.calibrate([(fresh, fresh[:, :3].argmax(1))])
    own.accept_rule(min_coverage=0.5)
    own.nan_policy = "propagate"
    for _ in range(2):
        own(fresh)
    fresh = fresh.clone()
    fresh[3] = math.nan
    found = own(fresh)  # warnings are errors
    assert torch.isnan(found.p_value).nonzero().flatten().tolist() == [3]
    assert not bool(found.accepted[3])


def test_calibration_is_replayed(own, fresh, graphs):
    own.calibrate([fresh, fresh, fresh])
    assert [graph.calls for graph in graphs] == [2]
