"""What is read from within a network, of whatever kind."""

import re
from itertools import pairwise

import pytest
import torch
from torch import nn

from qipf import QIPFInputError
from qipf.network.features import (
    FINEST,
    MOST_LAYERS,
    WIDEST,
    LayerSite,
    chosen_sites,
    named_sites,
    pooled,
    recorded,
)
from qipf.network.reading import in_parts, passed


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Twice(nn.Module):
    """A dense layer that runs twice, between others."""

    def __init__(self):
        super().__init__()
        self.first, self.again, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.last(self.again(self.again(self.first(x)).relu()))


class Tokens(nn.Module):
    """A small transformer: embedding, attention, pooling over the tokens."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(5, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.block(self.embed(x)).mean(1))


class SequenceFirst(Tokens):
    def forward(self, x):
        return super().forward(x) if x is None else self.head(self.embed(x.transpose(0, 1)).mean(0))


def lenet():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(4, 6, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3),
    )  # fmt: skip


def sites_of(net, inputs):
    return chosen_sites(net.eval(), lambda: net(inputs))


# ---------------------------------------------------------------------- pooling


def test_flat_rows_stay_as_they_are():
    rows = numbers(3, 20)
    assert torch.equal(pooled(rows), rows)


def test_maps_are_averaged_over_the_finest_grid_that_fits():
    maps = numbers(2, 32, 16, 16)
    found = pooled(maps)
    expected = maps.unflatten(2, (4, 4)).unflatten(4, (4, 4)).mean((3, 5)).flatten(1)
    assert found.shape == (2, 512)
    torch.testing.assert_close(found, expected)
    assert pooled(numbers(2, 4, 40, 40)).shape == (2, 4 * FINEST**2)
    assert pooled(numbers(2, 6, 3, 5)).shape == (2, 6 * 9)


def test_tokens_are_averaged_over_their_places_and_channels_over_a_line():
    values = numbers(2, 7, 96)
    torch.testing.assert_close(pooled(values), values.mean(1))
    line = numbers(2, 100, 20)
    expected = line.unflatten(2, (5, 4)).mean(3).flatten(1)
    torch.testing.assert_close(pooled(line, channels_first=True), expected)


def test_volumes_and_the_widest():
    assert pooled(numbers(2, 3, 4, 5, 6)).shape == (2, 3 * 16)
    wide = numbers(2, 4 * WIDEST)
    torch.testing.assert_close(pooled(wide), wide.unflatten(1, (WIDEST, 4)).mean(2))
    assert pooled(numbers(2, 2 * WIDEST, 3, 3)).shape == (2, WIDEST)


@pytest.mark.parametrize("shape", [(0, 9), (0, 2000), (0, 3, 8, 8), (0, 7, 5)])
def test_no_examples_are_no_rows(shape):
    assert pooled(torch.zeros(shape)).shape[0] == 0


def test_half_precision_becomes_float():
    assert pooled(numbers(2, 5).bfloat16()).dtype == torch.float32


# ---------------------------------------------------------------------- choosing


def test_the_inputs_of_computing_layers_but_the_first():
    assert sites_of(lenet(), numbers(2, 1, 8, 8)) == (
        LayerSite("3", "input"), LayerSite("6", "input"), LayerSite("8", "input"),
    )  # fmt: skip


def test_a_deep_network_is_sampled_evenly_and_at_its_end():
    net = nn.Sequential(*(nn.Linear(3, 3) for _ in range(30)))
    sites = sites_of(net, numbers(2, 3))
    places = [int(site.layer) for site in sites]
    assert len(places) == len(set(places)) == MOST_LAYERS
    assert (places[0], places[-1]) == (1, 29)
    gaps = [b - a for a, b in pairwise(places)]
    assert max(gaps) - min(gaps) <= 1


def test_a_layer_that_runs_twice_is_left_out():
    assert sites_of(Twice(), numbers(2, 4)) == (LayerSite("last", "input"),)


def test_a_transformer():
    sites = sites_of(Tokens(), numbers(2, 6, 5))
    assert sites[-1] == LayerSite("head", "input")
    assert {site.layer for site in sites} >= {"block.linear1", "block.linear2", "head"}
    logits, rows = passed(Tokens().eval(), numbers(4, 6, 5), sites)
    assert logits.shape == (4, 3)
    assert rows[LayerSite("block.linear2", "input")].shape == (4, 16)


@pytest.mark.parametrize("net", [nn.Linear(4, 3), nn.Sequential(nn.ReLU()), nn.Identity()])
def test_no_inner_layers(net):
    message = (
        "No inner layers were found in this network (dense or convolutional ones after the first). "
        "Name them: layers=[...], or use qipf.wrap(net), which judges by the logits."
    )
    with pytest.raises(QIPFInputError, match=f"^{re.escape(message)}$"):
        sites_of(net, numbers(2, 4))


def test_named_layers_each_once():
    assert named_sites(lenet(), ["4", "0", "4"]) == (LayerSite("4"), LayerSite("0"))


@pytest.mark.parametrize("layers", ["head", [], (), 5, None])
def test_what_is_no_list_of_names(layers):
    message = f"layers must be 'auto' or a list of layers' names, got {layers!r}."
    with pytest.raises(QIPFInputError, match=f"^{re.escape(message)}$"):
        named_sites(lenet(), layers)


def test_near_names_are_offered():
    message = "The network has no layer 'agian'. Close: again."
    with pytest.raises(QIPFInputError, match=f"^{re.escape(message)}"):
        named_sites(Twice(), ["agian"])


# ---------------------------------------------------------------------- reading


def test_rows_are_what_the_layers_read_and_gave():
    net, images = lenet().eval(), numbers(5, 1, 8, 8)
    logits, rows = passed(net, images, [LayerSite("6", "input"), LayerSite("6"), LayerSite("0")])
    flat = net[:6](images)
    torch.testing.assert_close(logits, net(images))
    torch.testing.assert_close(rows[LayerSite("6", "input")], flat)
    torch.testing.assert_close(rows[LayerSite("6")], net[6](flat))
    torch.testing.assert_close(rows[LayerSite("0")], pooled(net[0](images)))


def test_an_activation_in_place_does_not_reach_the_rows():
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 3))
    inputs = numbers(5, 4)
    _, rows = passed(net, inputs, [LayerSite("0")])
    torch.testing.assert_close(rows[LayerSite("0")], net[0](inputs))
    assert (rows[LayerSite("0")] < 0).any()


def test_a_line_of_channels_is_averaged_over_its_places():
    net = nn.Sequential(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6, 3))
    inputs = numbers(5, 2, 8)
    _, rows = passed(net, inputs, [LayerSite("0")])
    assert rows[LayerSite("0")].shape == (5, 4 * 6)
    torch.testing.assert_close(rows[LayerSite("0")], net[0](inputs).flatten(1))


def test_parts_are_the_whole(monkeypatch):
    net, images = lenet().eval(), numbers(5, 1, 8, 8)
    sites = [LayerSite("3", "input"), LayerSite("6")]
    whole = passed(net, images, sites)
    monkeypatch.setattr("qipf.network.reading.ROWS", 2)
    logits, rows = in_parts(net, images, sites)
    torch.testing.assert_close(logits, whole[0])
    for site in sites:
        torch.testing.assert_close(rows[site], whole[1][site])


def test_no_examples():
    logits, rows = in_parts(
        lenet().eval(), numbers(0, 1, 8, 8), [LayerSite("3", "input"), LayerSite("8")]
    )
    assert logits.shape == (0, 3)
    assert [tuple(part.shape) for part in rows.values()] == [(0, 36), (0, 3)]


def test_a_named_layer_that_runs_twice():
    message = (
        "again (output) ran 2 times in one pass; a field needs a layer that runs once, in a "
        "network that is not compiled or traced. Name other layers=[...]."
    )
    with pytest.raises(QIPFInputError, match=f"^{re.escape(message)}$"):
        passed(Twice(), numbers(2, 4), [LayerSite("again")])


def test_a_layer_that_never_runs():
    net = Twice()
    net.spare = nn.Linear(2, 2)
    with pytest.raises(QIPFInputError, match=re.escape("spare (output) ran 0 times in one pass")):
        passed(net, numbers(2, 4), [LayerSite("spare")])


def test_examples_that_do_not_come_first():
    message = (
        "embed (output) gives 6 rows for 2 predictions; the examples must come first. Name other "
        "layers=[...]."
    )
    with pytest.raises(QIPFInputError, match=f"^{re.escape(message)}$"):
        passed(SequenceFirst(), numbers(2, 6, 5), [LayerSite("embed")])


class Odd(nn.Module):
    def forward(self, x):
        return {"rows": x}


def test_what_is_no_tensor():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.odd, self.head = Odd(), nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.odd(x)["rows"])

    message = "odd (output) is not a tensor of one row an example. Name other layers=[...]."
    with pytest.raises(QIPFInputError, match=f"^{re.escape(message)}$"):
        passed(Net(), numbers(2, 4), [LayerSite("odd")])


def test_hooks_are_gone_even_after_an_error():
    net = lenet()
    with (
        pytest.raises(RuntimeError, match="stop"),
        recorded(net, [LayerSite("0"), LayerSite("3", "input")]),
    ):
        raise RuntimeError("stop")
    with pytest.raises(QIPFInputError), recorded(net, [LayerSite("0"), LayerSite("nowhere")]):
        pass
    with pytest.raises(RuntimeError):
        chosen_sites(net, lambda: net(numbers(2, 5)))
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in net.modules())
