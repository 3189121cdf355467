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
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from qipf import QIPF, QIPFInputError
from qipf.field.bandwidth import FACTORS
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


def test_the_bandwidth_is_chosen_on_rows_outside_the_field(monkeypatch, train):
    seen = {}

    def spy(centers, held_out, nearness, **options):
        seen.update(centers=centers.numpy(), held_out=held_out.numpy(), nearness=nearness)
        from qipf.field.bandwidth import Choice

        return Choice(2.0, "error detection", {})

    monkeypatch.setattr("qipf.field.fitting.choose_factor", spy)
    labels = train.argmax(1)
    labels[::7] = (labels[::7] + 1) % 10
    field = QIPF(max_centers=300, reduction="random").fit(train, labels)
    inside = {row.tobytes() for row in seen["centers"]}
    assert len(seen["centers"]) == 300
    assert len(seen["held_out"]) == 500
    assert not any(row.tobytes() in inside for row in seen["held_out"])
    # with rows to spare, none of the held-out ones enters the final field either
    assert {row.tobytes() for row in field.centers_} == inside
    # and the nearness to an error is that of the held-out rows
    leads = np.diff(np.sort(train, 1)[:, -2:])[:, 0]
    nearness = np.where(train.argmax(1) != labels, np.inf, -leads)
    place = {row.tobytes(): near for row, near in zip(train, nearness, strict=True)}
    np.testing.assert_array_equal(seen["nearness"], [place[r.tobytes()] for r in seen["held_out"]])


def test_a_coreset_is_made_without_the_held_out_rows_and_then_with_them(monkeypatch, train):
    seen = {}

    def spy(centers, held_out, nearness, *, log_weights, spread, width, **options):
        seen.update(centers=centers, held_out=held_out.numpy(), width=width)
        seen.update(weights=log_weights.exp(), spread=spread)
        from qipf.field.bandwidth import Choice

        return Choice(2.0, "likelihood", {})

    monkeypatch.setattr("qipf.field.fitting.choose_factor", spy)
    field = QIPF(max_centers=100, reduction="coreset").fit(train)
    held = {row.tobytes() for row in seen["held_out"]}
    assert len(held) == 160
    others = np.stack([row for row in train if row.tobytes() not in held]).astype(np.float64)
    # the width is chosen by exactly the other rows
    weights, centers = seen["weights"].numpy(), seen["centers"].double().numpy()
    np.testing.assert_allclose(weights @ centers, others.mean(0), atol=1e-5)
    between = weights @ (centers - others.mean(0)) ** 2
    variance = between.mean() + seen["spread"] ** 2
    assert variance == pytest.approx(others.var(0).mean(), rel=1e-5)
    assert field.centers_.shape == (100, 10)
    # the width is that of all rows
    silverman = train.std(0, dtype=np.float64).mean() * (4 / (12 * 800)) ** (1 / 14)
    assert field.bandwidth_ == pytest.approx(2 * silverman, rel=1e-5)


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
    truth = QIPF(bandwidth=12.0).fit(train).uncertainty(queries)
    ranks = {}
    for reduction in ("random", "coreset"):
        field = QIPF(bandwidth=12.0, max_centers=80, reduction=reduction).fit(train)
        ranks[reduction] = spearmanr(field.uncertainty(queries), truth)[0]
    assert ranks["coreset"] > 0.999
    assert 1 - ranks["coreset"] < (1 - ranks["random"]) / 10


LEARNED = ["centers_", "log_weights_", "bandwidth_", "spread_", "energies_", "offset_"]


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


def test_few_rows_return_to_the_field_after_the_choice(train):
    field = QIPF().fit(train)
    assert field.centers_.shape == (800, 10)
    assert field.bandwidth_factor_ in FACTORS
    assert field.bandwidth_criterion_ == "likelihood"


@pytest.mark.parametrize("as_tensor", [False, True])
def test_labels_choose_the_bandwidth_by_error_detection(train, as_tensor):
    labels = train.argmax(1)
    labels[:400:3] = (labels[:400:3] + 1) % 10
    wrong = train.argmax(1) != labels
    if as_tensor:
        by_label = QIPF().fit(torch.from_numpy(train), torch.from_numpy(labels))
    else:
        by_label = QIPF().fit(train, labels)
    assert by_label.bandwidth_criterion_ == "error detection"
    assert by_label.bandwidth_ == QIPF().fit(train, wrong=wrong).bandwidth_


def test_labels_without_errors_choose_the_bandwidth_by_near_errors(train):
    labels = train.argmax(1)
    by_label = QIPF().fit(train, labels)
    assert by_label.bandwidth_criterion_ == "errors and near errors"
    tensors = QIPF().fit(torch.from_numpy(train).requires_grad_(), torch.from_numpy(labels))
    assert tensors.bandwidth_ == by_label.bandwidth_
    # the lead of float16 numbers is known exactly, and their rows are those of float32
    half = train.astype(np.float16)
    for rows in (half, torch.from_numpy(half)):
        found = QIPF().fit(rows, half.argmax(1))
        assert found.bandwidth_criterion_ == "errors and near errors"
        assert found.bandwidth_ == QIPF().fit(half.astype(np.float32), half.argmax(1)).bandwidth_
    # flags do not tell what came near, and one logit leads none
    for rows, told in (
        (train, {"wrong": np.zeros(800, bool)}),
        (train[:, :1], {"y": np.zeros(800, int)}),
        (train[:400], {"y": labels[:400]}),  # a tenth of 80 held-out rows is too few
    ):
        by_flags, plain = QIPF().fit(rows, **told), QIPF().fit(rows)
        assert by_flags.bandwidth_criterion_ == plain.bandwidth_criterion_ == "likelihood"
        assert by_flags.bandwidth_ == plain.bandwidth_


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_the_scale_of_the_logits_does_not_matter_to_near_errors(train, scale):
    rows = train.astype(np.float64)
    plain, scaled = (QIPF().fit(part, rows.argmax(1)) for part in (rows, rows * scale))
    assert scaled.bandwidth_criterion_ == "errors and near errors"
    assert scaled.bandwidth_factor_ == plain.bandwidth_factor_


def test_bandwidth_rules(train):
    plain = QIPF(bandwidth="silverman").fit(train)
    assert (plain.bandwidth_factor_, plain.bandwidth_criterion_) == (1.0, "silverman")
    given = QIPF(bandwidth=2 * plain.bandwidth_).fit(train)
    assert given.bandwidth_factor_ == pytest.approx(2.0)
    assert given.bandwidth_criterion_ == "given"
    few = QIPF().fit(train[:6])
    assert few.bandwidth_criterion_ == "silverman"


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
