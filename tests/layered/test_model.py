"""LayeredQIPF: one pass, the network's own prediction, and the network left as it was."""

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import qipf
from qipf import LayeredQIPF, QIPFInputError
from qipf.layered.mixture import evidence_of, log_odds_of_error, posteriors_of
from qipf.network.features import LayerSite, run_in_batches
from tests.layered.conftest import FEW, batches, fitted
from tests.stored.write_files import layered_data, layered_network


def test_a_prediction_is_the_networks_own_beside_the_mixtures_doubt(model, fresh):
    prediction = model(fresh)
    with torch.no_grad():
        torch.testing.assert_close(prediction.logits, model.net(fresh))
    assert torch.equal(prediction.predicted, prediction.logits.argmax(1))
    mixture = torch.einsum("nlc,l->nc", model.posteriors(fresh), model.weights_)
    torch.testing.assert_close(prediction.probabilities, mixture)
    torch.testing.assert_close(prediction.probabilities.sum(1), torch.ones(30).double())
    densities = model.log_density(fresh)
    posteriors = model.posteriors(fresh)
    _, rows = run_in_batches(model.net, fresh, model.lengths_.sites)
    lengths = model.lengths_(prediction.logits, rows)
    scored = evidence_of(prediction.logits, posteriors, densities, model.weights_)[1]
    scored = scored.beside(lengths)
    odds = log_odds_of_error(mixture, prediction.predicted)
    torch.testing.assert_close(scored.odds[:, 0], odds)
    torch.testing.assert_close(prediction.uncertainty, model.error_model_(scored))
    torch.testing.assert_close(prediction.p_error, torch.sigmoid(prediction.uncertainty))
    energy = -prediction.logits.double().logsumexp(1, keepdim=True)
    torch.testing.assert_close(scored.unusual, torch.cat([energy, -densities, lengths], 1))
    novelty = model.novelty_model_(scored)  # its lengths are computed in another order
    torch.testing.assert_close(prediction.novelty, novelty, rtol=1e-5, atol=1e-5)
    assert torch.equal(model.novelty(fresh), prediction.novelty)
    assert torch.equal(model.uncertainty(fresh), prediction.uncertainty)


def test_what_was_learned(model, data):
    assert model.layers_ == (LayerSite("2", "input"), LayerSite("4", "input"))
    assert model.weights_.shape == (3,)
    assert float(model.weights_.sum()) == pytest.approx(1)
    places = model.fields_[0].examples
    assert len(places) == len(places.unique()) == 40
    for field in model.fields_:
        assert torch.equal(field.examples, places)
        assert torch.equal(field.labels, data[1][places])
        assert field.counts.tolist() == [1.0] * 40
    # the centres are what those layers read of those examples
    with torch.no_grad():
        rows = model.net[:2](data[0][places])
    torch.testing.assert_close(model.fields_[0].embeddings, model.fields_[0].metric(rows))


def test_what_was_learned_of_all_examples_by_weighted_centres(condensed, data):
    for field in condensed.fields_:
        assert 35 <= len(field.embeddings) <= 40
        assert float(field.counts.sum()) == 250  # all but those kept apart
        assert float(field.counts.max()) > 1
        assert torch.equal(field.labels, data[1][field.examples])
    assert float(condensed.weights_.sum()) == pytest.approx(1)
    assert condensed._training.total == len(data[0]) == 300


@pytest.mark.slow
def test_weighted_centres_say_nearly_what_all_examples_say(net, data, fresh):
    """Half as many centres, against all; and as many as examples are the examples."""
    whole = fitted(net, data, max_centers=1000)
    assert [len(field.embeddings) for field in whole.fields_] == [250, 250]
    scores = whole.uncertainty(fresh)
    half = fitted(net, data, max_centers=125, reduction="coreset").uncertainty(fresh)
    few = fitted(net, data, max_centers=125).uncertainty(fresh)
    assert float((half - scores).abs().mean()) < 0.2
    assert float((half - scores).abs().mean()) < float((few - scores).abs().mean())
    same = fitted(net, data, max_centers=250, reduction="coreset")
    torch.testing.assert_close(same.uncertainty(fresh), scores)


@pytest.mark.slow
def test_a_coreset_stands_for_no_more_examples_than_are_held(net, data, monkeypatch):
    monkeypatch.setattr("qipf.layered.base.MOST_EXAMPLES", 90)
    model = fitted(net, data, reduction="coreset")
    assert [float(field.counts.sum()) for field in model.fields_] == [90.0, 90.0]
    # more centres than that were asked for: so many examples are held
    model = fitted(net, data, reduction="coreset", max_centers=120)
    assert [float(field.counts.sum()) for field in model.fields_] == [120.0, 120.0]


@pytest.mark.slow
def test_a_layer_that_counts_for_little_is_left_out_unless_it_was_named(monkeypatch):
    """What the last layer reads tells two classes apart, and nothing of the third."""
    net, data = layered_network(), layered_data()
    with torch.no_grad():
        net[2].weight[0] = torch.tensor([0.0, 0, 0, 1, 0, 0])
        net[2].weight[1:] *= 1e-3
    heard = fitted(net, data)  # in the uncertainty, though hardly in the mixture
    monkeypatch.setattr("qipf.layered.fitting.LEAST", 0.4)
    auto = fitted(net, data)
    named = fitted(net, data, layers=["1", "3"])
    assert named.layers_ == (LayerSite("1"), LayerSite("3"))
    assert float(named.weights_[2]) < 0.05 < float(named.error_model_.near.slopes[3])
    assert heard.layers_ == (LayerSite("2", "input"), LayerSite("4", "input"))
    assert auto.layers_ == (LayerSite("2", "input"),)
    assert auto.posteriors(data[0]).shape == (300, 2, 3)
    assert float(auto.weights_.sum()) == pytest.approx(1)


def test_the_density_is_that_of_the_layers(model, fresh):
    heights = model.log_density(fresh)
    assert heights.shape == (30, 2)
    assert (heights <= 1e-5).all()
    assert (model.log_density(100 - 50 * fresh).mean(0) < heights.mean(0)).all()


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 7, 300])
def test_numbers_do_not_depend_on_the_batch(model, data, size):
    whole = model.uncertainty(data[0])
    parts = torch.cat([model.uncertainty(part) for part in data[0].split(size)])
    torch.testing.assert_close(parts, whole, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("size", [13, 300])
def test_nor_on_how_the_loader_cuts(model, data, fresh, size):
    net = layered_network()
    other = LayeredQIPF(net, **FEW).fit(batches(data, size))
    assert torch.equal(other.fields_[0].examples, model.fields_[0].examples)
    torch.testing.assert_close(
        other.uncertainty(fresh), model.uncertainty(fresh), atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize(
    "reduction", ["random", *(pytest.param(r, marks=pytest.mark.slow) for r in ("coreset", "auto"))]
)
def test_the_seed_decides(net, data, fresh, reduction):
    one, two, other = (
        fitted(net, data, random_state=seed, reduction=reduction) for seed in (3, 3, 4)
    )
    assert torch.equal(one.uncertainty(fresh), two.uncertainty(fresh))
    assert torch.equal(one.weights_, two.weights_)
    for mine, same in zip(one.fields_, two.fields_, strict=True):
        assert torch.equal(mine.embeddings, same.embeddings)
        assert torch.equal(mine.examples, same.examples)
    assert not torch.equal(other.uncertainty(fresh), one.uncertainty(fresh))


@pytest.mark.slow
def test_named_layers_are_read_at_their_outputs(net, data, fresh):
    model = fitted(net, data, layers=["1", "3"])
    assert model.layers_ == (LayerSite("1"), LayerSite("3"))
    auto = fitted(net, data)
    torch.testing.assert_close(model.uncertainty(fresh), auto.uncertainty(fresh))


@pytest.mark.slow
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
    assert [tuple(part.shape) for part in (empty.logits, empty.predicted, empty.uncertainty)] == [
        (0, 3), (0,), (0,),
    ]  # fmt: skip
    assert model.log_density(fresh[:0]).shape == (0, 2)
    assert model.posteriors(fresh[:0]).shape == (0, 3, 3)


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_dropout_and_batch_norm_are_evaluated():
    net, images = conv_net().train(), blobs()
    model = fitted(net, images)
    assert torch.equal(model.uncertainty(images[0][:9]), model.uncertainty(images[0][:9]))
    assert [site.layer for site in model.layers_] == ["4", "7"]


@pytest.mark.slow
def test_a_network_of_tokens():
    from tests.network.test_features import Tokens

    torch.manual_seed(0)
    net, random = Tokens(), torch.Generator().manual_seed(0)
    labels = torch.randint(3, (200,), generator=random)
    tokens = torch.randn(200, 6, 5, generator=random) + torch.eye(5)[labels][:, None]
    model = fitted(net, (tokens, labels))
    assert model.layers_[-1] == LayerSite("head", "input")
    assert model.uncertainty(tokens).shape == (200,)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="moves to an accelerator")
def test_the_fields_follow_the_network(net, data, fresh, model):
    moved = fitted(net, data)
    net.cuda()
    found = moved(fresh).uncertainty
    assert found.device.type == "cuda"
    torch.testing.assert_close(found.cpu(), model.uncertainty(fresh), atol=1e-4, rtol=1e-4)


def test_autocast_does_not_reach_the_fields(model, fresh):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = model.posteriors(fresh)
        logits, rows = run_in_batches(model.net, fresh, model.layers_)
    values = [field(rows[site]) for site, field in model.layer_fields().items()]
    expected = posteriors_of(logits, model.fields_, values)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_autocast_does_not_reach_the_scores(model, fresh):
    logits, rows = run_in_batches(model.net, fresh, model._sites_read())
    plain = model._row_scores(logits, rows)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for found, one in zip(model._row_scores(logits, rows), plain, strict=True):
            torch.testing.assert_close(found, one, rtol=1e-6, atol=1e-6)


def test_fitted_under_autocast_the_fields_have_all_their_digits(net, data, fresh):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model = LayeredQIPF(net, **FEW).fit([data])
    assert all(field.embeddings.dtype == torch.float32 for field in model.fields_)
    assert torch.isfinite(model.uncertainty(fresh)).all()


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # torch's own, when it imports its compiler
def test_of_a_compiled_network_the_original_runs(net, data, fresh, tmp_path):
    model = fitted(net, data)
    compiled = torch.compile(net)
    assert torch.equal(fitted(compiled, data).uncertainty(fresh), model.uncertainty(fresh))
    model.save(tmp_path / "model.qipf")
    loaded = qipf.load(tmp_path / "model.qipf", compiled)
    assert loaded.net is net
    assert torch.equal(loaded.uncertainty(fresh), model.uncertainty(fresh))


def test_a_report_on_no_data(model, tmp_path):
    with pytest.raises(QIPFInputError, match="The loader is empty: report needs at least one"):
        qipf.report(model, [], tmp_path / "page.html")


def test_threads_wait_for_each_other(model, fresh):
    model.net.train()
    expected = model.uncertainty(fresh)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: model.uncertainty(fresh), range(40)))
    assert all(torch.equal(one, expected) for one in found)
    assert model.net.training
    model.net.eval()


@pytest.mark.parametrize(
    ("reduction", "most"), [("auto", 4), ("distilled", 4), ("random", None), ("coreset", None)]
)
def test_only_distilled_fields_are_limited_to_four_layers(net, reduction, most):
    assert LayeredQIPF(net, reduction=reduction)._most_layers() == most
