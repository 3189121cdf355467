"""When LayeredQIPF leaves a layer, a class or all of it to the softmax, and says so."""

import pytest
import torch
from torch import nn

from qipf import LayeredQIPF, QIPFScoreWarning, QIPFWarning
from qipf.layered.mixture import log_odds_of_error
from qipf.layered.tuning import FEWEST
from qipf.network.features import LayerSite
from tests.layered.conftest import FEW, batches
from tests.stored.write_files import layered_network


def assert_by_softmax(model, inputs):
    """The uncertainty rises with the log-odds of the softmax, whatever the layers say."""
    prediction = model(inputs)
    softmax = prediction.logits.double().softmax(1)
    assert model.weights_.tolist() == [1.0] + [0.0] * len(model.layers_)
    torch.testing.assert_close(prediction.probabilities, softmax)
    odds = log_odds_of_error(softmax, prediction.predicted)
    error = model.error_model_
    assert error.near.slopes[2:].tolist() == [0.0] * len(model.layers_)
    gate = torch.sigmoid(error.gate(-prediction.logits.double().logsumexp(1, keepdim=True)))
    near = error.near.constant + error.near.slopes[:2].sum() * odds
    far = error.far.constant + error.far.slopes[0] * odds
    torch.testing.assert_close(prediction.uncertainty, (1 - gate) * near + gate * far)
    assert model.explain(inputs)[0].posteriors[0].share == 1


def assert_without_layers(model, inputs):
    assert_by_softmax(model, inputs)
    assert model.layers_ == ()
    assert model.log_density(inputs).shape == (len(inputs), 0)
    told = model.explain(inputs)[0]
    assert (told.layer, told.nearest) == (None, ())
    names = [name for name, _ in told.novelty_terms]
    assert names == ["constant", "energy", "residual", "distance", "mixture"]
    assert sum(value for _, value in told.novelty_terms) == pytest.approx(told.novelty)
    assert model.facts()["novelty"].count("energy") <= 1


def said(warned):
    # labels of data made for a test agree with few predictions; that is tested elsewhere
    warned = [w for w in warned if w.category is not QIPFScoreWarning]
    assert {w.category for w in warned} == {QIPFWarning}
    assert {w.filename for w in warned} == {__file__}  # where fit was called
    return [str(w.message) for w in warned]


def test_few_examples(net, data, fresh):
    with pytest.warns(QIPFWarning) as warned:
        model = LayeredQIPF(net).fit([tuple(part[:60] for part in data)])
    assert said(warned) == [
        f"The layers are used for the novelty alone: fewer than {FEWEST} examples were left to "
        "weight them. The uncertainty is that of the softmax, the novelty is minus the log density "
        "of 4 (input)."
    ]
    assert_by_softmax(model, fresh)
    assert model.layers_ == (LayerSite("4", "input"),)
    density = model.log_density(fresh)[:, 0]
    torch.testing.assert_close(model.novelty(fresh).to(density), -density)


def test_no_errors_even_when_perturbed(data, fresh):
    """A network that answers always the same, on data where that is right."""
    net = layered_network()
    with torch.no_grad():
        net[4].bias[0] = 1000.0
    with pytest.warns(QIPFWarning) as warned:
        model = LayeredQIPF(net, **FEW).fit([(data[0], torch.zeros(300, dtype=torch.long))])
    assert said(warned) == [
        "There are no training examples of class 1, class 2: the layers use the softmax's "
        "probability.",
        "The layers are used for the novelty alone: the network makes no errors to learn from, "
        "even on perturbed inputs. The uncertainty is that of the softmax.",
    ]
    assert model.layers_
    assert_by_softmax(model, fresh)
    usual, far = model.novelty(fresh).mean(), model.novelty(20 + fresh).mean()
    assert far > usual + 1  # the energy alone, nearly constant here, would not tell them apart


def test_a_class_that_is_missing(net, data, fresh):
    kept = data[1] != 2
    with pytest.warns(QIPFWarning) as warned:
        model = LayeredQIPF(net, **FEW).fit([(data[0][kept], data[1][kept])])
    assert ["no training examples of class 2:" in text for text in said(warned)] == [True]
    posteriors = model.posteriors(fresh)
    assert model.layers_
    for layer in range(1, 1 + len(model.layers_)):
        torch.testing.assert_close(posteriors[:, layer, 2], posteriors[:, 0, 2])
    torch.testing.assert_close(posteriors.sum(2), torch.ones(posteriors.shape[:2]).double())
    assert torch.isfinite(model.uncertainty(fresh)).all()
    rivals = [told for told in model.explain(fresh) if told.rival == 2]
    assert all(told.nearest_rival == () for told in rivals)


def test_whole_numbers(data):
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(36, 6), nn.ReLU(), nn.Linear(6, 3))

        def forward(self, tokens):
            return self.net(nn.functional.one_hot(tokens, 9).flatten(1).float())

    tokens = torch.randint(9, (300, 4), generator=torch.Generator().manual_seed(0))
    with pytest.warns(QIPFWarning) as warned:
        model = LayeredQIPF(Net(), **FEW).fit([(tokens, tokens[:, 0] % 3)])
    assert "torch.int64 and cannot be perturbed" in said(warned)[0]
    assert model.uncertainty(tokens).shape == (300,)


def test_a_layer_that_says_nothing(data, fresh):
    net = layered_network()
    with torch.no_grad():
        net[2].weight.zero_()
    with pytest.warns(QIPFWarning) as warned:
        model = LayeredQIPF(net, **FEW).fit(batches(data))
    assert said(warned)[0].startswith("4 (input) gives the same numbers")
    assert model.layers_ == (LayerSite("2", "input"),)
    assert model.log_density(fresh).shape == (30, 1)


def test_no_layer_says_anything(data, fresh):
    net = layered_network()
    with torch.no_grad():
        net[0].weight.zero_()
    with pytest.warns(QIPFWarning, match="gives the same numbers"):
        model = LayeredQIPF(net, **FEW).fit(batches(data))
    assert_without_layers(model, fresh)


def test_classes_of_a_single_example_each():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 30))
    inputs = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    with pytest.warns(QIPFWarning):
        model = LayeredQIPF(net).fit([(inputs, torch.arange(30))])
    assert torch.isfinite(model.uncertainty(inputs)).all()
    assert torch.isfinite(model.log_density(inputs)).all()
