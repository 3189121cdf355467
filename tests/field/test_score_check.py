"""What `fit` and `calibrate` notice: scores worse than the entropy, doubtful labels, few rows."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import entropy
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import qipf
from qipf import QIPF, QIPFInputError, QIPFScoreWarning, QIPFWarning
from qipf.calibration.detection import entropy_of
from qipf.calibration.training_rows import TrainingSample, refuse_training_rows
from tests.conftest import make_logits

TWO_CLASSES = "The logits of two classes differ only by their margin"


@pytest.fixture(autouse=True)
def heard():
    """Score warnings are errors again, unless a test expects them."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", QIPFScoreWarning)
        yield


def softmax_entropy(logits):
    shifted = np.exp(logits - logits.max(1, keepdims=True))
    return entropy(shifted, axis=1)


def area(score, logits, labels):
    return roc_auc_score(logits.argmax(1) != labels, score)


# ---------------------------------------------------------------------- two classes, one logit


@pytest.mark.slow
@pytest.mark.parametrize("split", range(6))
def test_two_classes(split):
    """Finding 1: .25 to .61 against .89 to .98 of the entropy, without a word."""
    X, y = load_breast_cancer(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, train_size=300, random_state=split)
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)).fit(X, y)
    margins, test = (model.decision_function(rows) for rows in (X, X_test))
    logits, test_logits = (np.stack([-m / 2, m / 2], 1) for m in (margins, test))
    with pytest.warns(QIPFScoreWarning, match=TWO_CLASSES):
        field = QIPF().fit(logits, y)
    found = area(field.uncertainty(test_logits), test_logits, y_test)
    assert found == pytest.approx(area(softmax_entropy(test_logits), test_logits, y_test))
    assert found > 0.8
    assert field.score_ == "entropy"


def test_one_logit_is_the_two_classes_that_it_stands_for(rng):
    """Finding 4: "Labels must be classes 0..0", and class 0 for all."""
    z, noise = rng.normal(scale=3, size=(300, 1)), rng.normal(size=300)
    labels = (z[:, 0] + noise > 0).astype(int)
    both = np.concatenate([np.zeros_like(z), z], 1)
    with pytest.warns(QIPFScoreWarning, match=TWO_CLASSES):
        one, two = QIPF().fit(z, labels), QIPF().fit(both, labels)
    np.testing.assert_allclose(one.uncertainty(z), two.uncertainty(both), rtol=1e-12)
    np.testing.assert_array_equal(one(z).predicted, z[:, 0] > 0)
    # the largest of two logits depends on what is added to both; one logit has nothing to add
    assert replace(one.detection_, max_logit=None) == replace(two.detection_, max_logit=None)
    assert one.detection_.errors >= (labels != (z[:, 0] > 0)).sum()
    held_out = rng.normal(scale=3, size=(200, 1))
    one.calibrate(held_out, (held_out[:, 0] > 0).astype(int))
    assert not one.calibration_.wrong.any()


def test_two_columns_without_labels_warn(rng):
    for columns in (1, 2):
        with pytest.warns(QIPFScoreWarning, match=f"{columns} columns and no labels"):
            QIPF(bandwidth=1.0).fit(rng.normal(size=(50, columns)))


def test_the_field_of_two_classes_can_be_kept(rng):
    z = rng.normal(scale=3, size=(300, 2))
    labels = (z + rng.normal(size=z.shape)).argmax(1)
    with pytest.warns(
        QIPFScoreWarning, match="differ only by their margin .* on a calibration set"
    ):
        field = QIPF(bandwidth=1.0, fallback=False).fit(z, labels)
    assert field.score_ == "modes"
    np.testing.assert_allclose(field.uncertainty(z), field.modes(z).mean(1))


# ---------------------------------------------------------------------- trees and probabilities


def digits():
    X, y = load_digits(return_X_y=True)
    return train_test_split(X, y, train_size=700, random_state=0)


@pytest.mark.slow
def test_margins_of_boosted_trees():
    """Finding 2: .735 against .924 of the entropy, by poles inside the data."""
    X, X_test, y, y_test = digits()
    model = HistGradientBoostingClassifier(max_iter=15, max_leaf_nodes=8, random_state=0).fit(X, y)
    logits, test = model.decision_function(X), model.decision_function(X_test)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", QIPFScoreWarning)
        field = QIPF().fit(logits, y)
    scores = field.uncertainty(test)
    assert area(scores, test, y_test) > area(softmax_entropy(test), test, y_test) - 0.05
    assert np.abs(field.modes(test)).max() < 1e3  # no pole: values were -840 and -5,769


@pytest.mark.slow
def test_probabilities_of_a_forest():
    """Finding 3: they passed silently, as if they were logits."""
    X, X_test, y, y_test = digits()
    model = RandomForestClassifier(60, min_samples_leaf=3, random_state=0).fit(X, y)
    logits, test = model.predict_proba(X), model.predict_proba(X_test)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", QIPFScoreWarning)
        field = QIPF().fit(logits, y)
    assert field.probabilities_
    expected = entropy(test, axis=1)  # of the probabilities, not of their softmax
    np.testing.assert_allclose(entropy_of(torch.from_numpy(test)), expected, atol=1e-12)
    found = area(field.uncertainty(test), test, y_test)
    assert found > area(expected, test, y_test) - 0.05
    # equal rows prove nothing where there are few distinct ones
    coarse = np.round(logits * 4) / 4
    coarse /= coarse.sum(1, keepdims=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", QIPFScoreWarning)
        QIPF(bandwidth=0.3).fit(coarse, y).calibrate(coarse[:200], y[:200])


@pytest.mark.slow
def test_a_field_far_behind_the_entropy_gives_way_to_it(rng):
    rows = rng.normal(scale=3, size=(600, 5))
    labels = (rows + rng.normal(size=rows.shape)).argmax(1)
    with pytest.warns(QIPFScoreWarning, match=SAID):
        field = QIPF().fit(rows, labels)
    np.testing.assert_allclose(field.uncertainty(rows), softmax_entropy(rows), atol=1e-12)
    assert field.detection_.uncertainty == field.detection_.entropy > 0.8
    assert field.modes(rows).shape == (600, 4)  # they stay the field's
    assert "softmax entropy" in field.summary()
    again = pickle_free_copy(field)
    np.testing.assert_array_equal(again.uncertainty(rows), field.uncertainty(rows))
    assert again.digest() == field.digest()


def pickle_free_copy(field):
    header, arrays = field.state()
    return QIPF.from_state(header, arrays, "a file")


# ---------------------------------------------------------------------- labels and rows


SAID = (
    r"so uncertainty is the entropy of the softmax\. fallback=False \(--no-fallback\) keeps the "
    r"field\. For a network, LayeredQIPF may do better\.$"
)
EDGE = (
    r"edge of the search, 0\.25 times Silverman's\. Compare with others: bandwidth=NUMBER "
    r"\(--bandwidth\)\.$"
)


def labelled(count=300, seed=0):
    """Logits whose errors lie far out, where the field finds them."""
    rows = make_logits(count, seed=seed).numpy()
    rows[::8] *= 1.2
    classes = rows.argmax(1)
    return rows, np.where(np.arange(count) % 8 == 0, (classes + 1) % 10, classes)


def test_a_good_field_says_nothing():
    field = QIPF().fit(*labelled())
    assert field.score_ == "modes"
    assert field.detection_.uncertainty > field.detection_.entropy
    assert field.detection_.rows == "errors of held-out training rows"
    assert (field.detection_.count, field.detection_.errors) == (300, 38)


def test_repr_shows_the_parameters_and_then_what_was_measured():
    field = QIPF(max_centers=500).fit(*labelled())
    assert repr(field) == f"QIPF(max_centers=500), error detection: {field.detection_}"
    assert repr(clone(field)) == repr(QIPF(max_centers=500)) == "QIPF(max_centers=500)"
    assert str(field.detection_) in field.summary()
    assert "QIPF(max_centers=500)" in repr(make_pipeline(StandardScaler(), field))
    field.calibrate(labelled(90, seed=1)[0])
    assert repr(field) == "QIPF(max_centers=500), calibrated on 90 predictions"


@pytest.mark.parametrize("agreeing", [0.0, 0.1])
def test_labels_of_other_rows_are_noticed(agreeing, rng):
    """Finding 7: shuffled labels, and labels that agree with 10 %, were taken silently."""
    rows, labels = labelled()
    other = (rows.argmax(1) + rng.integers(1, 10, size=300)) % 10
    labels = np.where(np.arange(300) < agreeing * 300, rows.argmax(1), other)
    with pytest.warns(QIPFScoreWarning) as told:
        field = QIPF(bandwidth=5.0).fit(rows, labels)
    message = f"Only {agreeing:.0%} of the predictions agree with the labels"
    assert any(message in str(warning.message) for warning in told)
    held_out = make_logits(100, seed=1).numpy()
    with pytest.warns(QIPFScoreWarning, match="hardly more than chance"):
        field.calibrate(held_out, (held_out.argmax(1) + 1) % 10)


def test_shuffled_labels_are_noticed(rng):
    rows, labels = labelled()
    with pytest.warns(QIPFScoreWarning) as told:
        QIPF(bandwidth=5.0).fit(rows, rng.permutation(labels))
    assert any("hardly more than chance" in str(warning.message) for warning in told)


def test_rare_classes_are_no_reason_to_doubt_labels(rng):
    """Nine of ten rows are of class 0: shuffled labels agree with 82 %, which is chance."""
    rows = make_logits(400, dimension=3).numpy()
    rows[:, 0] += np.where(rng.random(400) < 0.9, 60.0, -60.0)
    labels = rows.argmax(1)
    labels[::20] = (labels[::20] + 1) % 3  # a model that errs in 5 %
    field = QIPF(bandwidth=9.0).fit(rows)
    new = rows + 1e-2
    told = []
    for given in (labels, rng.permutation(labels)):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            field.calibrate(new, given)
        told.append(any("hardly more than chance" in str(one.message) for one in found))
    assert told == [False, True]


def test_a_report_on_training_rows_warns(tmp_path):
    rows, labels = labelled()
    field = QIPF(bandwidth=10.0).fit(rows, labels)
    with pytest.warns(QIPFWarning, match="About 100% of these predictions are training rows"):
        qipf.report(field, (rows, labels), tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "About 100% of these predictions are training rows" in page


def test_calibration_on_training_rows_is_refused():
    """Finding 7: it certified 1 % at full coverage."""
    rows, labels = labelled()
    field = QIPF(bandwidth=10.0).fit(rows, labels)
    refused = "About 100% of the calibration rows are training rows"
    with pytest.raises(QIPFInputError, match=refused):
        field.calibrate(rows, labels)
    with pytest.raises(QIPFInputError, match="training rows"):
        field.calibrate(rows[:5], labels[:5])
    # scored in other batches: the last digits differ
    noise = 1 + np.random.default_rng(1).normal(scale=2e-7, size=rows.shape)
    with pytest.raises(QIPFInputError, match="training rows"):
        field.calibrate(rows * noise, labels)
    half = np.concatenate([rows[:100], make_logits(100, seed=1).numpy()])
    with pytest.raises(QIPFInputError, match="About 50%"):
        field.calibrate(half)
    assert field.calibration_ is None
    few = np.concatenate([rows[:2], make_logits(100, seed=1).numpy()])
    assert len(field.calibrate(few).calibration_) == 102


def test_calibration_on_repeated_rows_warns(tmp_path):
    rows, labels = labelled()
    field = QIPF(bandwidth=10.0).fit(rows, labels)
    new, truth = labelled(seed=1)
    twice = np.concatenate([new, new]), np.concatenate([truth, truth])
    field.calibrate(new, truth)
    field.save(tmp_path / "field.qipf")
    for model in (field, qipf.load(tmp_path / "field.qipf")):
        with pytest.warns(QIPFScoreWarning, match="300 of 600 calibration rows equal others"):
            model.calibrate(*twice)
        assert len(model.calibration_) == 600


def test_a_sample_of_many_training_rows_is_enough_to_notice():
    rows = make_logits(40_000, dimension=3).numpy()
    field = QIPF(bandwidth=5.0, max_centers=500, reduction="random").fit(rows)
    assert len(field._rows.sample) == 10_500
    with pytest.raises(QIPFInputError, match="training rows"):
        field.calibrate(rows[:500])
    field.calibrate(make_logits(500, dimension=3, seed=1).numpy())


def test_long_rows_of_other_batches_are_noticed_too():
    rows = make_logits(200, dimension=600)
    with pytest.warns(QIPFScoreWarning, match="so many classes"):
        field = QIPF(bandwidth=50.0).fit(rows)
    noise = 1 + 2e-7 * torch.randn(200, 600, generator=torch.Generator().manual_seed(0))
    with pytest.raises(QIPFInputError, match="training rows"):
        field.calibrate(rows * noise)


def test_a_wrapped_network_refuses_its_training_inputs():
    torch.manual_seed(0)
    net, x = torch.nn.Linear(4, 10), make_logits(200, dimension=4)
    model = qipf.wrap(net, field=QIPF(bandwidth=5.0)).fit([x[:100]])
    with pytest.raises(QIPFInputError, match="training rows"):
        model.calibrate([x[:100]])
    assert len(model.calibrate([x[100:]]).calibration_) == 100


def test_three_rows_warn():
    with pytest.warns(QIPFScoreWarning, match="rests on 3 rows only"):
        QIPF().fit(make_logits(3))


def test_a_bandwidth_at_the_edge_of_the_search_warns(rng):
    rows = np.repeat(make_logits(40).numpy(), 5, axis=0) + rng.normal(scale=1e-3, size=(200, 10))
    with pytest.warns(QIPFScoreWarning, match=EDGE):
        field = QIPF().fit(rows)  # near duplicates: the narrower, the more likely
    assert field.bandwidth_factor_ == 0.25
    QIPF(bandwidth="silverman").fit(rows)
    QIPF(bandwidth=float(field.bandwidth_)).fit(rows)


def test_a_softening_above_the_wave_function_warns():
    with pytest.warns(QIPFScoreWarning, match=r"softening=0\.1 exceeds the wave function"):
        QIPF(bandwidth=3.0, softening=0.1).fit(make_logits(100))
    QIPF(bandwidth=8.0, softening=0.1, normalization="peak").fit(make_logits(100))


# ---------------------------------------------------------------------- rounding


def test_a_large_energy_ties_no_scores():
    """With an energy of 6,654, 2,500 held-out scores became 94 values; p ≤ .1 held for 5 %."""
    field = QIPF(bandwidth=6.0, normalization="peak", fallback=False).fit(make_logits(500).numpy())
    field.energies_ = field.energies_ + 6654.0
    field._engines.clear()
    field.calibrate(make_logits(2500, seed=1).numpy())
    scores = field.calibration_
    assert scores.scores.min() > 6000
    assert len(np.unique(scores.rounded_scores)) > 1900
    later = make_logits(4000, seed=2).numpy()
    assert (field.p_values(later) <= 0.1).mean() == pytest.approx(0.1, abs=0.02)
    wrong = np.arange(2500) % 50 == 0
    field.calibrate(make_logits(2500, seed=1).numpy(), wrong=wrong)
    rule = field.accept_rule(min_coverage=0.9)
    assert rule.accepted == pytest.approx(0.91 * 2500, abs=30)
    assert field.accepts(later).mean() == pytest.approx(0.91, abs=0.02)
    restored = pickle_free_copy(field)
    np.testing.assert_array_equal(restored.p_values(later), field.p_values(later))
    np.testing.assert_array_equal(restored.accepts(later), field.accepts(later))


@pytest.mark.parametrize("rows", [2000, 20_000])
def test_one_logit_cannot_be_calibrated_on_its_training_rows(rng, rows):
    warnings.simplefilter("ignore", QIPFScoreWarning)
    z = rng.normal(scale=4, size=(rows, 1))
    labels = (z[:, 0] + rng.logistic(size=rows) > 0).astype(int)
    field = QIPF(bandwidth=1.0, max_centers=500, reduction="random").fit(z, labels)
    with pytest.raises(QIPFInputError, match="training rows"):
        field.calibrate(z[:1500], labels[:1500])
    fresh = rng.normal(scale=4, size=(10_000, 1))  # many are equal to a training row by chance
    assert len(field.calibrate(fresh).calibration_) == 10_000


def test_fresh_rows_of_one_number_are_not_refused(rng):
    """Of 1,000 known rows of a million, chance matches must not be scaled up."""
    known, fresh = (torch.from_numpy(rng.normal(size=(n, 1))) for n in (1000, 10_000))
    for columns in (known, torch.cat([-known / 2, known / 2], 1)):
        given = fresh if columns.shape[1] == 1 else torch.cat([-fresh / 2, fresh / 2], 1)
        for total in (1000, 40_000, 1_000_000):
            refuse_training_rows(given, TrainingSample(columns, total))


def test_a_loaded_field_knows_its_training_rows(tmp_path):
    warnings.simplefilter("ignore", QIPFScoreWarning)
    rows = make_logits(300)
    labels = rows.argmax(1)
    QIPF(bandwidth=5.0).fit(rows, labels).save(tmp_path / "field.qipf")
    loaded = qipf.load(tmp_path / "field.qipf")
    with pytest.raises(QIPFInputError, match="training rows"):
        loaded.calibrate(rows, labels)
    loaded.calibrate(make_logits(300, seed=1))


def test_with_too_few_errors_to_measure_the_entropy_is_used(rng):
    rows = make_logits(60, dimension=3)
    labels = rows.argmax(1)
    with pytest.warns(QIPFScoreWarning, match="too few errors and near errors"):
        field = QIPF().fit(rows, labels)
    assert field.score_ == "entropy"


def test_a_field_of_probabilities_takes_probabilities_only(rng):
    warnings.simplefilter("ignore", QIPFScoreWarning)
    p = torch.softmax(make_logits(300), 1)
    field = QIPF(bandwidth=0.3).fit(p)
    with pytest.raises(QIPFInputError, match="fitted on class probabilities"):
        field.uncertainty(make_logits(20, seed=1))
    other = QIPF(bandwidth=3.0).fit(make_logits(300))
    with pytest.warns(QIPFScoreWarning, match="class probabilities"):
        other.uncertainty(p[:50])
    with pytest.warns(QIPFScoreWarning, match="probability of class 1"):
        QIPF(bandwidth=0.1).fit(p[:, :1], (p[:, 0] > 0.5).long())


def test_labels_from_one_are_told_what_to_do():
    rows = make_logits(100)
    labels = torch.arange(100) % 10 + 1
    with pytest.warns(QIPFWarning, match="subtract 1"):
        QIPF(bandwidth=5.0).fit(rows, labels)
