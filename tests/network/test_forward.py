"""Evaluation mode of networks that threads and forked processes share."""

import re
import threading
import warnings
from functools import partial

import pytest
import torch
from torch import nn

import qipf
from qipf.errors import QIPFInputError, QIPFScoreWarning
from qipf.export.program import Example
from qipf.network import forward
from qipf.network.features import LayerSite, chosen_sites, run_in_batches
from qipf.network.forward import device_of, evaluating, named_layer, parts_of, warn_if_random
from tests.forks import in_child


@pytest.fixture
def nested():
    """A network, and one that contains it."""
    inner = nn.Sequential(nn.Linear(3, 3), nn.Dropout())
    return inner, nn.Sequential(inner, nn.Linear(3, 2))


@pytest.mark.parametrize("first", [0, 1])
def test_a_network_waits_for_one_that_shares_modules_with_it(nested, first):
    one, other = nested[first], nested[1 - first]
    entered, left, modes = threading.Event(), threading.Event(), []

    def run():
        with evaluating(other):
            entered.set()
            left.wait()
            modes.extend(module.training for module in other.modules())

    thread = threading.Thread(target=run)
    with evaluating(one):
        thread.start()
        assert not entered.wait(0.1)
    left.set()
    thread.join()
    assert not any(modes)
    assert all(module.training for module in nested[1].modules())


def test_a_network_within_itself_and_others_beside_it_do_not_wait(nested):
    inner, outer = nested
    alone, done = nn.Linear(2, 2), []

    def run():
        with evaluating(alone):
            done.append(True)

    with evaluating(outer), evaluating(inner):
        assert not inner.training
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert done == [True]
    assert all(module.training for module in (inner, outer, alone))


def test_a_forked_process_runs_a_network_that_a_thread_of_its_parent_runs():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    inputs, labels = torch.randn(60, 3), torch.arange(60) % 2
    model = qipf.wrap(net, "0", field=qipf.QIPF(bandwidth=1.0)).fit([(inputs, labels)])
    expected = model.uncertainty(inputs)
    inside, over = threading.Event(), threading.Event()

    def hold(*_):
        inside.set()
        over.wait()

    def check():
        handle.remove()
        same = bool(torch.equal(model.uncertainty(inputs), expected))
        return same and all(module.training for module in net.modules())

    handle = net[2].register_forward_hook(hold)
    thread = threading.Thread(target=model.uncertainty, args=(inputs,))
    thread.start()
    inside.wait()
    try:
        assert in_child(check)
    finally:
        over.set()
        thread.join()
    handle.remove()
    assert all(module.training for module in net.modules())


def test_modules_and_layers_are_those_of_torch_by_all_their_names():
    shared = nn.Linear(2, 2)
    net = nn.Sequential(shared, nn.ModuleDict({"a": nn.Sequential(shared, nn.ReLU())}))
    net[1].register_module("none", None)
    net.beside = net[1]["a"]
    parts = parts_of(net)
    assert set(parts.modules.values()) == set(net.modules())
    assert set(map(id, parts.tensors)) == set(map(id, net.parameters()))
    for name, layer in net.named_modules(remove_duplicate=False):
        if name:
            assert named_layer(net, name) is layer
    for name in ("", "1.none", "1.b", "0.weight", "training", None, 0):
        with pytest.raises(QIPFInputError, match="no layer"):
            named_layer(net, name)


def test_the_modes_of_all_modules_are_restored_even_if_the_network_sets_its_own():
    class Frozen(nn.Sequential):
        def train(self, mode=True):
            super().train(mode)
            self[1].eval()
            return self

    net = Frozen(nn.Dropout(), nn.Dropout()).train()
    with evaluating(net):
        assert not any(module.training for module in net.modules())
        net[1].train()
    assert [module.training for module in net] == [True, False]


def test_a_layer_of_a_scripted_network():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer versions of torch call it deprecated
        net = torch.jit.script(nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 1))))
    assert named_layer(net, "1.0").weight.shape == (1, 3)
    with pytest.raises(QIPFInputError, match="has no layer 'training'"):
        named_layer(net, "training")
    for layer in ("1.0", "1"):
        with pytest.raises(QIPFInputError, match=r"layers of a scripted .* cannot be read"):
            run_in_batches(net, torch.zeros(2, 2), [LayerSite(layer)])
    with pytest.raises(QIPFInputError, match="scripted or traced networks cannot be read"):
        chosen_sites(net, lambda part: net(*part.inputs), Example((torch.zeros(2, 2),), {}))


def test_a_layer_is_no_property_of_its_network():
    class Fails(nn.Sequential):
        @property
        def trainer(self):
            raise RuntimeError("not attached to a trainer")

        @property
        def core(self):
            return self[0]

    for name in ("trainer", "core"):
        with pytest.raises(QIPFInputError, match=f"has no layer '{name}'"):
            named_layer(Fails(nn.Linear(2, 2)), name)


class Careless(nn.Module):
    """Dropout that does not ask for the mode."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(nn.functional.dropout(self.first(x).relu(), 0.5))


RANDOM = (
    r"The network is random in evaluation mode: two passes over the same inputs give logits that "
    r"differ by up to \d+% of the largest, and so will the scores\. A usual cause is F\.dropout\(x"
    r"\) without training=self\.training\. Mend it, and fit again\."
)


@pytest.mark.parametrize("model", [qipf.wrap, qipf.LayeredQIPF, partial(qipf.wrap, layer="first")])
@pytest.mark.parametrize("empty", [0, 1])
def test_a_network_that_is_random_in_evaluation_mode_warns(model, empty):
    inputs = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    labels = inputs[:, :3].argmax(1)
    loader = [(inputs[:0], labels[:0])] * empty + [(inputs, labels)]
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        model(Careless()).fit(loader)
    assert [one for one in found if re.fullmatch(RANDOM, str(one.message))]


def test_rounding_is_not_random():
    logits = torch.tensor([[3.0, -8.0], [0.1, 0.2]])
    warn_if_random(logits, logits + 0.079)
    with pytest.warns(QIPFScoreWarning, match="by up to 1% of the largest"):
        warn_if_random(logits, logits + 0.081)
    half = logits.bfloat16()
    warn_if_random(half, half + 0.2)  # 4 times its epsilon is 3 %
    with pytest.warns(QIPFScoreWarning, match="by up to 4% of the largest"):
        warn_if_random(half, half - 0.3)
    warn_if_random(logits[:0], logits[:0])
    warn_if_random(torch.full((2, 2), torch.nan), logits)


def test_the_device_is_that_of_the_first_weight_and_then_of_a_buffer():
    net = nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.Linear(2, 2, device="meta"))
    net.register_buffer("scale", torch.ones(1, device="meta"))
    assert device_of(net) == torch.device("cpu")
    buffers = nn.Module()
    buffers.register_buffer("scale", torch.ones(1, device="meta"))
    assert device_of(buffers) == torch.device("meta")
    assert device_of(nn.ReLU()) == torch.device("cpu")


def test_uses_end_if_a_network_cannot_be_set_to_evaluation_mode():
    class Stubborn(nn.Linear):
        def train(self, mode=True):
            raise RuntimeError("no")

    net = Stubborn(2, 2)
    with pytest.raises(RuntimeError, match="no"), evaluating(net):
        pass
    assert forward._uses == []
