"""Batches and arguments: what reaches the network."""

import re
from collections import OrderedDict, UserDict

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import qipf
from qipf import LayeredQIPF, QIPFInputError, QIPFNotFittedError, ShiftMonitor
from qipf.export.program import Example
from qipf.network.batches import arguments, batches
from qipf.network.forward import call, parts_of

A, B = torch.randn(2, 60, 3, generator=torch.Generator().manual_seed(0))


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.head = nn.Linear(3, 6), nn.Linear(6, 3)

    def forward(self, first, second=None, *, scale=1.0):
        return scale * self.head(
            torch.tanh(self.inner(first if second is None else first - second))
        )


class OfDict(nn.Module):
    """One argument that is a dict."""

    def __init__(self):
        super().__init__()
        self.two = Two()

    def forward(self, inputs):
        return {"logits": self.two(inputs["a"], inputs["b"])}


@pytest.mark.parametrize(
    ("inputs", "options", "expected"),
    [
        ((A,), {}, Example((A,), {})),
        ((A, B), {}, Example((A, B), {})),
        (((A, B),), {}, Example((A, B), {})),
        (([A, B],), {}, Example((A, B), {})),
        ((A,), {"second": B}, Example((A,), {"second": B})),
        (({"first": A, "second": B},), {}, Example((), {"first": A, "second": B})),
        ((UserDict(first=A, labels=B),), {}, Example((), {"first": A})),
        ((OrderedDict(first=A, label=B),), {}, Example((), {"first": A})),
        ((), {"first": A, "labels": B}, Example((), {"first": A})),
        ((Example((A,), {}),), {}, Example((A,), {})),
    ],
)
def test_arguments_of_the_network(inputs, options, expected):
    found = arguments(Two(), inputs, options)
    assert list(found.values) == list(expected.values)
    assert all(found.values[name] is expected.values[name] for name in expected.values)


@pytest.mark.parametrize(
    ("loader", "kind"), [(DataLoader([A]), "DataLoader"), (iter([A]), "list_iterator")]
)
def test_loaders_are_not_inputs(loader, kind):
    expected = (
        f"A network takes tensors, got {kind} as input. Score it batch by batch: [model(inputs) "
        "for inputs, labels in loader]."
    )
    with pytest.raises(QIPFInputError, match=re.escape(expected)):
        arguments(OfDict(), (loader,))


def test_a_dict_is_one_argument_where_the_network_takes_one():
    found = arguments(OfDict(), ({"a": A, "b": B, "labels": A},))
    assert found.options == {}
    assert list(found.inputs[0]) == ["a", "b"]
    assert list(found.tensors) == ["a", "b"]
    message = r"inputs first, b \(.*'b'\)\. Its forward takes first, second, scale; labels"
    with pytest.raises(QIPFInputError, match=message):
        arguments(Two(), ({"first": A, "b": B},))


@pytest.mark.parametrize("inputs", [(A.numpy(),), ({"first": A.numpy()},), ((A, B.numpy()),)])
def test_arrays_are_not_inputs(inputs):
    with pytest.raises(QIPFInputError, match="got a NumPy array as .*torch.from_numpy"):
        arguments(Two(), inputs)


def test_labels_of_every_kind_of_batch():
    labels = torch.arange(60) % 3
    for batch in (
        (A, labels),
        [A, labels],
        ((A,), labels),
        ({"first": A}, labels),
        {"first": A, "labels": labels},
        {"first": A, "label": labels},
        UserDict(first=A, labels=labels),
    ):
        (found,) = batches([batch], Two(), "fit", "reading")
        assert found.labels is labels
        assert next(iter(found.inputs.tensors.values())) is A
    with pytest.raises(QIPFInputError, match=r"3 parts; .* \(\(first, second\), labels\)"):
        list(batches([(A, B, labels)], Two(), "fit", "reading"))


@pytest.mark.parametrize("make", [qipf.wrap, LayeredQIPF])
def test_a_dict_that_was_fitted_with_can_be_scored(make):
    """Finding 6: `fit` took dicts, and `model(batch)` raised AttributeError."""
    net = Two()
    with torch.no_grad():
        labels = net(A, B).argmax(1)
    labels[::4] = (labels[::4] + 1) % 3
    batch = {"first": A, "second": B, "labels": labels}
    with pytest.warns(qipf.QIPFWarning) if make is LayeredQIPF else _nothing():
        model = make(net).fit([batch])
    model.calibrate([{"first": A.flip(1), "second": B.flip(0), "labels": labels}])
    expected = model(A, B)
    for inputs in (batch, UserDict(batch), (A, B)):
        found = model(inputs)
        assert torch.equal(found.logits, expected.logits)
        assert torch.equal(model.uncertainty(inputs), expected.uncertainty)
        assert torch.equal(model.p_values(inputs), expected.p_value)
        assert ShiftMonitor(model).update(inputs).seen == 60


class _nothing:  # noqa: N801
    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None


def test_inputs_that_do_not_fit_are_compared_with_those_of_fit():
    model = qipf.wrap(Two(), field=qipf.QIPF(bandwidth=1.0)).fit([(A, B)[:1]])
    fitted = r"It was fitted with input of shape \(n, 3\), float32\.$"
    for inputs, given in (
        (A[:, :2], r"input of shape \(60, 2\), float32: mat1 and mat2 shapes"),
        (A.double(), r"input of shape \(60, 3\), float64: mat1 and mat2 must have the same dtype"),
        (A.long(), r"input of shape \(60, 3\), int64: "),
        (
            (A, B, A),
            r"input_0 of shape .* positional arguments but 4 were given \(TypeError\)\. A tuple "
            r"or a list holds several inputs: pass inputs without labels\. ",
        ),
        ("text", "str: "),
        (None, "NoneType: "),
    ):
        with pytest.raises(QIPFInputError, match=f"^The network cannot take {given}.*{fitted}"):
            model(inputs)
    with pytest.raises(QIPFInputError, match=r"shape \(60, 2\), float32: .*\)\.$"):
        call(Two(), Example((A[:, :2],), {}))


@pytest.mark.slow
def test_changed_weights_are_noticed_by_every_call():
    net = Two()
    model = qipf.wrap(net, field=qipf.QIPF(bandwidth=1.0)).fit([A])
    model(A)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(A).sum().backward()
    optimizer.step()
    for use in (model, model.uncertainty):
        with pytest.raises(QIPFInputError, match="weights or buffers have changed since fit"):
            use(A)
    net.load_state_dict(before)  # the same numbers again
    model(A)
    net.head = nn.Linear(6, 3)
    with pytest.raises(QIPFInputError, match="weights or buffers have changed"):
        model(A)
    # in place through .data: not counted, found where the whole fingerprint is compared
    model = qipf.wrap(net, field=qipf.QIPF(bandwidth=1.0)).fit([A])
    net.head.weight.data.add_(1)
    model(A)
    with pytest.raises(QIPFInputError, match="weights or buffers have changed"):
        model.calibrate([A])


def test_an_unfitted_model_says_so_before_it_reads_the_inputs():
    with pytest.raises(QIPFNotFittedError, match="not fitted"):
        qipf.wrap(Two())({"nothing": 3})


def test_weights_of_inference_mode_have_no_versions():
    with torch.inference_mode():
        net = nn.Linear(2, 2)
    assert parts_of(net).versions == parts_of(net).versions
    assert len(parts_of(net).versions) == 2


def test_rows_of_an_example():
    weights = np.array([1, 2])
    example = Example(({"a": A, "more": [B, torch.tensor(1.0)]},), {"scale": weights})
    assert example.rows == 60
    assert list(example.tensors) == ["a", "more_0", "more_1"]
    few = example.take(slice(2, 5))
    assert torch.equal(few.tensors["a"], A[2:5])
    assert torch.equal(few.tensors["more_0"], B[2:5])
    assert few.tensors["more_1"].ndim == 0
    assert few.options["scale"] is weights
    again = Example.joined([example.take([0, 1]), few, example.take(torch.tensor([7]))])
    assert torch.equal(again.tensors["a"], A[[0, 1, 2, 3, 4, 7]])
    assert Example(("text",), {}).rows == 0
    assert again.shapes("n") == (
        "a of shape (n, 3), float32, more_0 of shape (n, 3), float32, more_1 of shape (), float32"
    )


def test_a_pair_of_tensors_is_one_batch():
    net, inputs = nn.Linear(3, 2), torch.randn(6, 3)
    labels = torch.arange(6) % 2
    (found,) = batches((inputs, labels), net, "fit", "reading")
    assert found.labels is labels
    torch.testing.assert_close(next(iter(found.inputs.tensors.values())), inputs)
    for loader in ((inputs, inputs), [inputs, inputs], (inputs[:, :1], inputs[:, 1:2])):
        two = list(batches(loader, net, "fit", "reading"))  # two batches without labels
        assert [batch.labels for batch in two] == [None, None]


@pytest.mark.parametrize("pair", [tuple, list])
@pytest.mark.parametrize("make", [qipf.wrap, LayeredQIPF])
def test_a_list_is_a_pair_too_and_labels_may_be_a_column(make, pair):
    torch.manual_seed(0)
    net, inputs = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(300, 4)
    labels = inputs[:, :3].argmax(1)
    model = make(net).fit(pair((inputs[:200], labels[:200])))
    expected = model.calibrate([(inputs[200:], labels[200:])]).detection_
    assert model.calibrate(pair((inputs[200:], labels[200:, None]))).detection_ == expected


@pytest.mark.parametrize("make", [qipf.wrap, LayeredQIPF])
@pytest.mark.parametrize(("net", "said"), [("net", "got str"), (nn.Linear, "got the class Linear")])
def test_what_is_no_network_is_refused_at_once(make, net, said):
    with pytest.raises(QIPFInputError, match=rf"net must be a torch.nn.Module, .*{said}"):
        make(net)


@pytest.mark.parametrize("make", [qipf.wrap, LayeredQIPF])
def test_moved_statistics_of_batch_norm_are_named(make):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    inputs = torch.randn(200, 4)
    model = make(net).fit((inputs, inputs[:, :3].argmax(1)))
    net.train()
    net(inputs)
    with pytest.raises(QIPFInputError, match="a call in training mode, which moves the statistics"):
        model(inputs)


@pytest.mark.parametrize("make", [qipf.wrap, qipf.LayeredQIPF])
def test_labels_beside_inputs_name_the_way_out(make):
    model = make(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2)))
    inputs, labels = torch.zeros(3, 2), torch.zeros(3).long()
    for verb in ("fit", "calibrate"):
        message = (
            f"{verb} takes one loader of batches (inputs, labels). For two arrays: "
            f"{verb}([(inputs, labels)])."
        )
        with pytest.raises(QIPFInputError, match=re.escape(message)):
            getattr(model, verb)(inputs, labels)
