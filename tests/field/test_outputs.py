"""Fewer centres, nearly the same scores; rows at which an exported field is checked."""

import numpy as np
import pytest
import torch

import qipf
from qipf import QIPF, QIPFInputError
from tests.conftest import make_logits


@pytest.fixture(scope="module")
def field():
    return QIPF(orders=(1, 3)).fit(make_logits(2000).numpy())


def test_the_scores_are_estimates_of_the_fields_own():
    flat = QIPF(orders=(1, 3)).fit(make_logits(2000, dimension=2).numpy())
    rows = make_logits(300, dimension=2, seed=4).numpy()
    true = flat.uncertainty(rows)
    errors = [
        np.abs(flat.condensed(size).uncertainty(rows) - true).mean() / true.std()
        for size in (30, 200, 1000)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.02


def test_mass_and_mean_survive_and_what_was_learned_stays(field):
    small = field.condensed(100)
    assert small.centers_.shape == (100, 10)
    assert small.centers_.dtype == field.centers_.dtype
    shares = np.exp(small.log_weights_)
    assert shares.sum() == pytest.approx(1)
    np.testing.assert_allclose(shares @ small.centers_, field.centers_.mean(0), atol=1e-4)
    assert small.spread_ > field.spread_ == 0
    for name in ("bandwidth_", "offset_", "ground_energy_", "n_samples_seen_", "n_features_in_"):
        assert getattr(small, name) == getattr(field, name)
    assert np.array_equal(small.energies_, field.energies_)
    assert len(field.centers_) == 2000


def test_twice_condensed_keeps_the_weights_and_adds_the_spreads(field):
    once = field.condensed(400)
    twice = once.condensed(100)
    shares = np.exp(twice.log_weights_)
    np.testing.assert_allclose(shares @ twice.centers_, field.centers_.mean(0), atol=1e-4)
    assert twice.spread_ > once.spread_


def test_enough_room_changes_nothing(field):
    assert field.condensed(2000) is field


def test_it_can_be_saved(field, tmp_path):
    small = field.condensed(100)
    qipf.save(small, tmp_path / "small.qipf")
    rows = make_logits(5).numpy()
    loaded = qipf.load(tmp_path / "small.qipf")
    assert np.array_equal(loaded.uncertainty(rows), small.uncertainty(rows))


def test_no_centres_are_refused(field):
    with pytest.raises(QIPFInputError, match="max_centers must be an integer of at least 1"):
        field.condensed(0)


def test_an_exported_field_is_checked_at_its_centres_and_far_from_them(
    train, monkeypatch, tmp_path
):
    rows = []
    monkeypatch.setattr("qipf.field.outputs.traced", lambda graph, inputs: rows.extend(inputs))
    monkeypatch.setattr("qipf.field.outputs.write_onnx", lambda *_: None)
    field = QIPF(bandwidth=3.0).fit(train)
    field.export_onnx(tmp_path / "field.onnx", check=False)
    origin, centers = field.graph()[1].origin, torch.as_tensor(field.centers_)
    half = len(rows[0]) // 2
    torch.testing.assert_close(rows[0][:half], centers[:half].to(rows[0]))
    from_origin = rows[0].double() - origin.double()
    torch.testing.assert_close(from_origin[half:], 3 * from_origin[:half], rtol=1e-4, atol=1e-4)
