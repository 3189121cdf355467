"""What every registered method must keep to."""

from __future__ import annotations

import copy
import functools
import re

import pytest
import torch

from qipf.bench.methods import (
    METHODS,
    ONE_PASS,
    SAMPLERS,
    Batch,
    CleanData,
    Method,
    base_name,
    create,
)
from qipf.bench.suites import effective_options
from qipf.errors import QIPFInputError
from qipf.validation.not_fitted import QIPFNotFittedError

#: Fewer passes and epochs than the defaults, to be quick; the same for all scores of a sampler.
QUICK = {
    "mc_dropout": {"passes": 30},
    "mc_dropout_ll": {"passes": 30},
    "svi": {"epochs": 5, "passes": 30},
    "svi_ll": {"epochs": 5, "passes": 30},
    "ensemble": {"networks": 2},
    "qipf_plus": {"max_centers": 200, "max_tuning": 60, "max_dimension": 16},
    "qipf_plus_novelty": {"max_centers": 200, "max_tuning": 60, "max_dimension": 16},
}
NEEDS_NO_FIT = {"softmax", "entropy", "max_logit", "energy", "gen", "doctor"}
every_method = pytest.mark.parametrize("name", METHODS)


def quick(name: str) -> Method:
    return create(name, **QUICK.get(base_name(name), {}))


@pytest.fixture(scope="module")
def fitted(clean):
    """Methods by name, each fitted once."""
    return functools.cache(lambda name: quick(name).fit(clean))


def rows(batch: Batch, part: slice) -> Batch:
    return Batch(batch.images[part], batch.logits[part], batch.features[part])


def test_the_methods_of_the_benchmark_are_all_there():
    sampled = {"mc_dropout", "mc_dropout_ll", "svi", "svi_ll", "ensemble", "tta"}
    one_pass = {"softmax", "entropy", "max_logit", "energy", "knn", "mahalanobis"}
    one_pass |= {"qipf", "qipf_normalized", "qipf_standardized", "qipf_default"}
    one_pass |= {"qipf_potential", "qipf_density", "qipf_plus", "qipf_plus_novelty"}
    one_pass |= {"stacked", "laplace_ll", "temperature", "max_logit_pnorm"}
    one_pass |= {"gen", "doctor", "kl_matching", "she", "nci", "fdbd", "vim", "sirc", "react"}
    one_pass |= {"ash", "scale", "nnguide", "trust_score", "nuq", "rmds"}
    scores = ("", "_entropy", "_own_class", "_log_odds")
    assert set(METHODS) == {*one_pass, *(name + score for name in sampled for score in scores)}
    assert {base_name(name) for name in METHODS} == {*one_pass, *sampled}


@pytest.mark.slow
@every_method
def test_one_finite_float64_score_per_prediction(name, fitted, shifted):
    scores = fitted(name).score(shifted)
    assert scores.shape == (599,)
    assert scores.dtype == torch.float64
    assert scores.device == shifted.logits.device
    assert not scores.requires_grad
    assert torch.isfinite(scores).all()
    assert len(scores.unique()) > 500  # a score that ties cannot rank


# without tta by spread: its own shifts undo this one, so that wrong predictions vary least
@pytest.mark.parametrize("name", sorted({*METHODS} - {"tta", "tta_own_class"}))
def test_wrong_predictions_score_higher(name, fitted, shifted, digits):
    scores, wrong = fitted(name).score(shifted), shifted.predicted != digits.test_labels
    higher = (scores[wrong][:, None] > scores[~wrong][None, :]).double().mean()
    assert higher > 0.58  # the area under the ROC curve
    assert scores[wrong].mean() > scores[~wrong].mean()


@pytest.mark.slow
@every_method
def test_the_network_is_left_as_it_was(name, clean, shifted):
    network = clean.network
    network.train()  # a mode that a careless method would change
    before = copy.deepcopy(network.state_dict())
    try:
        quick(name).fit(clean).score(rows(shifted, slice(0, 40)))
        assert all(module.training for module in network.modules())
    finally:
        network.eval()
    assert all(torch.equal(tensor, before[key]) for key, tensor in network.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in network.parameters())


@pytest.mark.slow
@every_method
def test_the_same_seed_gives_the_same_scores_and_global_draws_stay_as_they_were(
    name, clean, shifted
):
    part = rows(shifted, slice(0, 60))
    scores = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        before = torch.get_rng_state()
        # another CleanData, so that nothing is remembered
        few = (clean.images[:150], clean.labels[:150])
        again = CleanData(clean.network, *few, clean.trainer, clean.dropout_rate, clean.seed)
        fresh = Batch(part.images, part.logits, part.features)
        scores.append(quick(name).fit(again).score(fresh))
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(scores[0], scores[1])


# an ensemble's seed is its trainer's
@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in METHODS if n.startswith(("mc_dropout", "svi"))])
def test_sampling_follows_the_seed(name, clean, fitted, shifted):
    part = rows(shifted, slice(0, 60))
    other = CleanData(
        clean.network, clean.images, clean.labels, clean.trainer, clean.dropout_rate, seed=1
    )
    first = fitted(name).score(part)
    second = quick(name).fit(other).score(rows(shifted, slice(0, 60)))
    assert not torch.equal(first, second)
    assert torch.corrcoef(torch.stack([first, second]))[0, 1] > 0.75


@pytest.mark.parametrize("name", [n for n in METHODS if n.split("_")[0] not in ("mc", "svi")])
def test_a_batch_may_be_split(name, fitted, shifted):
    method = fitted(name)
    parts = [method.score(rows(shifted, part)) for part in (slice(0, 200), slice(200, None))]
    torch.testing.assert_close(torch.cat(parts), method.score(shifted), rtol=1e-4, atol=1e-6)


@every_method
def test_forward_passes_are_what_a_prediction_costs(name):
    sampled = 10 if name.startswith(("ensemble", "tta")) else 1
    expected = 100 if name.startswith(("mc", "svi")) else sampled
    assert create(name).forward_passes == expected
    assert create(name).name == name


@pytest.mark.parametrize("name", sorted(set(METHODS) - NEEDS_NO_FIT))
def test_scoring_before_fitting_is_refused(name, shifted):
    with pytest.raises(QIPFNotFittedError, match=f"{name} is not fitted yet. Call fit"):
        create(name).score(shifted)


@pytest.mark.parametrize("name", ["svi", "svi_ll", "ensemble"])
def test_methods_that_learn_networks_say_that_they_need_a_trainer(name, clean):
    alone = CleanData(clean.network, clean.images, clean.labels)
    message = (
        f"{name} trains networks of its own, but this CleanData has no trainer. Pass "
        "CleanData(..., trainer=...), for example a qipf.bench.training.Trainer."
    )
    with pytest.raises(QIPFInputError, match=re.escape(message)):
        create(name).fit(alone)


def test_unknown_names_are_answered_with_near_ones():
    with pytest.raises(QIPFInputError, match=r"Unknown method 'entrpy'. Did you mean 'entropy'"):
        create("entrpy")
    message = "Unknown option of mc_dropout_entropy 'pases'. Did you mean 'passes'? Known: passes,"
    with pytest.raises(QIPFInputError, match=re.escape(message)):
        create("mc_dropout_entropy", pases=3)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("knn", {"k": 0}, "knn: k must be positive; got 0."),
        ("energy", {"temperature": -1.0}, "energy: temperature must be positive; got -1.0."),
        ("mc_dropout", {"passes": 0}, "mc_dropout: passes must be positive; got 0."),
        ("mc_dropout_ll", {"passes": 0}, "mc_dropout_ll: passes must be positive; got 0."),
        ("mc_dropout", {"rate": 1.0}, "mc_dropout: rate must lie strictly between 0 and 1"),
        ("mc_dropout_ll", {"rate": 0.0}, "mc_dropout_ll: rate must lie strictly between 0 and 1"),
        ("svi", {"epochs": 0}, "svi: epochs must be positive; got 0."),
        ("svi_ll", {"initial_std": 0.0}, "svi_ll: initial_std must be positive; got 0.0."),
        ("ensemble", {"networks": 0}, "ensemble: networks must be positive; got 0."),
    ],
)
def test_bad_options_are_refused(name, options, message):
    with pytest.raises(QIPFInputError, match=re.escape(message)):
        create(name, **options)


FIELD = {"bandwidth": "cv", "max_centers": 6000, "reduction": "random", "softening": 0.0}
FIELD |= {"engine": "auto"}
ORDERS = {"orders": (1, 2, 3, 4)}
SVI = {"epochs": 100, "passes": 100, "initial_std": 0.1}

#: Options of the published results, where a method has any; those of qipf_plus… are LayeredQIPF's.
PUBLISHED = {
    "energy": {"temperature": 1.0},
    "knn": {"k": 50},
    "qipf": {**FIELD, **ORDERS, "normalization": "peak"},
    "qipf_normalized": {**FIELD, **ORDERS, "normalization": "density"},
    "qipf_standardized": {**FIELD, **ORDERS, "normalization": "standard"},
    "qipf_potential": {**FIELD, "orders": (1,), "normalization": "peak"},
    "qipf_density": {**FIELD, "orders": (1,), "normalization": "peak"},
    "gen": {"gamma": 0.1, "classes": 100},
    "nci": {"alpha": 0.0},
    "vim": {"dimension": 0},
    "react": {"quantile": 0.9},
    "ash": {"share": 0.65},
    "scale": {"share": 0.85},
    "nnguide": {"k": 10},
    "nuq": {"k": 100},
    "mc_dropout": {"rate": None, "passes": 100},
    "mc_dropout_ll": {"rate": 0.2, "passes": 100},
    "svi": SVI,
    "svi_ll": SVI,
    "ensemble": {"networks": 10},
}


def test_options_are_those_of_the_published_results():
    for name in (*ONE_PASS, *SAMPLERS):
        if not name.startswith("qipf_plus"):
            assert effective_options(create(name)) == PUBLISHED.get(name, {}), name
