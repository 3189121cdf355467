"""Inputs, parameters and networks that LayeredQIPF rejects."""

import numpy as np
import pytest
import torch
from torch import nn

import qipf
from qipf import LayeredQIPF, QIPFInputError, QIPFNotFittedError
from tests.layered.conftest import FEW, batches, fitted


def test_its_own_methods_need_a_fitted_model(net, fresh):
    model = LayeredQIPF(net)
    for use in (model.log_density, model.posteriors, model.explain, model.export):
        with pytest.raises(QIPFNotFittedError, match="not fitted yet"):
            use(fresh)


def test_a_fit_that_fails_leaves_the_old_one(net, data, fresh):
    model = fitted(net, data)
    before = model.uncertainty(fresh)
    with pytest.raises(QIPFInputError):
        model.fit([(data[0], data[1] + 5)])
    assert torch.equal(model.uncertainty(fresh), before)


@pytest.mark.parametrize(
    ("options", "phrase"),
    [
        ({"max_dimension": 2.5}, "max_dimension must be an integer"),
        ({"max_tuning": True}, "max_tuning must be an integer"),
        ({"max_centers": 2**63}, f"max_centers must be less than {2**63}"),
        ({"random_state": None}, "random_state must be an integer"),
        ({"reduction": "coresets"}, "Did you mean 'coreset'"),
        ({"reduction": None}, "Unknown reduction None"),
        ({"reduction": np.zeros(2)}, "Unknown reduction array"),
        ({"effort": "faster"}, "Did you mean 'fast'"),
        ({"effort": None}, "Unknown effort None"),
        ({"layers": "last"}, "layers must be 'auto' or a list"),
        ({"layers": []}, "layers must be 'auto' or a list"),
    ],
)
def test_invalid_parameters_are_rejected(net, data, options, phrase):
    with pytest.raises(QIPFInputError, match=phrase):
        LayeredQIPF(net, **options).fit(batches(data))


def test_a_label_that_is_no_class_is_named_by_its_batch(net, data):
    labels = data[1].clone()
    labels[151] = 7
    with pytest.raises(QIPFInputError, match=r"labels of batch 3 .* got 7 in 1 of 50 rows .*row 1"):
        LayeredQIPF(net).fit(list(zip(data[0].split(50), labels.split(50), strict=True)))


def test_regression_is_told_what_works(net, data):
    expected = (
        "labels of batch 0 must hold integers, the index of each true class. qipf scores "
        "classifiers, not regression. What works: QIPF().fit(X, wrong=errors > tolerance) on the "
        "outputs of a layer, with the same for calibrate; or a network that predicts classes, "
        "such as intervals of the target."
    )
    for given in (net, nn.Linear(4, 1)):
        with pytest.raises(QIPFInputError) as error:
            LayeredQIPF(given).fit([(data[0], data[0][:, 0])])
        assert str(error.value) == expected


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ((None,), "NoneType"), (("abc",), "str"), ((), "nothing"), (([[1.0]],), "float"),
        ((torch.zeros(4),), r"shape \(4,\)"),
    ],
)  # fmt: skip
def test_inputs_of_other_types_are_named(model, given, found):
    expected = rf"one row per example, \(n, \.\.\.\), got {found}\.$"
    with pytest.raises(QIPFInputError, match=expected):
        model(*given)


def test_sparse_inputs_are_refused_with_a_cure(net, data):
    with pytest.raises(QIPFInputError, match=r"Batch 0 has a sparse tensor .*to_dense\(\)"):
        LayeredQIPF(net).fit([(data[0].to_sparse(), data[1])])


def test_numpy_integers_are_integers(net, data, tmp_path):
    fitted(net, data, max_centers=np.int64(5), random_state=np.int32(3)).save(tmp_path / "m.qipf")
    loaded = qipf.load(tmp_path / "m.qipf", net)
    assert (loaded.max_centers, loaded.random_state) == (5, 3)


@pytest.mark.parametrize(
    ("inputs", "given"),
    [(np.zeros((2, 4)), "ndarray"), (torch.zeros(4), r"shape \(4,\)"), (None, "NoneType")],
)
def test_inputs_must_be_a_tensor_of_rows(model, inputs, given):
    with pytest.raises(QIPFInputError, match="tensor"):
        model(inputs)


def test_inputs_with_nan_or_inf_are_rejected(model, fresh):
    corrupted = fresh.clone()
    corrupted[[3, 8]] = torch.tensor([[torch.nan], [torch.inf]])
    with pytest.raises(QIPFInputError, match=r"NaN or inf \(rows 3, 8\)"):
        model(corrupted)


def test_a_network_that_ends_in_a_softmax_is_rejected(net, data):
    with pytest.raises(QIPFInputError, match="The network ends in softmax"):
        fitted(nn.Sequential(net, nn.Softmax(1)), data)


def test_a_network_whose_layers_changed_is_rejected(net, data, fresh):
    model = fitted(net, data)
    net[2], net[4] = nn.Linear(6, 7), nn.Linear(7, 3)
    with pytest.raises(QIPFInputError, match="weights or buffers have changed since fit"):
        model(fresh)
    model.fitted_with = None  # as after qipf.load(path, net, check=False)
    with pytest.raises(QIPFInputError, match=r"4 \(input\) gives 7 numbers; .* or fit again"):
        model(fresh)


@pytest.mark.slow
@pytest.mark.parametrize("loaded", [False, True])
def test_a_model_whose_weights_changed_is_not_saved(net, data, tmp_path, loaded):
    model = LayeredQIPF(net, **FEW).fit([data])
    if loaded:
        qipf.save(model, tmp_path / "before.qipf")
        model = qipf.load(tmp_path / "before.qipf", net)
    with torch.no_grad():
        net[0].weight.add_(1)
    with pytest.raises(QIPFInputError, match="weights or buffers have changed since fit"):
        qipf.save(model, tmp_path / "model.qipf")
    assert not (tmp_path / "model.qipf").exists()


class Shared(nn.Module):
    """A network whose second input is the same for all examples."""

    def __init__(self):
        super().__init__()
        self.inner, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, inputs, scale):
        return self.last(torch.relu(self.inner(inputs @ scale[:4])))


@pytest.mark.parametrize("rows", [4, 32])
def test_inputs_that_all_examples_share(rows):
    random = torch.Generator().manual_seed(0)
    inputs, scale = torch.randn(200, 4, generator=random), torch.eye(rows)[:, :4]
    labels = inputs[:, :3].argmax(1)
    batches = [
        {"inputs": inputs[i : i + 7], "scale": scale, "labels": labels[i : i + 7]}
        for i in range(0, 200, 7)
    ]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LayeredQIPF(Shared(), effort="fast").fit(batches)
    found = model(inputs=inputs[:5], scale=scale)
    assert torch.isfinite(found.uncertainty).all()
    assert len(model.novelty(inputs[:5], scale)) == 5


def test_images_of_two_sizes_are_refused():
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3),
    )  # fmt: skip
    labels = torch.arange(64) % 3
    loader = [(torch.rand(64, 1, side, side), labels) for side in (6, 7)]
    with pytest.raises(QIPFInputError, match=r"gives 392 numbers .* 288 for those before.*Resize"):
        LayeredQIPF(net).fit(loader)


def test_a_copy_that_gives_nan_is_named():
    class Root(nn.Module):
        def forward(self, values):
            return torch.sqrt(1 - values.square().sum(1, keepdim=True)) + values

    net = nn.Sequential(Root(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad():  # of the largest of three numbers
        net[1].weight.copy_(torch.eye(8, 4))
        net[3].weight.copy_(torch.eye(3, 8))
    inputs = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    inputs = 0.99 * nn.functional.normalize(inputs, dim=1)
    with pytest.raises(QIPFInputError, match=r"A copy of example \d+ of the loader \(noise\)"):
        LayeredQIPF(net).fit([(inputs, inputs[:, :3].argmax(1))])


def test_inputs_of_one_number_for_each_example():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, inputs, factor):
            return self.last(torch.relu(self.inner(inputs * factor[:, None])))

    random = torch.Generator().manual_seed(0)
    inputs, factor = torch.randn(200, 4, generator=random), torch.rand(200, generator=random)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LayeredQIPF(Scaled(), effort="fast")
    model.fit([((inputs, factor), inputs[:, :3].argmax(1))])
    assert torch.isfinite(model.novelty(inputs[:5], factor[:5])).all()
