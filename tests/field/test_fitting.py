"""Building a field: the rows and labels that choose its bandwidth, and the rows it is made of."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from qipf import QIPF
from qipf.calibration.detection import ErrorDetection
from qipf.field import fitting
from qipf.field.bandwidth import FACTORS, Choice
from tests.conftest import make_logits


@pytest.fixture
def seen(monkeypatch):
    """What the last choice of a bandwidth was made by; it chooses the factor 2."""
    found = {}

    def spy(splits, nearness, **options):
        found.update(splits=splits, nearness=nearness)
        rows = sum(len(split.held_out) for split in splits)
        return Choice(2.0, "likelihood", {}, np.arange(float(rows)), None)

    monkeypatch.setattr("qipf.field.fitting.choose_factor", spy)
    return found


def keys(rows):
    return [row.tobytes() for row in np.asarray(rows)]


def test_ten_rows_are_the_fewest_to_split():
    rows = torch.arange(20.0).reshape(10, 2)
    for count in (9, 10):
        sampled = SimpleNamespace(count=count, sample=rows[:count], max_centers=100)
        splits, held_out = fitting._splits(sampled, torch.device("cpu"))
        assert (len(splits), len(held_out)) == ((5, 10) if count == 10 else (0, 0))


def test_few_rows_are_held_out_in_turn(seen, train):
    labels = train.argmax(1)
    labels[::7] = (labels[::7] + 1) % 10
    field = QIPF(max_centers=300, reduction="random").fit(train, labels)
    assert [len(split.held_out) for split in seen["splits"]] == [160] * 5
    held_out = [key for split in seen["splits"] for key in keys(split.held_out)]
    assert sorted(held_out) == sorted(keys(train))  # each row once
    for split in seen["splits"]:
        assert split.inside.centers.shape == (300, 10)
        assert not set(keys(split.inside.centers)) & set(keys(split.held_out))
    assert field.centers_.shape == (300, 10)
    # the nearness to an error is that of the held-out rows
    leads = np.diff(np.sort(train, 1)[:, -2:])[:, 0]
    nearness = np.where(train.argmax(1) != labels, np.inf, -leads)
    place = dict(zip(keys(train), nearness, strict=True))
    np.testing.assert_array_equal(seen["nearness"], [place[key] for key in held_out])


def test_of_more_rows_a_part_is_held_out_once(seen):
    rows = make_logits(2600).numpy()
    labels = rows.argmax(1)
    labels[::7] = (labels[::7] + 1) % 10
    field = QIPF(max_centers=1000, reduction="random").fit(rows, labels)
    (split,) = seen["splits"]
    inside = set(keys(split.inside.centers))
    assert len(inside) == 1000
    assert len(split.held_out) == 1600
    assert not inside & set(keys(split.held_out))
    # with rows to spare, none of the held-out ones enters the final field either
    assert set(keys(field.centers_)) == inside
    leads = np.diff(np.sort(rows, 1)[:, -2:])[:, 0]
    nearness = np.where(rows.argmax(1) != labels, np.inf, -leads)
    place = dict(zip(keys(rows), nearness, strict=True))
    np.testing.assert_array_equal(seen["nearness"], [place[key] for key in keys(split.held_out)])


def test_a_coreset_is_made_without_the_held_out_rows_and_then_with_them(seen):
    rows = make_logits(2600).numpy()
    field = QIPF(max_centers=100, reduction="coreset").fit(rows)
    (split,) = seen["splits"]
    held = set(keys(split.held_out))
    assert len(held) == 520
    others = np.stack([row for row in rows if row.tobytes() not in held]).astype(np.float64)
    # the width is chosen by exactly the other rows
    weights = split.inside.log_weights.exp().numpy()
    centers = split.inside.centers.double().numpy()
    np.testing.assert_allclose(weights @ centers, others.mean(0), atol=1e-5)
    between = weights @ (centers - others.mean(0)) ** 2
    variance = between.mean() + split.inside.spread**2
    assert variance == pytest.approx(others.var(0).mean(), rel=1e-5)
    assert field.centers_.shape == (100, 10)
    # the width is that of all rows
    silverman = rows.std(0, dtype=np.float64).mean() * (4 / (12 * 2600)) ** (1 / 14)
    assert field.bandwidth_ == pytest.approx(2 * silverman, rel=1e-5)


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
    # errors alone do not show what was near
    for rows, given in (
        (train, {"wrong": np.zeros(800, bool)}),
        (train[:90], {"y": labels[:90]}),  # a tenth of 90 held-out rows is too few
    ):
        by_flags, plain = QIPF().fit(rows, **given), QIPF().fit(rows)
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


@pytest.mark.parametrize(
    ("columns", "count", "deficit", "score"),
    [
        (3, 1000, 0.125, "modes"),  # not more than the largest deficit
        (3, 1000, 0.1875, "entropy"),
        (3, 4000, 0.125, "modes"),  # more rows do not allow more
        (3, 4000, 0.1875, "entropy"),
        (3, 500, 0.0625, "modes"),  # half of the rows allow half
        (3, 500, 0.125, "entropy"),
        (3, 1000, -0.25, "modes"),
        (2, 1000, -0.25, "entropy"),  # two classes always
    ],
)
def test_the_entropy_replaces_a_field_that_is_far_behind(
    columns, count, deficit, score, monkeypatch
):
    found = ErrorDetection(200, 50, 0.5, 0.5 + deficit)
    monkeypatch.setattr(fitting, "LARGEST_DEFICIT", 0.125)
    monkeypatch.setattr(
        fitting, "_set_detection", lambda field, *_: setattr(field, "detection_", found)
    )
    rows = SimpleNamespace(
        sample=torch.zeros(5, columns), sample_nearness=lambda: np.zeros(5), are_logits=True,
        count=count,
    )  # fmt: skip
    choice = SimpleNamespace(wanted=np.ones(5, bool))
    for fallback in (True, False):
        field = QIPF(fallback=fallback)
        fitting._check_score(field, rows, rows.sample, choice)
        assert field.score_ == (score if fallback else "modes")
        used = found.entropy if field.score_ == "entropy" else found.uncertainty
        assert field.detection_.uncertainty == used
