"""LayeredQIPF: one pass, the network's own prediction, and the network left as it was."""

import copy
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import qipf
from qipf import LayeredQIPF, QIPFInputError, QIPFNotFittedError, QIPFWarning
from qipf.layered.mixture import gap
from qipf.layered.opinions import opinions_of
from qipf.layered.reading import in_parts
from qipf.layered.taps import Tap
from qipf.layered.tuning import FEWEST
from tests.stored.write_files import layered_data, layered_network

FEW = {"max_centers": 40, "max_tuning": 50}


def batches(data, size=60):
    return list(zip(*(part.split(size) for part in data), strict=True))


def fitted(net, data, **options):
    return LayeredQIPF(net, **{**FEW, **options}).fit(batches(data))


# ---------------------------------------------------------------------- what it says


def test_a_prediction_is_the_networks_own_beside_the_mixtures_doubt(model, fresh):
    prediction = model(fresh)
    with torch.no_grad():
        torch.testing.assert_close(prediction.logits, model.net(fresh))
    assert torch.equal(prediction.labels, prediction.logits.argmax(1))
    mixture = torch.einsum("nlc,l->nc", model.opinions(fresh), model.weights_)
    torch.testing.assert_close(prediction.probabilities, mixture)
    torch.testing.assert_close(prediction.probabilities.sum(1), torch.ones(30).double())
    torch.testing.assert_close(prediction.uncertainty, gap(mixture, prediction.labels))
    assert torch.equal(model.uncertainty(fresh), prediction.uncertainty)


def test_what_was_learned(model, data):
    assert model.layers_ == (Tap("2", "input"), Tap("4", "input"))
    assert model.weights_.shape == (3,)
    assert float(model.weights_.sum()) == pytest.approx(1)
    places = model.fields_[0].examples
    assert len(places) == len(places.unique()) == 40
    for field in model.fields_:
        assert torch.equal(field.examples, places)
        assert torch.equal(field.labels, data[1][places])
        assert field.masses.tolist() == [1.0] * 40
    # the centres are what those layers read of those examples
    with torch.no_grad():
        rows = model.net[:2](data[0][places])
    torch.testing.assert_close(model.fields_[0].units, model.fields_[0].metric(rows))


def test_what_was_learned_of_all_examples_by_weighted_centres(condensed, data):
    for field in condensed.fields_:
        assert 35 <= len(field.units) <= 40
        assert float(field.masses.sum()) == 250  # all but those kept apart
        assert float(field.masses.max()) > 1
        assert torch.equal(field.labels, data[1][field.examples])
    assert float(condensed.weights_.sum()) == pytest.approx(1)


def test_weighted_centres_say_nearly_what_all_examples_say(net, data, fresh):
    """Half as many centres, against all; and as many as examples are the examples."""
    whole = fitted(net, data, max_centers=1000)
    assert [len(field.units) for field in whole.fields_] == [250, 250]
    scores = whole.uncertainty(fresh)
    half = fitted(net, data, max_centers=125, reduction="coreset").uncertainty(fresh)
    few = fitted(net, data, max_centers=125).uncertainty(fresh)
    assert float((half - scores).abs().mean()) < 0.2
    assert float((half - scores).abs().mean()) < float((few - scores).abs().mean())
    same = fitted(net, data, max_centers=250, reduction="coreset")
    torch.testing.assert_close(same.uncertainty(fresh), scores)


def test_a_coreset_stands_for_no_more_examples_than_are_held(net, data, monkeypatch):
    monkeypatch.setattr("qipf.layered.model.MOST_EXAMPLES", 90)
    model = fitted(net, data, reduction="coreset")
    assert [float(field.masses.sum()) for field in model.fields_] == [90.0, 90.0]
    # more centres than that were asked for: so many examples are held
    model = fitted(net, data, reduction="coreset", max_centers=120)
    assert [float(field.masses.sum()) for field in model.fields_] == [120.0, 120.0]


def test_centres_times_classes_are_bounded(net, data, monkeypatch):
    monkeypatch.setattr("qipf.layered.gathering.LARGEST_TABLE", 3 * 25)
    assert [len(field.units) for field in fitted(net, data).fields_] == [25, 25]


def test_a_layer_that_counts_for_little_is_left_out_unless_it_was_named():
    """What the last layer reads tells two classes apart, and nothing of the third."""
    net, data = layered_network(), layered_data()
    with torch.no_grad():
        net[2].weight[0] = torch.tensor([0.0, 0, 0, 1, 0, 0])
        net[2].weight[1:] *= 1e-3
    auto = fitted(net, data)
    named = fitted(net, data, layers=["1", "3"])
    assert named.layers_ == (Tap("1"), Tap("3"))
    assert float(named.weights_[2]) < 0.05
    assert auto.layers_ == (Tap("2", "input"),)
    assert auto.opinions(data[0]).shape == (300, 2, 3)
    assert float(auto.weights_.sum()) == pytest.approx(1)


def test_the_density_is_that_of_the_layers(model, fresh):
    heights = model.log_density(fresh)
    assert heights.shape == (30, 2)
    assert (heights <= 1e-5).all()
    assert (model.log_density(100 - 50 * fresh).mean(0) < heights.mean(0)).all()


@pytest.mark.parametrize("size", [1, 7, 300])
def test_numbers_do_not_depend_on_the_batch(model, data, size):
    whole = model.uncertainty(data[0])
    parts = torch.cat([model.uncertainty(part) for part in data[0].split(size)])
    torch.testing.assert_close(parts, whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("size", [1, 13, 300])
def test_nor_on_how_the_loader_cuts(model, data, fresh, size):
    net = layered_network()
    other = LayeredQIPF(net, **FEW).fit(batches(data, size))
    assert torch.equal(other.fields_[0].examples, model.fields_[0].examples)
    torch.testing.assert_close(
        other.uncertainty(fresh), model.uncertainty(fresh), atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize("reduction", ["random", "coreset"])
def test_the_seed_decides(net, data, fresh, reduction):
    one, two, other = (
        fitted(net, data, random_state=seed, reduction=reduction) for seed in (3, 3, 4)
    )
    assert torch.equal(one.uncertainty(fresh), two.uncertainty(fresh))
    assert torch.equal(one.weights_, two.weights_)
    for mine, same in zip(one.fields_, two.fields_, strict=True):
        assert torch.equal(mine.units, same.units)
        assert torch.equal(mine.examples, same.examples)
    assert not torch.equal(other.uncertainty(fresh), one.uncertainty(fresh))


def test_named_layers_are_read_at_their_outputs(net, data, fresh):
    model = fitted(net, data, layers=["1", "3"])
    assert model.layers_ == (Tap("1"), Tap("3"))
    auto = fitted(net, data)
    torch.testing.assert_close(model.uncertainty(fresh), auto.uncertainty(fresh))


def test_a_data_loader_and_labels_that_are_a_list(net, data, model, fresh):
    loader = DataLoader(TensorDataset(*data), batch_size=64)
    torch.testing.assert_close(
        LayeredQIPF(net, **FEW).fit(loader).uncertainty(fresh), model.uncertainty(fresh)
    )
    listed = [(inputs, labels.tolist()) for inputs, labels in batches(data)]
    assert torch.equal(
        LayeredQIPF(net, **FEW).fit(listed).fields_[0].examples, model.fields_[0].examples
    )


def test_an_empty_batch(model, fresh):
    empty = model(fresh[:0])
    assert [tuple(part.shape) for part in (empty.logits, empty.labels, empty.uncertainty)] == [
        (0, 3), (0,), (0,),
    ]  # fmt: skip
    assert model.log_density(fresh[:0]).shape == (0, 2)
    assert model.opinions(fresh[:0]).shape == (0, 3, 3)


def test_far_inputs_have_finite_scores(model, fresh):
    for power in (3, 10, 30):
        assert torch.isfinite(model.uncertainty(fresh * 10.0**power)).all()


def conv_net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Dropout(0.5),
        nn.Conv2d(4, 6, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(6 * 4 * 4, 3),
    )  # fmt: skip


def blobs(count=200):
    """Images with a bright corner, which tells the class, in noise."""
    random = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (count,), generator=random)
    images = torch.rand(count, 1, 8, 8, generator=random)
    for corner, (row, column) in enumerate(((0, 0), (0, 4), (4, 0))):
        images[labels == corner, 0, row : row + 4, column : column + 4] += 0.7
    return images, labels


def test_the_network_is_left_as_it_was():
    net, images = conv_net().train(), blobs()
    net[3].eval()
    net[0].weight.grad = torch.ones_like(net[0].weight)
    state = copy.deepcopy(net.state_dict())
    model = fitted(net, images)
    model(images[0]), model.explain(images[0][:2])
    assert [module.training for module in net] == [True, True, True, False] + [True] * 4
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in net.modules())
    assert torch.equal(net[0].weight.grad, torch.ones_like(net[0].weight))
    assert all(parameter.requires_grad for parameter in net.parameters())
    assert not model(images[0]).uncertainty.requires_grad


def test_dropout_and_batch_norm_are_evaluated():
    net, images = conv_net().train(), blobs()
    model = fitted(net, images)
    assert torch.equal(model.uncertainty(images[0][:9]), model.uncertainty(images[0][:9]))
    assert [tap.layer for tap in model.layers_] == ["4", "7"]


def test_a_network_of_tokens():
    from tests.layered.test_taps import Tokens

    torch.manual_seed(0)
    net, random = Tokens(), torch.Generator().manual_seed(0)
    labels = torch.randint(3, (200,), generator=random)
    tokens = torch.randn(200, 6, 5, generator=random) + torch.eye(5)[labels][:, None]
    model = fitted(net, (tokens, labels))
    assert model.layers_[-1] == Tap("head", "input")
    assert model.uncertainty(tokens).shape == (200,)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="moves to an accelerator")
def test_the_fields_follow_the_network(net, data, fresh, model):
    moved = fitted(net, data)
    net.cuda()
    found = moved(fresh).uncertainty
    assert found.device.type == "cuda"
    torch.testing.assert_close(found.cpu(), model.uncertainty(fresh), atol=1e-4, rtol=1e-4)


def test_fields_are_moved_once_and_together(net, data, fresh, monkeypatch):
    """What moving does is seen without a second device: every field is asked to move."""
    model = fitted(net, data)
    asked = []
    monkeypatch.setattr(
        "qipf.layered.class_field.ClassField.to", lambda self, device: asked.append(device) or self
    )
    model._place(torch.device("meta"))
    assert asked == [torch.device("meta")] * 2
    model._place(torch.device("cpu"))
    assert len(asked) == 2


# ---------------------------------------------------------------------- fallbacks

ALONE = "The layers are not used: {}. The uncertainty is that of the softmax alone."


def assert_alone(model, inputs):
    prediction = model(inputs)
    softmax = prediction.logits.double().softmax(1)
    torch.testing.assert_close(prediction.uncertainty, gap(softmax, prediction.labels))
    assert (model.layers_, model.weights_.tolist()) == ((), [1.0])
    assert model.log_density(inputs).shape == (len(inputs), 0)
    told = model.explain(inputs)[0]
    assert told.opinions[0].doubt == 1
    assert (told.doubting, told.nearest) == (None, ())


def said(warned):
    assert {w.category for w in warned} == {QIPFWarning}
    assert {w.filename for w in warned} == {__file__}  # where fit was called
    return [str(w.message) for w in warned]


def test_few_examples(net, data, fresh):
    with pytest.warns(QIPFWarning) as warned:
        model = LayeredQIPF(net).fit([tuple(part[:60] for part in data)])
    reason = f"fewer than {FEWEST} examples were left to weigh the layers by"
    assert said(warned) == [ALONE.format(reason)]
    assert_alone(model, fresh)


def test_no_errors_even_when_disturbed(data, fresh):
    """A network that answers always the same, on data where that is right."""
    net = layered_network()
    with torch.no_grad():
        net[4].bias[0] = 1000.0
    with pytest.warns(QIPFWarning) as warned:
        model = LayeredQIPF(net, **FEW).fit([(data[0], torch.zeros(300, dtype=torch.long))])
    assert said(warned) == [
        "There are no training examples of classes 1, 2, so the layers leave them to the softmax.",
        ALONE.format("the network makes no errors to learn from, even on disturbed inputs"),
    ]
    assert_alone(model, fresh)


def test_a_class_that_is_missing(net, data, fresh):
    kept = data[1] != 2
    with pytest.warns(QIPFWarning) as warned:
        model = LayeredQIPF(net, **FEW).fit([(data[0][kept], data[1][kept])])
    assert said(warned) == [
        "There are no training examples of class 2, so the layers leave it to the softmax."
    ]
    opinions = model.opinions(fresh)
    assert model.layers_
    for layer in range(1, 1 + len(model.layers_)):
        torch.testing.assert_close(opinions[:, layer, 2], opinions[:, 0, 2])
    torch.testing.assert_close(opinions.sum(2), torch.ones(opinions.shape[:2]).double())
    assert torch.isfinite(model.uncertainty(fresh)).all()
    rivals = [told for told in model.explain(fresh) if told.rival == 2]
    assert all(told.nearest_rival == () for told in rivals)


def test_whole_numbers(data):
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(9, 6)
            self.net = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))

        def forward(self, tokens):
            return self.net(self.table(tokens).mean(1))

    tokens = torch.randint(9, (300, 4), generator=torch.Generator().manual_seed(0))
    with pytest.warns(QIPFWarning) as warned:
        model = LayeredQIPF(Net(), **FEW).fit([(tokens, tokens[:, 0] % 3)])
    assert said(warned)[0] == (
        "The inputs are torch.int64, which cannot be disturbed, so the weights rest on clean "
        "training data alone, on which a network flatters itself. Pass floating point inputs if "
        "you can."
    )
    assert model.uncertainty(tokens).shape == (300,)


def test_a_layer_that_says_nothing(data, fresh):
    net = layered_network()
    with torch.no_grad():
        net[2].weight.zero_()
    with pytest.warns(QIPFWarning) as warned:
        model = LayeredQIPF(net, **FEW).fit(batches(data))
    assert said(warned)[0] == (
        "4 (input) gives every training input the same numbers and is left out."
    )
    assert model.layers_ == (Tap("2", "input"),)
    assert model.log_density(fresh).shape == (30, 1)


def test_classes_of_a_single_example_each():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 30))
    inputs = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    with pytest.warns(QIPFWarning):
        model = LayeredQIPF(net).fit([(inputs, torch.arange(30))])
    assert torch.isfinite(model.uncertainty(inputs)).all()
    assert torch.isfinite(model.log_density(inputs)).all()


# ---------------------------------------------------------------------- refusals


def test_unfitted(net, fresh, tmp_path):
    model = LayeredQIPF(net)
    message = "This LayeredQIPF is not fitted yet. Call fit(train_loader) first."
    for use in (model, model.uncertainty, model.log_density, model.opinions, model.explain):
        with pytest.raises(QIPFNotFittedError, match=f"^{re.escape(message)}$"):
            use(fresh)
    with pytest.raises(QIPFNotFittedError, match=f"^{re.escape(message)}$"):
        model.export(fresh)


def test_a_fit_that_fails_leaves_the_old_one(net, data, fresh):
    model = fitted(net, data)
    before = model.uncertainty(fresh)
    with pytest.raises(QIPFInputError):
        model.fit([(data[0], data[1] + 5)])
    assert torch.equal(model.uncertainty(fresh), before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_centers": 0}, "max_centers must be an integer of at least 1, got 0."),
        ({"max_dimension": 2.5}, "max_dimension must be an integer of at least 1, got 2.5."),
        ({"max_tuning": True}, "max_tuning must be an integer of at least 1, got True."),
        ({"random_state": None}, "random_state must be an integer from 0 to 4294967294, got None."),
        ({"random_state": -1}, "random_state must be an integer from 0 to 4294967294, got -1."),
        ({"reduction": "kmeans"}, "Unknown reduction 'kmeans'. Known: coreset, random."),
        (
            {"reduction": "coresets"},
            "Unknown reduction 'coresets'. Did you mean 'coreset'? Known: coreset, random.",
        ),
        ({"reduction": None}, "Unknown reduction None. Known: coreset, random."),
        ({"reduction": np.zeros(2)}, "Unknown reduction array([0., 0.]). Known: coreset, random."),
        ({"layers": "last"}, "layers must be 'auto' or a list of layers' names, got 'last'."),
        ({"layers": []}, "layers must be 'auto' or a list of layers' names, got []."),
        ({"layers": ["9"]}, "The network has no layer '9'. Close: 0, 1, 2, 3, 4."),
    ],
)
def test_parameters_that_are_none(net, options, message):
    with pytest.raises(QIPFInputError, match=f"^{re.escape(message)}$"):
        LayeredQIPF(net, **options)


def test_numpys_whole_numbers_are_whole_numbers(net):
    model = LayeredQIPF(net, max_centers=np.int64(5), random_state=np.int32(3))
    assert (type(model.max_centers), type(model.random_state)) == (int, int)


def test_what_is_no_network():
    with pytest.raises(QIPFInputError, match=r"^net must be a torch\.nn\.Module, got str\.$"):
        LayeredQIPF("net")


@pytest.mark.parametrize(
    ("inputs", "came"),
    [
        (np.zeros((2, 4)), "ndarray"),
        (torch.zeros(4), "shape (4,)"),
        (None, "NoneType"),
    ],
)
def test_inputs_that_are_none(model, inputs, came):
    message = f"inputs must be a tensor with one row an example, (n, ...), got {came}."
    with pytest.raises(QIPFInputError, match=f"^{re.escape(message)}$"):
        model(inputs)


def test_inputs_that_are_no_numbers(model, fresh):
    spoilt = fresh.clone()
    spoilt[[3, 8]] = torch.tensor([[torch.nan], [torch.inf]])
    message = (
        "The network's output for these inputs has 2 rows with NaN or inf (rows 3, 8). Drop or "
        "repair them first."
    )
    with pytest.raises(QIPFInputError, match=f"^{re.escape(message)}$"):
        model(spoilt)


def test_a_network_that_ends_in_a_softmax(net, data):
    message = (
        "The network ends in softmax: its output is activated, but the field needs raw logits. "
        "Remove the activation, or name the layer before it: qipf.wrap(net, layer=...)."
    )
    with pytest.raises(QIPFInputError, match=f"^{re.escape(message)}$"):
        fitted(nn.Sequential(net, nn.Softmax(1)), data)


def test_a_network_that_was_changed_since(net, data, fresh):
    model = fitted(net, data)
    net[2], net[4] = nn.Linear(6, 7), nn.Linear(7, 3)
    message = (
        "4 (input) gives 7 numbers and the network 3 logits; its field was fitted with 3 and 3. "
        "Fit it again."
    )
    with pytest.raises(QIPFInputError, match=f"^{re.escape(message)}$"):
        model(fresh)


def test_the_names_are_public():
    assert qipf.LayeredQIPF is LayeredQIPF
    assert {"LayeredQIPF", "LayeredPrediction", "Explanation"} <= set(qipf.__all__)


def test_autocast_does_not_reach_the_fields(model, fresh):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = model.opinions(fresh)
        logits, rows = in_parts(model.net, fresh, model.layers_)
    expected = opinions_of(logits, rows, model._fields())[0]
    assert torch.equal(found, expected)


def test_fitted_under_autocast_the_fields_have_all_their_digits(net, data, fresh):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model = LayeredQIPF(net, **FEW).fit([data])
    assert all(field.units.dtype == torch.float32 for field in model.fields_)
    assert torch.isfinite(model.uncertainty(fresh)).all()


def test_threads_wait_for_each_other(model, fresh):
    model.net.train()
    expected = model.uncertainty(fresh)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: model.uncertainty(fresh), range(40)))
    assert all(torch.equal(one, expected) for one in found)
    assert model.net.training
    model.net.eval()


def test_weights_that_changed_since_are_not_saved(net, data, tmp_path):
    model = LayeredQIPF(net, **FEW).fit([data])
    with torch.no_grad():
        net[0].weight.add_(1)
    with pytest.raises(QIPFInputError) as refused:
        qipf.save(model, tmp_path / "model.qipf")
    assert str(refused.value) == (
        "The network's weights have changed since fit, so what was fitted does not belong to them. "
        "Fit again, or load the weights it was fitted with."
    )
    assert not list(tmp_path.iterdir())
