"""Products of rows with rows, by oneDNN and by torch's own."""

import pytest
import torch

from qipf.field.engines import products as subject
from qipf.field.engines.products import product

WIDE = 2 * subject.NARROWEST


def numbers(*shape, seed=0, **options):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), **options)


@pytest.fixture
def calls(monkeypatch):
    """Shapes that oneDNN is called with, on any processor; all products are large enough."""
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("torch has no oneDNN")
    found, compute = [], torch.ops.mkldnn._linear_pointwise

    def counted(rows, others, *options):
        found.append((tuple(rows.shape), tuple(others.shape)))
        return compute(rows, others, *options)

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", counted)
    monkeypatch.setattr(subject, "_installed", lambda: True)
    monkeypatch.setattr(subject, "FEWEST", 0)
    return found


@pytest.mark.parametrize("count", [0, 1, 7, 200])
@pytest.mark.parametrize("dimension", [1, 20, 128])
def test_the_values_are_those_of_a_product_in_float64(calls, count, dimension):
    rows, others = numbers(count, dimension), numbers(WIDE, dimension, seed=1)
    found = product(rows, others)
    assert calls == [((count, dimension), (WIDE, dimension))]
    assert (found.dtype, found.shape) == (torch.float32, (count, WIDE))
    torch.testing.assert_close(found.double(), rows.double() @ others.double().T, rtol=0, atol=1e-4)


def test_rows_that_are_views(calls):
    rows, others = numbers(30, 9), numbers(30, WIDE, seed=1)
    for view in (rows.T, rows.T[::2], rows[:1].T.expand(9, 30)):
        wanted = view.double() @ others.double()
        torch.testing.assert_close(product(view, others.T).double(), wanted, rtol=0, atol=1e-4)
    assert len(calls) == 3


def test_parts_of_a_matrix_are_copied(calls, monkeypatch):
    contiguous, compute = [], torch.ops.mkldnn._linear_pointwise

    def seen(rows, others, *options):
        contiguous.append(others.is_contiguous())
        return compute(rows, others, *options)

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", seen)
    rows, others = numbers(30, 9), numbers(WIDE, 20, seed=1)
    wanted = rows.double() @ others[:, 3:12].double().T
    torch.testing.assert_close(product(rows, others[:, 3:12]).double(), wanted, rtol=0, atol=1e-4)
    assert len(calls) == 1
    assert contiguous == [True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_bias_is_added_to_each_row(calls, dtype):
    rows, others = numbers(30, 9).to(dtype), numbers(WIDE, 9, seed=1).to(dtype)
    bias = numbers(WIDE, seed=2).to(dtype)
    found = product(rows, others, bias)
    torch.testing.assert_close(found, rows @ others.T + bias, rtol=0, atol=1e-4)
    assert len(calls) == (dtype == torch.float32)


def test_nan_stays_in_its_row(calls):
    rows, others = numbers(3, 8), numbers(WIDE, 8, seed=1)
    rows[1, 2] = torch.nan
    assert product(rows, others).isnan().all(1).tolist() == [False, True, False]
    assert len(calls) == 1


def test_gradients_and_float64_are_left_to_torch(calls):
    rows, others = numbers(3, 8), numbers(WIDE, 8, seed=1)
    wanted = rows.double() @ others.double().T
    torch.testing.assert_close(product(rows.double(), others.double()), wanted)
    rows.requires_grad_()
    product(rows, others).sum().backward()
    torch.testing.assert_close(rows.grad, others.sum(0).expand(3, -1))
    assert calls == []
    with torch.no_grad():
        product(rows, others)
    assert len(calls) == 1


def test_few_others_and_other_devices_are_left_to_torch(calls, monkeypatch):
    rows, others = numbers(3, 8), numbers(WIDE, 8, seed=1)
    assert product(rows, others[: subject.NARROWEST - 1]).shape == (3, subject.NARROWEST - 1)
    assert product(rows.to("meta"), others.to("meta")).shape == (3, WIDE)
    with monkeypatch.context() as patch:
        patch.setattr(torch.backends.mkldnn, "enabled", False)
        product(rows, others)
    monkeypatch.setattr(subject, "FEWEST", 3 * 8 * WIDE + 1)
    product(rows, others)
    assert calls == []
    monkeypatch.setattr(subject, "FEWEST", 3 * 8 * WIDE)
    product(rows, others)
    assert len(calls) == 1


def test_a_graph_has_a_plain_product(calls):
    class Product(torch.nn.Module):
        def forward(self, rows, others):
            return product(rows, others)

    inputs = numbers(3, 8), numbers(WIDE, 8, seed=1)
    program = torch.export.export(Product(), inputs)
    assert "mkldnn" not in str(program.graph)
    torch.testing.assert_close(program.module()(*inputs), inputs[0] @ inputs[1].T)
    assert calls == []


@pytest.mark.parametrize(
    "other",
    [
        None,  # not there
        lambda rows, others: rows @ others.T,  # fewer arguments
        lambda rows, others, *options: rows @ others.T + 1,  # something else
    ],
)
def test_another_version_of_onednn_is_not_used(other, monkeypatch):
    class Operations:
        if other is not None:
            _linear_pointwise = staticmethod(other)

    monkeypatch.setattr(torch.ops, "mkldnn", Operations())
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    assert not subject._installed.__wrapped__()


def test_onednn_is_used_where_it_is_there(calls, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    torch.set_default_dtype(torch.float64)
    try:
        assert subject._installed.__wrapped__()
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_trace_has_a_plain_product(calls):
    inputs = numbers(3, 8), numbers(WIDE, 8, seed=1)
    traced = torch.jit.trace(product, inputs, check_trace=False)
    assert "mkldnn" not in str(traced.graph)
    torch.testing.assert_close(traced(*inputs), inputs[0] @ inputs[1].T)
    assert calls == []


@pytest.mark.parametrize(("available", "vectors"), [(False, "AVX512"), (True, "AVX2")])
def test_without_onednn_or_long_vectors_it_is_not_used(available, vectors, monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: available)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: vectors)
    assert not subject._installed.__wrapped__()
