"""The field as a graph, run by PyTorch itself: the engines' numbers from plain operations."""

import copy
import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qipf import QIPF, QIPFInputError
from qipf.field.engines.base import CEILING, Moments
from qipf.field.graph import FARTHEST_CENTER, FieldGraph
from qipf.field.potential import NORMALIZATIONS, bare_modes
from tests.conftest import make_logits, naive_moments

ORDERS = (1, 2, 3, 4, 5, 16)


def queries(seed=3):
    inside = make_logits(60, seed=seed).double()
    return torch.cat([inside, inside * 1.5, inside * 100, inside * 1e9])


@pytest.mark.slow
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("softening", [0.0, 0.1])
@pytest.mark.parametrize(
    "reduced", [{}, {"max_centers": 70, "reduction": "coreset"}], ids=["rows", "coreset"]
)
def test_it_gives_the_fields_modes(softening, reduced, normalization):
    options = {"orders": ORDERS, "softening": softening, "normalization": normalization}
    field = QIPF(**options, **reduced).fit(make_logits(400))
    judged = FieldGraph(field)(queries())
    torch.testing.assert_close(judged["modes"], field.modes(queries()), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(
        judged["uncertainty"], field.uncertainty(queries()), rtol=1e-9, atol=1e-9
    )
    assert list(judged) == ["uncertainty", "modes", "novelty"]
    torch.testing.assert_close(judged["novelty"], field.novelty(queries()), rtol=1e-9, atol=1e-9)
    assert judged["modes"].dtype == judged["uncertainty"].dtype == torch.float64


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    dimension=st.integers(1, 12),
    offset=st.floats(-1e4, 1e4),
    bandwidth=st.floats(0.2, 20),
    normalization=st.sampled_from(NORMALIZATIONS),
)
def test_it_gives_the_naive_sums(seed, dimension, offset, bandwidth, normalization):
    centers = make_logits(40, dimension=dimension, offset=offset, seed=seed).double()
    field = QIPF(orders=(1, 3), bandwidth=bandwidth, normalization=normalization).fit(centers)
    rows = make_logits(9, dimension=dimension, offset=offset, seed=seed + 1).double() * 1.1
    naive = (torch.from_numpy(part) for part in naive_moments(rows, centers, bandwidth))
    bare = bare_modes(Moments(*naive, dimension=dimension), bandwidth, (1, 3), 0.0, normalization)
    expected = bare + torch.from_numpy(field.energies_)
    torch.testing.assert_close(FieldGraph(field)(rows)["modes"], expected, rtol=1e-6, atol=1e-6)


def test_float32_rows_are_judged_in_float64():
    field = QIPF(orders=ORDERS).fit(make_logits(400))
    rows = make_logits(50, seed=5)
    assert torch.equal(FieldGraph(field)(rows)["modes"], FieldGraph(field)(rows.double())["modes"])
    assert FieldGraph(field).centers.dtype == torch.float32  # half the file


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_no_number_is_told_and_never_accepted(bad):
    field = QIPF().fit(make_logits(100))
    rows = make_logits(3)
    rows[1, 4] = bad
    judged = FieldGraph(field, threshold=1e9)(rows)
    assert judged["uncertainty"].isnan().tolist() == [False, True, False]
    assert judged["modes"].isnan().all(1).tolist() == [False, True, False]
    assert judged["accepted"].tolist() == [True, False, True]


def test_the_threshold_itself_is_accepted():
    field = QIPF().fit(make_logits(100))
    rows = make_logits(20, seed=1)
    scores = FieldGraph(field)(rows)["uncertainty"]
    threshold = float(scores.sort().values[7])
    assert torch.equal(FieldGraph(field, threshold)(rows)["accepted"], scores <= threshold)
    novelty = FieldGraph(field)(rows)["novelty"]
    limit = float(novelty.median())
    found = FieldGraph(field, threshold, limit)(rows)["accepted"]
    assert torch.equal(found, (scores <= threshold) & (novelty <= limit))
    assert 0 < found.sum() < (scores <= threshold).sum()
    assert not FieldGraph(field, -math.inf)(rows)["accepted"].any()


def test_the_farthest_numbers_stay_finite():
    field = QIPF().fit(make_logits(100).double())
    rows = torch.full((1, 10), 1e300, dtype=torch.float64)
    modes = FieldGraph(field)(rows)["modes"]
    torch.testing.assert_close(modes, field.modes(rows))
    assert modes.abs().max() <= 2 * CEILING


def test_an_empty_batch():
    judged = FieldGraph(QIPF().fit(make_logits(100)), threshold=1.0)(torch.zeros(0, 10))
    assert {name: tuple(part.shape) for name, part in judged.items()} == {
        "uncertainty": (0,),
        "modes": (0, 4),
        "novelty": (0,),
        "accepted": (0,),
    }


@pytest.mark.slow
def test_numbers_enter_the_graph_exactly():
    """Python numbers would be written as float32; as float64 tensors they keep their digits."""
    field = QIPF(orders=(2, 3), bandwidth=math.pi).fit(make_logits(50))
    program = torch.export.export(FieldGraph(field), (make_logits(4),), strict=False)
    plain = [
        argument
        for node in program.graph.nodes
        for argument in (*node.args, *node.kwargs.values())
        if isinstance(argument, float)
    ]
    assert plain == []
    assert math.pi in [float(part) for part in program.constants.values() if part.numel() == 1]


def test_a_kernel_too_narrow_for_plain_sums_is_refused():
    rows = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    message = (
        "The field's centres lie up to 5e+05 bandwidths from their mean; beyond 1e+05 an exported "
        "graph loses digits. Fit with a wider bandwidth."
    )
    with pytest.raises(QIPFInputError, match=re.escape(message)):
        FieldGraph(QIPF(bandwidth=1e-6).fit(rows))
    narrow = QIPF(bandwidth=0.5 / FARTHEST_CENTER).fit(rows)
    near = rows + narrow.bandwidth_ / 3
    torch.testing.assert_close(
        FieldGraph(narrow)(near)["uncertainty"], narrow.uncertainty(near), rtol=1e-4, atol=1e-4
    )


def test_the_field_is_left_as_it_was():
    field = QIPF().fit(make_logits(100))
    before = copy.deepcopy(field)
    graph = FieldGraph(field)
    graph.centers.zero_(), graph.energies.zero_()
    assert np.array_equal(field.centers_, before.centers_)
    assert np.array_equal(field.energies_, before.energies_)
