from __future__ import annotations

import torch

from qipf import QIPF
from qipf.bench.methods import CleanData, create


def test_it_is_the_estimator_over_the_training_logits(clean, shifted):
    method = create("qipf").fit(clean)
    field = QIPF(random_state=0).fit(clean.logits, clean.labels)
    torch.testing.assert_close(method.score(shifted), field.uncertainty(shifted.logits).double())
    assert method.field_.max_centers == 6000
    assert tuple(method.field_.orders) == (1, 2, 3, 4)
    assert method.field_.bandwidth == "cv"


def test_options_and_seed_reach_the_estimator(clean):
    seeded = CleanData(clean.network, clean.images, clean.labels, seed=4)
    options = {"orders": (1, 2), "bandwidth": 2.5, "max_centers": 50, "softening": 0.1}
    field = create("qipf", **options, engine="reference").fit(seeded).field_
    for name, value in options.items():
        assert getattr(field, name) == value
    assert field.engine == "reference"
    assert field.random_state == 4
    assert field.centers_.shape == (50, 10)
