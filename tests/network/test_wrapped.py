"""wrap(): every kind of network and loader; the network is left as it was."""

import re
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import qipf
from qipf import QIPF, QIPFFileError, QIPFInputError, QIPFNotFittedError
from qipf.errors import QIPFScoreWarning
from qipf.network.wrapped import WrappedModel


class Net(nn.Module):
    def __init__(self, answer=lambda logits: logits):
        super().__init__()
        torch.manual_seed(0)
        self.backbone = nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU())
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(6 * 6 * 6, 4)
        self.answer = answer

    def forward(self, images):
        return self.answer(self.head(self.drop(self.backbone(images).flatten(1))))


@pytest.fixture
def images():
    return torch.randn(120, 1, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def loader(images):
    labels = torch.arange(120) % 4
    return DataLoader(TensorDataset(images, labels), batch_size=32)


def logits_of(net, images):
    was, net.training = net.training, False
    net.eval()
    with torch.no_grad():
        logits = net(images)
    net.train(was)
    return logits


def test_a_prediction_is_the_networks_own_with_its_fields_uncertainty(images, loader):
    net = Net().eval()
    model = qipf.wrap(net).fit(loader)
    prediction = model(images)
    logits = logits_of(net, images)
    torch.testing.assert_close(prediction.logits, logits)
    assert torch.equal(prediction.predicted, logits.argmax(1))
    torch.testing.assert_close(prediction.uncertainty, model.field.uncertainty(logits))
    # all 120 predictions are in the field, each once
    assert sorted(map(tuple, model.field.centers_.tolist())) == sorted(map(tuple, logits.tolist()))


def test_novelty_is_that_of_the_field(images, loader):
    model = qipf.wrap(Net()).fit(loader)
    logits = model(images).logits
    torch.testing.assert_close(model.novelty(images), -model.field.log_density(logits))


@pytest.mark.parametrize(
    "answer",
    [
        lambda logits: (logits, "more"),
        lambda logits: [logits],
        lambda logits: {"loss": 0.0, "logits": logits},
        lambda logits: SimpleNamespace(logits=logits, hidden=None),
    ],
    ids=["tuple", "list", "dict", "object"],
)
def test_every_kind_of_output_gives_the_same(answer, images, loader):
    plain = qipf.wrap(Net()).fit(loader)(images)
    other = qipf.wrap(Net(answer)).fit(loader)(images)
    torch.testing.assert_close(other.uncertainty, plain.uncertainty)


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ("mean", lambda maps: maps.mean((2, 3))),
        ("flatten", lambda maps: maps.flatten(1)),
        (lambda maps: maps.amax((2, 3)), lambda maps: maps.amax((2, 3))),
    ],
)
def test_a_layer_is_pooled_as_told(pooling, expected, images, loader):
    net = Net().eval()
    model = qipf.wrap(net, layer="backbone", pooling=pooling).fit(loader)
    with torch.no_grad():
        rows = expected(net.backbone(images))
    torch.testing.assert_close(model(images).uncertainty, model.field.uncertainty(rows))
    assert model.field.n_features_in_ == rows.shape[1]


def test_tokens_are_averaged():
    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(3, 5)
            self.head = nn.Linear(5, 2)

        def forward(self, x):
            return self.head(self.embed(x).mean(1))

    torch.manual_seed(0)
    net, x = Tokens(), torch.randn(40, 7, 3)
    model = qipf.wrap(net, layer="embed").fit([x])
    with torch.no_grad():
        rows = net.embed(x).mean(1)
    torch.testing.assert_close(model(x).uncertainty, model.field.uncertainty(rows))


@pytest.mark.parametrize("layer", [None, "backbone.0"])
def test_the_network_is_left_as_it_was(layer, images, loader):
    net = Net()
    net.train()
    net.drop.eval()  # a mixture of modes comes back as a mixture
    net.head.weight.requires_grad_(False)
    net.head(torch.randn(1, 216)).sum().backward()
    state = {name: value.clone() for name, value in net.state_dict().items()}
    grads = [None if p.grad is None else p.grad.clone() for p in net.parameters()]
    model = qipf.wrap(net, layer=layer).fit(loader)
    model(images)
    assert [m.training for m in net.modules()] == [m is not net.drop for m in net.modules()]
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
    for parameter, grad in zip(net.parameters(), grads, strict=True):
        assert (parameter.grad is None) if grad is None else torch.equal(parameter.grad, grad)
    assert all(not m._forward_hooks for m in net.modules())
    assert not net.head.weight.requires_grad


def test_the_network_is_left_as_it_was_when_it_fails(images):
    net = Net().train()
    message = (
        "The network cannot take input of shape (3, 9, 8, 8), float32: Given groups=1, weight of "
        "size [6, 1, 3, 3], expected input[3, 9, 8, 8] to have 1 channels, but got 9 channels "
        "instead (RuntimeError). It was fitted with input of shape (n, 1, 8, 8), float32."
    )
    with pytest.raises(QIPFInputError, match=f"^{re.escape(message)}$"):
        qipf.wrap(net, layer="backbone").fit([images, torch.zeros(3, 9, 8, 8)])
    assert net.training
    assert all(not m._forward_hooks for m in net.modules())


def test_gradients_of_the_uncertainty_reach_the_input(images, loader):
    net = Net().double().eval()
    model = qipf.wrap(net).fit([images.double()])
    inputs = images[:2].double().requires_grad_()
    (gradient,) = torch.autograd.grad(model(inputs).uncertainty.sum(), inputs)
    step = 1e-5 * torch.randn(
        inputs.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    with torch.no_grad():
        rise = model(inputs + step).uncertainty.sum() - model(inputs - step).uncertainty.sum()
    assert float(rise) == pytest.approx(float(2 * (gradient * step).sum()), rel=1e-4)


def test_without_inputs_that_ask_no_gradients_are_kept(images, loader):
    prediction = qipf.wrap(Net()).fit(loader)(images)
    assert not prediction.logits.requires_grad
    assert not prediction.uncertainty.requires_grad


def test_only_a_sample_stays_in_memory(images):
    net = Net().eval()
    field = QIPF(max_centers=40, bandwidth="silverman", reduction="random")
    model = qipf.wrap(net, field=field).fit(images.split(7))
    assert model.field.centers_.shape == (40, 4)
    # batches of 7 are rounded otherwise than all images at once on some processors
    centers = torch.from_numpy(model.field.centers_).double()
    apart = (centers[:, None] - logits_of(net, images).double()).norm(dim=2)
    assert float(apart.amin(1).max()) < 1e-5
    assert len(apart.argmin(1).unique()) == 40
    other_cuts = qipf.wrap(net, field=field).fit(images.split(50))
    torch.testing.assert_close(
        torch.from_numpy(model.field.centers_), torch.from_numpy(other_cuts.field.centers_)
    )


@pytest.mark.slow
def test_predictions_stream_into_a_coreset(images):
    net, labels = Net().eval(), torch.arange(120) % 4
    field = QIPF(max_centers=40, reduction="coreset")
    model = qipf.wrap(net, field=field).fit(zip(images.split(7), labels.split(7), strict=True))
    logits = logits_of(net, images)
    direct = QIPF(max_centers=40, reduction="coreset").fit(logits, labels)
    assert model.field.centers_.shape == (40, 4)
    assert model.field.n_samples_seen_ == 120
    # the network's last digits differ with the batch, and the fit of the coreset magnifies them
    torch.testing.assert_close(
        model(images).uncertainty, direct.uncertainty(logits), rtol=5e-3, atol=1e-3
    )


def test_loaders_of_every_kind(images):
    net, labels = Net().eval(), torch.arange(120) % 4
    expected = qipf.wrap(net).fit([(images, labels)]).field.bandwidth_

    class Keyword(nn.Module):
        def forward(self, pixels):
            return net(pixels)

    keyword = Keyword()
    for batch in ({"pixels": images, "labels": labels}, {"pixels": images, "label": labels}):
        assert qipf.wrap(keyword).fit([batch]).field.bandwidth_ == expected
    assert qipf.wrap(net).fit(iter([(images, labels)])).field.bandwidth_ == expected
    unlabelled = qipf.wrap(net).fit([[images]]).field
    assert unlabelled.bandwidth_criterion_ == "likelihood"


def test_half_precision_networks_are_judged(images):
    net = Net().to(torch.bfloat16).eval()
    model = qipf.wrap(net).fit([images.to(torch.bfloat16)])
    prediction = model(images[:3].to(torch.bfloat16))
    assert prediction.logits.dtype == torch.bfloat16
    assert torch.isfinite(prediction.uncertainty).all()


@pytest.mark.parametrize(
    ("activation", "name"),
    [
        (nn.Softmax(dim=1), "softmax"),
        (nn.LogSoftmax(dim=1), "log_softmax"),
        (nn.Sigmoid(), "sigmoid"),
        (lambda logits: nn.functional.softmax(logits, dim=1), "softmax"),
        (lambda logits: logits.softmax(1), "softmax"),
    ],
)
def test_a_network_known_to_end_in_probabilities_is_refused(activation, name, images):
    with pytest.raises(QIPFInputError, match=f"The network ends in {name}: .* raw logits"):
        qipf.wrap(Net(activation)).fit([images])


@pytest.mark.parametrize("last", [lambda z: z.argmax(1), lambda z: z.to(torch.complex64)])
def test_a_network_that_gives_no_real_numbers_is_refused(last, images):
    with pytest.raises(QIPFInputError, match="needs raw logits, which are real numbers"):
        qipf.wrap(Net(last)).fit([images])


def test_one_number_that_looks_like_a_probability_warns(images):
    probable = Net(lambda logits: logits[:, 0].sigmoid().clamp(0, 1))
    with pytest.warns(
        QIPFScoreWarning, match="one number from 0 to 1.* leave out its last"
    ) as said:
        qipf.wrap(probable).fit([images])
    assert sum("from 0 to 1" in str(one.message) for one in said) == 1


def test_a_network_without_a_batch_is_refused(images):
    with pytest.raises(QIPFInputError, match="logits have shape"):
        qipf.wrap(Net(lambda logits: logits.mean())).fit([images])


def test_probabilities_are_never_guessed(images):
    # numbers in [0, 1] that no softmax made are somebody's logits
    model = qipf.wrap(Net(lambda logits: logits.clamp(0, 1) / 4)).fit([images])
    assert model(images[:2]).uncertainty.shape == (2,)
    inside = Net(lambda logits: 3 * logits.softmax(1))  # not the last step
    assert qipf.wrap(inside).fit([images]).field.centers_.shape == (120, 4)
    # and a softmax after the chosen layer does no harm
    qipf.wrap(Net(nn.Softmax(dim=1)), layer="head").fit([images])


def test_outputs_of_a_layer_warn_only_if_they_mislead():
    """Rows far from the others are the errors, or the right ones among errors."""
    torch.manual_seed(0)
    rows = torch.randn(400, 4)
    rows[:40] *= 8
    far = torch.arange(400) < 40
    net = nn.Sequential(nn.Identity(), nn.Linear(4, 4))
    predicted = net(rows).argmax(1)
    other = (predicted + 1) % 4
    qipf.wrap(net, layer="0").fit([(rows, torch.where(far, other, predicted))])
    with pytest.warns(QIPFScoreWarning, match="worse than chance"):
        qipf.wrap(net, layer="0").fit([(rows, torch.where(far, predicted, other))])


def test_tasks_in_files_are_checked(images):
    model = qipf.wrap(Net(), field=QIPF(bandwidth=1.0)).fit([images])
    header, arrays = model.state()
    found = WrappedModel.from_state(header, arrays, "file.qipf", model.net)
    assert found.task_ == model.task_
    assert found.task_.name == "multiclass"
    for wrong in ({"task": "regression"}, {"task": []}, {"ignore_index": 1.5}, {"tasks": "auto"}):
        network = {**header["network"], **wrong}
        with pytest.raises(QIPFFileError, match="file.qipf cannot be used: its"):
            WrappedModel.from_state({**header, "network": network}, arrays, "file.qipf")


def test_bad_networks_and_layers_are_refused(images):
    with pytest.raises(QIPFInputError, match="net must be a torch.nn.Module, got function"):
        qipf.wrap(lambda x: x).fit([images])
    with pytest.raises(QIPFInputError, match="no layer 'backbon.0'. Close: backbone.0"):
        qipf.wrap(Net(), layer="backbon.0").fit([images])
    with pytest.raises(QIPFInputError, match="Unknown pooling 'max'"):
        qipf.wrap(Net(), pooling="max").fit([images])
    with pytest.raises(QIPFInputError, match="returns NoneType, in which no logits were found"):
        qipf.wrap(Net(lambda logits: None)).fit([images])
    with pytest.raises(QIPFInputError, match=re.escape("logits have shape (120, 2, 2), which")):
        qipf.wrap(Net(lambda logits: logits.view(-1, 2, 2))).fit([images])
    with pytest.raises(QIPFInputError, match="no layer 0: names are strings. Did you mean '0'"):
        qipf.wrap(nn.Sequential(Net()), layer=0).fit([images])
    reused = nn.Sequential(act := nn.ReLU(), nn.Linear(4, 4), act)
    with pytest.raises(QIPFInputError, match="ran 2 times"):
        qipf.wrap(reused, layer="0").fit([torch.randn(5, 4)])
    with pytest.raises(QIPFInputError, match="one row per prediction is needed"):
        qipf.wrap(Net(), layer="head", pooling=lambda y: y.sum(0)).fit([images])


def test_bad_loaders_are_refused_and_leave_nothing_behind(images):
    labels = torch.arange(120) % 4
    cases = [
        ([], "empty: fit needs at least two predictions. A generator can be read only once:"),
        ([(images, labels[:5])], "labels of batch 0 must have shape"),
        ([(images, labels), images], "Batch 1 lacks labels, unlike those before it"),
        ([images, (images, labels)], "Batch 1 has labels, unlike those before it"),
        ([(images, labels, 3)], "A batch has 3 parts"),
        ([images, torch.full((2, 1, 8, 8), torch.nan)], "output for batch 1 has 2 rows with NaN"),
        ([images[:1]], "n_samples = 1"),
        ([torch.zeros(9, 1, 8, 8)], "fewer than two distinct rows"),
    ]
    for loader, message in cases:
        model = qipf.wrap(Net())
        with pytest.raises(QIPFInputError, match=message):
            model.fit(loader)
        with pytest.raises(QIPFNotFittedError, match="Call fit"):
            model(images)


def test_a_network_that_changes_its_input_is_exported(images, tmp_path):
    class Scales(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def forward(self, x):
            return self.net(x.sub_(0.3).div_(0.37))

    before = images.clone()
    model = qipf.wrap(Scales()).fit([images])
    written = model.export_onnx(tmp_path / "model.onnx")
    assert written.difference is None or written.difference < 1e-4
    assert torch.equal(model.uncertainty(images), model.uncertainty(images))
    assert torch.equal(images, before)


def test_an_activation_in_place_does_not_reach_the_captured_layer():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 3)).eval()
    x = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    model = qipf.wrap(net, layer="0").fit([x])
    with torch.no_grad():
        assert model.field.centers_.min() == pytest.approx(float(net[0](x).min()))


def test_labels_choose_the_bandwidth_by_error_detection():
    x = torch.randn(400, 4, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    model = qipf.wrap(nn.Linear(4, 2)).fit([(x, torch.arange(400) % 2)])
    assert model.field.bandwidth_criterion_ == "error detection"


@pytest.mark.slow
def test_a_network_without_errors_gets_its_bandwidth_by_near_errors():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).eval()
    x = torch.randn(800, 4, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        hidden, logits = net[1](net[0](x)), net(x)
    labels = logits.argmax(1)
    batches = list(zip(x.split(300), labels.split(300), strict=True))
    field = qipf.wrap(net).fit(batches).field
    assert field.bandwidth_criterion_ == "errors and near errors"
    assert field.bandwidth_ == pytest.approx(QIPF().fit(logits, labels).bandwidth_, rel=1e-5)
    # what a layer gives is judged by what the logits say of it
    by_layer = qipf.wrap(net, layer="1").fit(batches).field
    assert by_layer.bandwidth_criterion_ == "errors and near errors"
    flags = QIPF().fit(hidden, wrong=torch.zeros(800, dtype=torch.bool))
    assert flags.bandwidth_criterion_ == "likelihood"
    # also where the network computes in a format that numpy does not know
    half = qipf.wrap(net.bfloat16()).fit([(x.bfloat16(), net(x.bfloat16()).argmax(1))]).field
    assert half.bandwidth_criterion_ == "errors and near errors"


def test_a_loader_over_a_stream_has_no_length():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(torch.randn(40, 4, generator=torch.Generator().manual_seed(0)))

    torch.manual_seed(0)
    model = qipf.wrap(nn.Linear(4, 3)).fit(DataLoader(Stream(), batch_size=8))
    assert model.field.centers_.shape == (40, 3)


def test_several_inputs_reach_the_network_one_by_one():
    class Two(nn.Module):
        def forward(self, a, b):
            return a - b

    a, b = torch.randn(2, 30, 3, generator=torch.Generator().manual_seed(0))
    model = qipf.wrap(Two()).fit([((a, b), torch.zeros(30, dtype=torch.long))])
    assert model(a, b).logits.equal(a - b)
    asking = a[:2].clone().requires_grad_()
    model(asking, b[:2]).uncertainty.sum().backward()
    assert asking.grad.abs().sum() > 0


def test_convolutions_along_time_have_their_channels_first():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv1d(2, 5, 3), nn.Flatten(), nn.Linear(5 * 8, 3)).eval()
    x = torch.randn(30, 2, 10, generator=torch.Generator().manual_seed(0))
    assert qipf.wrap(net, layer="0").fit([x]).field.n_features_in_ == 5


def test_a_layer_is_known_by_each_of_its_names():
    net = nn.Module()
    net.a = net.b = nn.Linear(3, 3)
    net.forward = lambda x: net.a(x)
    assert qipf.wrap(net, layer="b").layer == "b"


def test_more_bad_arguments_are_refused(images):
    for arguments, message in [
        ({"layer": 3}, "no layer 3"),
        ({"field": QIPF}, "field must be a QIPF, such as"),
    ]:
        with pytest.raises(QIPFInputError, match=message):
            qipf.wrap(Net(), **arguments).fit([images])
    for loader, message in [
        (None, "fit needs an iterable of batches"),
        ([(images, ["cat"] * 120)], "labels of batch 0 must hold"),
        ([(images, torch.arange(120) % 4 + 1)], "must hold classes 0..3, got 4 in "),
    ]:
        with pytest.raises(QIPFInputError, match=re.escape(message)):
            qipf.wrap(Net()).fit(loader)
