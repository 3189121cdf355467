"""Rows of the layers of networks of many kinds."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from qipf import QIPFInputError
from qipf.export.program import Example
from qipf.network.features import (
    MOST_LAYERS,
    LayerSite,
    chosen_sites,
    hooked,
    named_sites,
    passes_nested_tensors,
    run_in_batches,
    run_once,
)
from qipf.network.pooling import grid_pooling, mean_pooling


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
    return chosen_sites(net.eval(), lambda part: net(*part.inputs), Example((inputs,), {}))


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


def test_a_layer_that_runs_twice_is_read_as_mean_and_deviation_of_its_runs():
    net, x = Twice(), numbers(2, 4)
    sites = sites_of(net, x)
    assert sites == (LayerSite("again", "inputs"), LayerSite("last", "input"))
    first = net.first(x)
    second = net.again(first).relu()
    expected = torch.cat([first + second, (first - second).abs()], 1) / 2
    torch.testing.assert_close(run_in_batches(net, x, sites)[1][sites[0]], expected)


def test_a_layer_may_run_any_number_of_times():
    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.read, self.cell, self.head = nn.Linear(2, 4), nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x):  # (n, steps, 2)
            state = torch.zeros(len(x), 4)
            for step in x.unbind(1):
                state = torch.tanh(self.read(step) + self.cell(state))
            return self.head(state)

    net = Loop()
    sites = sites_of(net, numbers(4, 3, 2))
    assert sites == (LayerSite("cell", "inputs"), LayerSite("head", "input"))
    for steps in (1, 2, 5):
        rows = run_in_batches(net, numbers(4, steps, 2), sites)[1][sites[0]]
        assert rows.shape == (4, 8)
        assert bool((rows[:, 4:] > 0).any()) == (steps > 1)


class Folded(nn.Module):
    """Two parts of every input pass as two inputs, and the last layer reads both."""

    def __init__(self):
        super().__init__()
        self.first, self.inner, self.head = nn.Linear(2, 6), nn.Linear(6, 5), nn.Linear(10, 3)

    def forward(self, x):  # (n, 4)
        return self.head(self.inner(self.first(x.view(-1, 2))).view(len(x), 10))


class TokensFirst(nn.Module):
    """Six tokens of two numbers each come first."""

    def __init__(self):
        super().__init__()
        self.first, self.inner, self.head = nn.Linear(2, 6), nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x):  # (n, 12)
        return self.head(self.inner(self.first(x.view(-1, 6, 2).transpose(0, 1))).mean(0))


@pytest.mark.parametrize("rows", [1, 2, 6, 16])
def test_layers_without_a_row_for_each_input_are_left_out(rows):
    head = (LayerSite("head", "input"),)
    assert sites_of(Folded(), numbers(rows, 4)) == head
    assert sites_of(TokensFirst(), numbers(rows, 12)) == head


def test_a_transformer():
    sites = sites_of(Tokens(), numbers(2, 6, 5))
    assert sites[-1] == LayerSite("head", "input")
    assert {site.layer for site in sites} >= {"block.linear1", "block.linear2", "head"}
    logits, rows = run_in_batches(Tokens().eval(), numbers(4, 6, 5), sites)
    assert logits.shape == (4, 3)
    assert rows[LayerSite("block.linear2", "input")].shape == (4, 16)


def test_the_only_layer_behind_a_recurrent_one():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru, self.head = nn.GRU(5, 6, batch_first=True), nn.Linear(6, 3)

        def forward(self, x):
            return self.head(self.gru(x)[0][:, -1])

    expected = LayerSite("gru", "output"), LayerSite("head", "input")
    assert sites_of(Recurrent(), numbers(2, 4, 5)) == expected
    words = nn.Sequential(nn.EmbeddingBag(9, 4), nn.Linear(4, 3))
    assert sites_of(words, torch.tensor([[1, 2], [3, 4]])) == (LayerSite("1", "input"),)


class Recurrent(nn.Module):
    """Layers before, in and after a recurrent one, which is a cell or a whole layer."""

    def __init__(self, before, recurrent, after):
        super().__init__()
        self.before, self.recurrent, self.after = before, recurrent, after

    def forward(self, x):  # (n, tokens, 5)
        x = self.before(x)
        if isinstance(self.recurrent, nn.RNNBase):
            state = self.recurrent(x)[0][:, -1]
        else:
            state = torch.zeros(len(x), self.recurrent.hidden_size)
            for token in x.unbind(1):
                state = self.recurrent(token, state)
        return self.after(state)


def test_recurrent_layers_are_left_out_where_padding_is_expected_and_unknown():
    gru = nn.GRU(5, 6, batch_first=True)
    net, x = Recurrent(nn.Identity(), gru, nn.Linear(6, 3)), numbers(2, 4, 5)
    both = LayerSite("recurrent"), LayerSite("after", "input")
    for given, expected in (
        (Example((x,), {}), both),
        (Example((x, torch.tensor([4, 2])), {}), both[1:]),
        (Example((x,), {"attention_mask": torch.ones(2, 4)}), both),
    ):
        assert chosen_sites(net, lambda part: net(part.inputs[0]), given) == expected


@pytest.mark.parametrize("recurrent", [nn.GRU(5, 6, batch_first=True), nn.GRUCell(5, 6)])
def test_a_layer_behind_a_recurrent_one_does_not_read_the_input(recurrent):
    head = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    own = (LayerSite("recurrent"),) if isinstance(recurrent, nn.GRU) else ()
    after = LayerSite("after.0", "input"), LayerSite("after.2", "input")
    for before in (nn.Identity(), nn.Linear(5, 5)):
        sites = sites_of(Recurrent(before, recurrent, head), numbers(2, 4, 5))
        assert sites == (*own, *after)


def test_a_layer_before_a_recurrent_one_reads_the_input():
    net = Recurrent(nn.Linear(5, 5), nn.GRUCell(5, 6), nn.Identity())
    with pytest.raises(QIPFInputError, match="No inner layers"):
        sites_of(net, numbers(2, 4, 5))


class Packed(nn.Module):
    """A recurrent layer that reads packed sequences or pieces, or has tokens first."""

    def __init__(self, batch_first, by="packed"):
        super().__init__()
        self.by = by
        self.gru, self.head = nn.GRU(5, 6, batch_first=batch_first), nn.Linear(6, 3)

    def forward(self, x):
        if not self.gru.batch_first:
            return self.head(self.gru(x.transpose(0, 1))[1][0])
        if self.by == "pieces":  # of each input two
            return self.head(
                self.gru(x.reshape(-1, x.shape[1] // 2, 5))[1][0].view(len(x), 2, 6).sum(1)
            )
        if self.by == "keyword":
            return self.head(self.gru(input=x)[1][0])
        lengths = torch.full((len(x),), x.shape[1])
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return self.head(self.gru(packed)[1][0])


@pytest.mark.parametrize(
    "net", [Packed(True), Packed(False), Packed(True, "pieces"), Packed(True, "keyword")]
)
def test_recurrent_layers_whose_output_has_no_row_for_each_input_are_left_out(net):
    assert sites_of(net, numbers(2, 4, 5)) == (LayerSite("head", "input"),)


@pytest.mark.parametrize("net", [nn.Linear(4, 3), nn.Sequential(nn.ReLU()), nn.Identity()])
def test_no_inner_layers(net):
    with pytest.raises(QIPFInputError, match="No inner layers"):
        sites_of(net, numbers(2, 4))


def test_named_layers_each_once():
    assert named_sites(lenet(), ["4", "0", "4"]) == (LayerSite("4"), LayerSite("0"))


@pytest.mark.parametrize("layers", ["head", [], (), 5, None])
def test_layers_that_are_no_list_of_names(layers):
    with pytest.raises(QIPFInputError, match="layers must be 'auto' or a list"):
        named_sites(lenet(), layers)


def test_near_names_are_offered():
    with pytest.raises(QIPFInputError, match=r"no layer 'agian'\. Close: again"):
        named_sites(Twice(), ["agian"])


# ---------------------------------------------------------------------- reading


def test_rows_are_what_the_layers_read_and_gave():
    net, images = lenet().eval(), numbers(5, 1, 8, 8)
    logits, rows = run_in_batches(
        net, images, [LayerSite("6", "input"), LayerSite("6"), LayerSite("0")]
    )
    flat = net[:6](images)
    torch.testing.assert_close(logits, net(images))
    torch.testing.assert_close(rows[LayerSite("6", "input")], flat)
    torch.testing.assert_close(rows[LayerSite("6")], net[6](flat))
    torch.testing.assert_close(rows[LayerSite("0")], grid_pooling(net[0], net[0](images)))


def test_an_activation_in_place_does_not_reach_the_rows():
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 3))
    inputs = numbers(5, 4)
    _, rows = run_in_batches(net, inputs, [LayerSite("0")])
    torch.testing.assert_close(rows[LayerSite("0")], net[0](inputs))
    assert (rows[LayerSite("0")] < 0).any()


class Overwrites(nn.Module):
    """Changes what its first layer gives, in the passes from a given one on."""

    def __init__(self, change, start=1):
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.change, self.start, self.passes = change, start, 0

    def forward(self, x):
        self.passes += 1
        hidden = self.first(x)
        if self.passes >= self.start:
            self.change(hidden)
        return self.last(hidden)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x,
        lambda x: x.relu_(),
        lambda x: x.data.relu_(),  # which its version does not show
        lambda x: x.numpy().fill(1.0),
    ],
    ids=["none", "relu", "data", "numpy"],
)
def test_rows_are_those_before_a_network_overwrites_them(change):
    net, inputs, site = Overwrites(change), numbers(5, 4), LayerSite("first")
    for passes in (1, 2, 3):
        with torch.no_grad():
            _, rows = run_in_batches(net, inputs, [site], copied=False)
            torch.testing.assert_close(rows[site], net.first(inputs))
        assert net.passes == passes


def test_a_pass_that_overwrites_rows_unlike_the_first_is_repeated():
    net = Overwrites(lambda x: x.relu_(), start=3)
    inputs, site = numbers(5, 4), LayerSite("first")
    for passes in (1, 2, 4, 5):
        with torch.no_grad():
            _, rows = run_in_batches(net, inputs, [site], copied=False)
            torch.testing.assert_close(rows[site], net.first(inputs))
        assert net.passes == passes


def test_rows_of_a_network_with_memory_of_its_own(monkeypatch):
    class Reusing(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last, self.memory = nn.Identity(), nn.Linear(4, 3), torch.zeros(2, 4)

        def forward(self, x):
            return self.last(self.first(self.memory.copy_(x)))

    monkeypatch.setattr("qipf.network.features.BATCH", 2)
    inputs, site = numbers(4, 4), LayerSite("first")
    with torch.no_grad():
        _, rows = run_in_batches(Reusing(), inputs, [site], copied=False)
    torch.testing.assert_close(rows[site], inputs)


def test_rows_in_inference_mode_are_copied():
    net, inputs, site = nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True)), numbers(5, 4), "0"
    with torch.inference_mode():
        _, rows = run_in_batches(net, inputs, [LayerSite(site)], copied=False)
        torch.testing.assert_close(rows[LayerSite(site)], net[0](inputs))


class ScalesItsInput(nn.Module):
    """Normalises its input in place."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))

    def forward(self, x):
        return self.net(x.sub_(0.3).div_(0.37))


def test_a_network_that_changes_its_input_does_not_reach_the_caller():
    net, x = ScalesItsInput(), numbers(9, 4)
    before = x.clone()
    first, again = (run_in_batches(net, x, named_sites(net, ["net.0"])) for _ in range(2))
    assert torch.equal(x, before)
    assert torch.equal(first[0], again[0])


class Padded(nn.Module):
    """PyTorch's encoder with padding, which passes texts on as a nested tensor."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.embed, self.encoder = nn.Embedding(9, 8), nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens, attention_mask):
        found = self.encoder(self.embed(tokens), src_key_padding_mask=attention_mask == 0)
        shown = attention_mask[..., None]
        return self.head((found * shown).sum(1) / shown.sum(1))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_averaged_over_their_tokens():
    net = Padded().eval()
    tokens = torch.randint(9, (5, 7), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(7) < torch.tensor([7, 3, 1, 5, 2])[:, None]).long()
    sites = [LayerSite("encoder.layers.1.linear1", "input"), LayerSite("head", "input")]
    example = Example((), {"tokens": tokens, "attention_mask": mask})
    with torch.no_grad():
        logits, rows = run_in_batches(net, example, sites)
        for i, count in enumerate(mask.sum(1).tolist()):  # each text alone, without padding
            alone = Example(
                (), {"tokens": tokens[i : i + 1, :count], "attention_mask": mask[:1, :count]}
            )
            own, own_rows = run_in_batches(net, alone, sites)
            torch.testing.assert_close(own[0], logits[i])
            for site in sites:
                torch.testing.assert_close(own_rows[site][0], rows[site][i])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_found():
    padded, tokens = Padded().eval(), (torch.ones(3, 4, dtype=torch.long), torch.ones(3, 4))
    site = LayerSite("encoder.layers.1.linear1", "input")
    plain, rows = Tokens().eval(), numbers(3, 4, 5)
    with torch.no_grad():
        assert passes_nested_tensors(padded, lambda: padded(*tokens), [site])
        of_plain = [LayerSite("block.linear1", "input")]
        assert not passes_nested_tensors(plain, lambda: plain(rows), of_plain)


def test_a_line_of_channels_is_averaged_over_its_places():
    net = nn.Sequential(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6, 3))
    inputs = numbers(5, 2, 8)
    _, rows = run_in_batches(net, inputs, [LayerSite("0")])
    assert rows[LayerSite("0")].shape == (5, 4 * 6)
    torch.testing.assert_close(rows[LayerSite("0")], net[0](inputs).flatten(1))


def test_parts_are_the_whole(monkeypatch):
    net, images = lenet().eval(), numbers(5, 1, 8, 8)
    sites = [LayerSite("3", "input"), LayerSite("6")]
    whole = run_in_batches(net, images, sites)
    monkeypatch.setattr("qipf.network.features.BATCH", 2)
    logits, rows = run_in_batches(net, images, sites)
    torch.testing.assert_close(logits, whole[0])
    for site in sites:
        torch.testing.assert_close(rows[site], whole[1][site])


def test_on_a_cpu_large_inputs_pass_in_small_parts_of_equal_length(monkeypatch):
    seen = []
    net = nn.Sequential(nn.Flatten(), nn.LazyLinear(3))
    net(numbers(2, 4, 4))
    net.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))
    monkeypatch.setattr("qipf.network.features.NUMBERS", 20 * 16)
    images = numbers(45, 4, 4)
    torch.testing.assert_close(run_in_batches(net, images, [])[0], net(images))
    assert seen == [22, 23, 45]
    seen.clear()
    monkeypatch.setattr("qipf.network.features.NUMBERS", 18 * 16)
    run_in_batches(net, images, [])
    run_in_batches(net, images[:26], [])
    assert seen == [22, 23, 26]  # the number of parts is rounded
    seen.clear()
    monkeypatch.setattr("qipf.network.features.NUMBERS", 1)
    run_in_batches(net, numbers(50, 4, 4), [])
    run_in_batches(net, images[:1], [])
    assert seen == [16, 17, 17, 1]  # never fewer than FEWEST at once, but for few inputs
    seen.clear()
    run_in_batches(net, numbers(273, 4, 4), [])
    assert seen == [16] * 16 + [17]
    seen.clear()
    monkeypatch.setattr("qipf.network.features.BATCH", 16)
    run_in_batches(net, images, [])
    assert seen == [15, 15, 15]


def test_no_examples():
    logits, rows = run_in_batches(
        lenet().eval(), numbers(0, 1, 8, 8), [LayerSite("3", "input"), LayerSite("8")]
    )
    assert logits.shape == (0, 3)
    assert [tuple(part.shape) for part in rows.values()] == [(0, 36), (0, 3)]


class NotATensor(nn.Module):
    def __init__(self):
        super().__init__()
        self.odd, self.head = nn.Identity(), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.odd({"rows": x})["rows"])


class Spare(Twice):
    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("net", "shape", "layer", "message"),
    [
        (Twice, (2, 4), "again", r"again \(output\) ran 2 times"),
        (Spare, (2, 4), "spare", r"spare \(output\) ran 0 times"),
        (SequenceFirst, (2, 6, 5), "embed", r"shape \(6, 8\) after pooling for 2 predictions"),
        (NotATensor, (2, 4), "odd", "gives dict, not a tensor"),
    ],
)
def test_layers_that_cannot_be_used(net, shape, layer, message):
    net = net()
    with pytest.raises(QIPFInputError, match=f"{message}.* Name other layers"):
        run_in_batches(net, numbers(*shape), [LayerSite(layer)])
    with pytest.raises(QIPFInputError, match="Another way"):
        run_once(
            net, lambda: net(numbers(*shape)), [LayerSite(layer)], mean_pooling, "Another way."
        )


def test_hooks_are_gone_even_after_an_error():
    net = lenet()
    with (
        pytest.raises(RuntimeError, match="stop"),
        hooked(net, {LayerSite("0"): print, LayerSite("3", "input"): print}),
    ):
        raise RuntimeError("stop")
    with pytest.raises(QIPFInputError), hooked(net, {LayerSite("nowhere"): print}):
        pass
    with pytest.raises(RuntimeError):
        chosen_sites(net, lambda part: net(*part.inputs), Example((numbers(2, 5),), {}))
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in net.modules())
