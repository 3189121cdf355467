"""QIPF: centres, width and what is usual, learned at once, in batches, or not at all."""

import itertools
import pickle
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_is_fitted

from qipf import QIPF, QIPFInputError
from tests.conftest import make_logits, naive_moments


def test_centres_are_a_seeded_subsample(train):
    options = {"bandwidth": 3.0, "max_centers": 100, "reduction": "random"}
    same = [QIPF(**options, random_state=s).fit(train) for s in (1, 1, 2)]
    assert same[0].centers_.shape == (100, 10)
    np.testing.assert_array_equal(same[0].centers_, same[1].centers_)
    assert not np.array_equal(same[0].centers_, same[2].centers_)
    rows = {row.tobytes() for row in train}
    assert all(row.tobytes() in rows for row in same[0].centers_)
    assert len({row.tobytes() for row in same[0].centers_}) == 100


def test_weights_and_spread_enter_every_score(train, test):
    field = QIPF(bandwidth=3.0, max_centers=60, reduction="coreset").fit(train)
    assert field.centers_.shape == (60, 10)
    assert field.log_weights_.shape == (60,)
    assert field.spread_ > 0
    # by hand: clouds are wider kernels, lower and with a variance of their own
    wide = np.hypot(3.0, field.spread_)
    a = (3.0 / wide) ** 2
    weights = np.exp(field.log_weights_)
    log_density, m1_squared, m2 = naive_moments(test, field.centers_, wide, weights)
    log_density, m1_squared = log_density + 5 * np.log(a), m1_squared * a**2
    m2 = m2 * a**2 + 10 * a * field.spread_**2
    np.testing.assert_allclose(field.log_density(test), log_density, rtol=1e-5)
    K = m2 / 36 - m1_squared / 72 - 2.5
    np.testing.assert_allclose(field.potential(test) - field.ground_energy_, K, rtol=1e-4)
    # the same on a device seen for the first time, and after a pickle
    scores = field.uncertainty(test)
    field._engines.clear()
    np.testing.assert_array_equal(field.uncertainty(test), scores)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(field)).uncertainty(test), scores)


def test_a_coreset_is_nearer_to_the_full_field_than_a_random_part(train):
    queries = make_logits(400, spread=9.0, seed=5).numpy()
    truth = QIPF(bandwidth=12.0, normalization="peak").fit(train).uncertainty(queries)
    ranks = {}
    for reduction in ("random", "coreset"):
        field = QIPF(bandwidth=12.0, normalization="peak", max_centers=80, reduction=reduction).fit(
            train
        )
        ranks[reduction] = spearmanr(field.uncertainty(queries), truth)[0]
    assert ranks["coreset"] > 0.999
    assert 1 - ranks["coreset"] < (1 - ranks["random"]) / 10


LEARNED = ["centers_", "log_weights_", "bandwidth_", "spread_", "energies_", "offset_"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("every", "criterion"), [(4, "error detection"), (90, "errors and near errors")]
)
@settings(max_examples=4, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 800), max_size=5), reduction=st.sampled_from(["coreset", "random"])
)
def test_partial_fit_equals_fit_however_the_rows_are_cut(every, criterion, cuts, reduction):
    rows = (8 * make_logits(800).numpy()).round() / 8  # so that some leads are tied
    labels = rows.argmax(1)
    labels[::every] = 0
    options = {"max_centers": 70, "reduction": reduction}
    whole = QIPF(**options).fit(rows, labels)
    parts = QIPF(**options)
    edges = [0, *sorted(cuts), 800]
    for start, stop in itertools.pairwise(edges):
        if start < stop:
            parts.partial_fit(rows[start:stop], labels[start:stop])
    parts.build()
    for name in LEARNED:
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))
    assert parts.n_samples_seen_ == whole.n_samples_seen_ == 800
    assert parts.bandwidth_criterion_ == whole.bandwidth_criterion_ == criterion


@pytest.mark.slow
def test_partial_fit_goes_on_from_fit_and_from_a_pickle_and_use_does_not_disturb_it(train, test):
    whole = QIPF(max_centers=70, reduction="coreset").fit(train)
    parts = QIPF(max_centers=70, reduction="coreset").fit(train[:300])
    first = parts.uncertainty(test)
    parts = pickle.loads(pickle.dumps(parts.partial_fit(train[300:500])))
    assert not np.array_equal(parts.uncertainty(test), first)
    np.testing.assert_array_equal(
        parts.partial_fit(train[500:]).uncertainty(test), whole.uncertainty(test)
    )
    assert parts.fit(train[:300]).n_samples_seen_ == 300
    np.testing.assert_array_equal(parts.uncertainty(test), first)


def test_rows_or_what_was_learned_from_them_make_a_field_fitted(train, test):
    field = QIPF(bandwidth=3.0)
    with pytest.raises(NotFittedError):
        check_is_fitted(field)
    field.partial_fit(train)
    assert "offset_" not in vars(field)
    check_is_fitted(field)
    slim = field.without_rows()
    assert "_rows" in vars(field)
    assert "_rows" not in vars(slim)
    check_is_fitted(slim)
    np.testing.assert_array_equal(slim.uncertainty(test), field.uncertainty(test))


def test_partial_fit_needs_rows_that_differ_only_when_it_is_used(train, test):
    field = QIPF().partial_fit(train[:1])
    for _ in range(2):
        with pytest.raises(QIPFInputError, match=re.escape("two distinct rows (n_samples = 1,")):
            field.uncertainty(test)
    field.partial_fit(train[1:20])
    np.testing.assert_array_equal(field.uncertainty(test), QIPF().fit(train[:20]).uncertainty(test))


def test_a_refused_batch_leaves_the_field_as_it_was(train, test):
    field = QIPF(max_centers=70, reduction="coreset").partial_fit(
        train[:400], train[:400].argmax(1)
    )
    before = field.uncertainty(test)
    for rows, labels, message in (
        (train[400:], None, "This batch lacks labels, unlike those before it. Label all batches"),
        (train[400:, :3], train[400:, :3].argmax(1), "X has 3 features, but QIPF is expecting 10"),
        (train[400:], train[401:].argmax(1), "y must have shape (400,)"),
        (train[400:] * np.nan, None, "X has 400 rows with NaN or inf"),
    ):
        with pytest.raises(QIPFInputError, match=re.escape(message)):
            field.partial_fit(rows, labels)
    assert field.n_samples_seen_ == 400
    np.testing.assert_array_equal(field.uncertainty(test), before)
    with pytest.raises(QIPFInputError, match="This batch has labels, unlike those before it"):
        QIPF().partial_fit(train).partial_fit(train, train.argmax(1))


def test_contamination_is_the_share_of_outliers_in_training(train):
    for share in (0.01, 0.1, 0.5):
        marked = QIPF(contamination=share).fit_predict(train)
        assert np.mean(marked == -1) == pytest.approx(share, abs=2 / len(train))


def test_gradients_reach_the_logits(field, test):
    rows = torch.from_numpy(test[:3]).double().requires_grad_()
    torch.autograd.gradcheck(field.uncertainty, rows, atol=1e-4)


def test_in_a_pipeline_cloned_pickled_and_searched(train, test):
    few = {"reduction": "random"}  # which takes no time
    pipeline = make_pipeline(StandardScaler(), QIPF(max_centers=200, **few)).fit(train)
    assert pipeline.score_samples(test).shape == (50,)
    field = QIPF(orders=(1, 3), softening=0.1, max_centers=50, **few).fit(train)
    copy = clone(field)
    assert copy.get_params() == field.get_params()
    assert not hasattr(copy, "centers_")
    restored = pickle.loads(pickle.dumps(field))
    np.testing.assert_array_equal(restored.uncertainty(test), field.uncertainty(test))
    search = GridSearchCV(
        QIPF(max_centers=100, **few),
        {"bandwidth": [0.1, 3.0]},
        scoring=lambda estimator, X: float(estimator.log_density(X).mean()),
        cv=3,
    ).fit(train)
    assert search.best_params_ == {"bandwidth": 3.0}


def test_refitting_replaces_everything_and_a_failed_refit_nothing(train, test):
    field = QIPF(bandwidth=3.0).fit(train)
    before = field.uncertainty(test)
    with pytest.raises(QIPFInputError):
        field.fit(np.ones((20, 4)))
    np.testing.assert_array_equal(field.uncertainty(test), before)
    assert field.n_features_in_ == 10
    field.fit(train[:, :4])
    assert field.uncertainty(test[:, :4]).shape == (50,)


def test_the_defaults_are_those_of_the_documentation():
    expected = {
        "orders": (1, 2, 3, 4),
        "bandwidth": "cv",
        "max_centers": 6000,
        "reduction": "auto",
        "softening": 0.0,
        "normalization": "standard",
        "fallback": True,
        "contamination": 0.1,
        "engine": "auto",
        "device": "auto",
        "random_state": 0,
    }
    found = QIPF().get_params()
    assert {name: found[name] for name in expected} == expected


def test_rows_that_are_the_logits_are_compared_with_their_entropy(train):
    rows = torch.from_numpy(train)
    wrong = np.random.default_rng(0).random(len(rows)) < 0.2
    same = QIPF().partial_fit(rows, wrong=wrong, logits=rows).build()
    assert same.detection_.entropy is not None
    layer = QIPF().partial_fit(rows, wrong=wrong, logits=rows + 1).build()
    assert layer.detection_.entropy is None
    mixed = QIPF().partial_fit(rows[:400], wrong=wrong[:400], logits=rows[:400])
    mixed.partial_fit(rows[400:], wrong=wrong[400:], logits=rows[400:, :5]).build()
    assert mixed.detection_.entropy is None
