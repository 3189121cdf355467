"""Which calls are captured and replayed; the graphs themselves need a GPU."""

import pickle
from contextlib import nullcontext

import pytest
import torch

from qipf import QIPFInputError
from qipf.layered import replays as subject
from qipf.network.replaying import NetworkState


@pytest.fixture
def captured(monkeypatch):
    """Shapes that were captured; a graph that gives twice its input."""
    shapes = []

    class Graph:
        def __init__(self, function, inputs):
            shapes.append(tuple(inputs[0].shape))

        def __call__(self, inputs):
            return (2 * inputs[0],)

        def wait(self):
            pass

    monkeypatch.setattr(subject, "_Graph", Graph)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return shapes


def same(values):
    return (values.clone(),)


def test_a_shape_that_comes_back_is_captured(captured):
    replays = subject.Replays()
    found = [replays(same, (torch.ones(n),)) for n in (3, 4, 3, 3)]
    assert captured == [(3,)]
    assert found[:2] == [None, None]
    assert [float(part[0].sum()) for part in found[2:]] == [6.0, 6.0]


def test_another_key_is_another_graph(captured):
    replays = subject.Replays()
    for key in "abab":
        replays(same, (torch.ones(3),), key)
    assert len(captured) == len(replays) == 2


def test_few_graphs_are_kept(captured):
    replays = subject.Replays()
    for count in range(1, 8):
        for _ in range(2):
            replays(same, (torch.ones(count),))
    assert len(captured) == 7
    assert len(replays) == subject.MOST_GRAPHS
    replays(same, (torch.ones(7),))
    assert len(captured) == 7


def test_other_types_are_other_graphs(captured):
    replays = subject.Replays()
    for dtype in (torch.float32, torch.float64, torch.float32, torch.float64):
        replays(same, (torch.ones(2, dtype=dtype),))
    assert len(captured) == len(replays) == 2


@pytest.mark.parametrize("error", [RuntimeError, QIPFInputError])
def test_what_cannot_be_captured_is_called(monkeypatch, captured, error):
    class Fails:
        def __init__(self, *_):
            captured.append("tried")
            raise error("operation not permitted when stream is capturing")

    monkeypatch.setattr(subject, "_Graph", Fails)
    replays = subject.Replays()
    assert [replays(same, (torch.ones(1),)) for _ in range(4)] == [None] * 4
    assert captured == ["tried"]
    assert len(replays) == 0


def test_a_graph_that_is_too_large_prevents_only_larger_ones(monkeypatch, captured):
    small = subject._Graph

    def limited(function, inputs):
        if len(inputs[0]) > 4:
            captured.append("too large")
            raise subject._TooLargeError
        return small(function, inputs)

    monkeypatch.setattr(subject, "_Graph", limited)
    replays = subject.Replays()
    found = [replays(same, (torch.ones(n),)) for n in (5, 5, 5, 6, 6, 4, 4)]
    assert captured == ["too large", (4,)]
    assert found[:6] == [None] * 6
    assert torch.equal(found[6][0], 2 * torch.ones(4))


def test_nothing_is_captured_within_a_capture(monkeypatch, captured):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    replays = subject.Replays()
    for _ in range(3):
        replays(same, (torch.ones(1),))
    assert captured == []


def test_pickled_without_graphs(captured):
    replays = subject.Replays()
    for _ in range(2):
        replays(same, (torch.ones(1),))
    assert len(replays) == 1
    assert len(pickle.loads(pickle.dumps(replays))) == 0


class Counting:
    """A graph that counts its calls, and those that wait for it."""

    def __init__(self, function, inputs):
        self.calls = self.waits = 0

    def __call__(self, inputs):
        self.calls += 1
        return inputs

    def wait(self):
        self.waits += 1


@pytest.fixture
def made(monkeypatch, captured):
    """The counting graphs that were made."""
    graphs = []

    def graph(function, inputs):
        graphs.append(Counting(function, inputs))
        return graphs[-1]

    monkeypatch.setattr(subject, "_Graph", graph)
    return graphs


def test_a_state_that_is_not_that_of_the_capture_is_checked_first_next_time(made):
    replays, first = subject.Replays(), NetworkState(others=("first",))
    ones = (torch.ones(1),)
    for _ in range(2):
        replays(same, ones, (), lambda: first)
    for _ in range(4):  # the first of them has started before
        assert replays(same, ones, (), lambda: None) is None
    assert made[0].calls == 2
    assert replays(same, ones, (), lambda: first) == ones
    assert replays(same, ones, (), lambda: first) == ones
    assert made[0].calls == 4
    assert replays(same, ones, (), lambda: NetworkState(others=("second",))) is None
    assert (made[0].calls, made[0].waits, len(replays)) == (5, 1, 0)


def test_graphs_that_are_dropped_are_waited_for(made):
    replays = subject.Replays()
    for count in range(1, subject.MOST_GRAPHS + 2):
        for _ in range(2):
            replays(same, (torch.ones(count),))
    assert [graph.waits for graph in made] == [1, *[0] * subject.MOST_GRAPHS]


@pytest.mark.parametrize("times", [0, 1, 2, 5])
@pytest.mark.parametrize("graphs", ["0", "1"])
def test_a_step_is_repeated_by_a_graph_on_a_gpu(times, graphs, monkeypatch):
    monkeypatch.setenv("QIPF_CUDA_GRAPHS", graphs)
    done = []
    monkeypatch.setattr(
        subject, "_captured_step", lambda step, device: lambda: done.append(f"graph of {step()}")
    )
    steps = subject.repeated(lambda: done.append("step"), times, torch.device("cuda"))
    assert len(list(steps)) == times
    if graphs == "0":
        assert done == ["step"] * times
    else:
        graph = ["step", "graph of None"]  # the stand-in does the step too
        assert done == ["step"] * min(times, 2) + graph * max(0, times - 2)


@pytest.mark.parametrize("late", [False, True])  # when the capture begins, or when it ends
def test_a_step_that_cannot_be_captured_is_called(late, monkeypatch):
    """And the stream is the one of before, as torch's own context does not leave it there."""
    monkeypatch.setenv("QIPF_CUDA_GRAPHS", "1")
    done, streams = [], ["before"]

    class Capture:
        def __init__(self, graph, stream, capture_error_mode):
            streams.append(stream)

        def __enter__(self):
            if not late:
                raise RuntimeError("operation not permitted when stream is capturing")

        def __exit__(self, *_):
            raise RuntimeError("operation failed due to a previous error during capture")

    for name, value in {
        "CUDAGraph": object,
        "graph": Capture,
        "device": lambda _: nullcontext(),
        "Stream": lambda: "of the capture",
        "current_stream": lambda: streams[-1],
        "set_stream": streams.append,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    steps = subject.repeated(lambda: done.append("step"), 4, torch.device("cuda"))
    assert len(list(steps)) == 4
    assert len(done) == 4 + late  # recorded, and then done
    assert streams == ["before", "of the capture", "before"]
