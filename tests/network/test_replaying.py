"""Which networks a CUDA graph can stand for, and what makes it invalid."""

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module

from qipf.network.replaying import allowed, is_constant, network_state


@pytest.fixture
def net():
    return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ELU()).eval()


def add_one(net):
    with torch.no_grad():
        net[0].weight.add_(1)


CHANGES = {
    "weights in place": add_one,
    "weights elsewhere": lambda net: setattr(net[0].weight, "data", net[0].weight.data.clone()),
    "a module": lambda net: net.__setitem__(2, nn.ELU()),
    "a number": lambda net: setattr(net[2], "alpha", 0.5),
    "another attribute": lambda net: setattr(net, "scale", 2.0),
    "cudnn": lambda net: setattr(torch.backends.cudnn, "deterministic", True),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_another_state(net, change, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    before = network_state(net)
    assert network_state(net).key == before.key
    hash(before.key)
    CHANGES[change](net)
    assert network_state(net).key != before.key


def test_hooks_of_others_prevent_graphs(net):
    for register in (net[1].register_forward_hook, net.register_forward_pre_hook):
        handle = register(lambda *_: None)
        assert network_state(net) is None
        handle.remove()
    assert network_state(net) is not None
    handle = torch_module.register_module_forward_hook(lambda *_: None)
    assert network_state(net) is None
    handle.remove()


@pytest.mark.parametrize("value", [[1.0], {"scale": 1.0}, object(), torch.zeros(1), ([1],)])
def test_what_can_change_unseen_prevents_graphs(net, value):
    assert is_constant(net)
    net[2].scale = value
    assert not is_constant(net)


@pytest.mark.parametrize(
    "value", [1.0, "same", (1, (2.0, None)), torch.float32, torch.relu, nn.ReLU]
)
def test_constants_do_not(net, value):
    net[2].scale = value
    assert is_constant(net)


def test_an_attribute_before_those_of_modules(net):
    class Early(nn.ReLU):
        def __init__(self):
            self.__dict__["scale"] = 1.0
            super().__init__()

    assert not is_constant(nn.Sequential(net, Early()))


def test_graphs_can_be_turned_off(monkeypatch):
    monkeypatch.delenv("QIPF_CUDA_GRAPHS", raising=False)
    assert allowed()
    monkeypatch.setenv("QIPF_CUDA_GRAPHS", "0")
    assert not allowed()


def test_memory_of_weights_outlives_a_move(net):
    before = network_state(net)
    kept, addresses = before.memory(), [part.data_ptr() for part in before.weights]
    net.to(torch.float64)
    assert [part.data_ptr() for part in kept] == addresses
    assert network_state(net).versions != before.versions
