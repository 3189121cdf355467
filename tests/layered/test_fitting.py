"""Which models fit their centres, and from which fields."""

import pytest

from qipf import FeatureQIPF
from qipf.layered import fitting
from tests.layered.feature_examples import TRAIN


def test_which_centres_are_fitted():
    def fits(examples, classes, **options):
        return fitting.fits_centers(FeatureQIPF(**options), examples, classes)

    assert fits(60_000, 10)
    assert not fits(1000, 10)  # the examples are the centres
    assert not fits(60_000, 1000)  # clusters
    assert fits(1000, 10, max_centers=999)
    assert not fits(1000, 10, max_centers=999, reduction="coreset")
    assert not fits(1000, 10, max_centers=999, reduction="random")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"max_centers": 30}, (256, None)),
        ({"max_centers": 320}, (128, None)),  # the examples are the centres
        ({"max_centers": 30, "reduction": "coreset"}, (128, 30)),
        ({"max_centers": 30, "reduction": "random"}, (128, None)),
    ],
)
def test_dimensions_and_centres_before_a_fit(options, expected, monkeypatch):
    given = []

    def fields(examples, tuning, sites, classes, *sizes):
        given.append(sizes[:2])
        return {}

    monkeypatch.setattr(fitting, "chosen_fields", fields)
    model = FeatureQIPF(**options).fit(*TRAIN)
    assert given == [expected]
    assert (model.layers_, model.lengths_.sites, model.weights_.tolist()) == ((), (), [1.0])
