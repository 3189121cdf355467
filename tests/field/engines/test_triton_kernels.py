"""The fused CUDA kernel, run on the CPU by Triton's interpreter and compiled for a GPU."""

import math

import numpy as np
import pytest
import torch

from qipf.field.bandwidth import silverman
from qipf.field.engines import triton as subject
from qipf.field.engines.base import Moments
from qipf.field.engines.fused import averaged_moments
from qipf.field.potential import curvature
from tests.conftest import make_logits
from tests.field.conftest import moments

pytest.importorskip("triton")
pytestmark = pytest.mark.slow


def averages_there(queries, keys, bias, programs=4):
    subject.PROGRAMS_PER_PROCESSOR = programs
    found = subject.fused_averages(queries, subject.pack_centers(keys, bias))
    return [value.double().numpy() for value in found]


def moments_there(queries, *field):
    return [value.numpy() for value in subject.TritonEngine(*field)(queries)[:3]]


def float32_moments_there(queries, *field):
    """Moments by the kernel alone, without the recomputation of inexact rows."""
    engine = subject.TritonEngine(*field)
    scaled = (queries.double() - engine.origin) / engine.bandwidth
    found = averaged_moments(scaled, engine.averages(scaled.float()), engine.bandwidth)
    return [value.numpy() for value in found[:3]]


def make_scores(count, centers, dimension, weighted=False, spread=2.0):
    """Queries, keys and bias in bandwidths."""
    generator = torch.Generator().manual_seed(count + 1000 * dimension)
    keys = spread * torch.randn(centers, dimension, generator=generator)
    queries = 1.5 * spread * torch.randn(count, dimension, generator=generator)
    log_weights = torch.zeros(centers)
    if weighted:
        log_weights = 3 * torch.randn(centers, generator=generator)
    log_weights = log_weights - log_weights.logsumexp(0)
    return queries, keys, log_weights - keys.square().sum(1) / 2


def naive_averages(queries, keys, bias):
    """The definitions, in float64."""
    q_i, k_j, bias = (value.double().numpy() for value in (queries, keys, bias))
    score_ij = q_i @ k_j.T + bias
    top = score_ij.max(1, keepdims=True)
    weight_ij = np.exp(score_ij - top)
    total = weight_ij.sum(1, keepdims=True)
    share_ij = weight_ij / total
    lse = (top + np.log(total))[:, 0]
    return lse, share_ij @ k_j, share_ij @ (k_j**2).sum(1)


def assert_float32_accuracy(found, queries, keys, bias):
    """Within the kernel's error model: 2^-20 of |q||k| in a score, hence in every average."""
    lse, mean, square = naive_averages(queries, keys, bias)
    reach = keys.double().norm(dim=1).max().item()
    loss = 2.0**-20 * (queries.double().norm(dim=1).numpy() * reach + bias.abs().max().item() + 1)
    assert (abs(found[0] - lse) <= loss).all()
    assert (abs(found[1] - mean) <= loss[:, None] * max(reach, 1e-30)).all()
    assert (abs(found[2] - square) <= loss * max(reach**2, 1e-30)).all()


@pytest.mark.parametrize(
    ("dimension", "weighted"),
    [(1, False), (3, True), (10, True), (11, False), (16, True), (17, True), (128, True)],
)
def test_averages_are_their_definitions(interpreter, dimension, weighted):
    scores = make_scores(70, 150, dimension, weighted)
    assert_float32_accuracy(interpreter(averages_there, *scores), *scores)


@pytest.mark.parametrize("dimension", [4, 20])
@pytest.mark.parametrize(
    ("count", "centers"), [(1, 1), (64, 63), (64, 64), (1, 65), (65, 128), (65, 129)]
)
def test_any_number_of_queries_and_centres(interpreter, dimension, count, centers):
    scores = make_scores(count, centers, dimension)
    assert_float32_accuracy(interpreter(averages_there, *scores), *scores)


@pytest.mark.parametrize("dimension", [10, 20])
def test_centres_split_among_programs_give_the_same(interpreter, dimension):
    scores = make_scores(5, 1100, dimension, weighted=True)
    whole, shared = (interpreter(averages_there, *scores, programs) for programs in (1, 4))
    assert_float32_accuracy(shared, *scores)
    for one, other in zip(whole, shared, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=2e-6)


def test_no_queries(interpreter):
    _, keys, bias = make_scores(1, 10, 3)
    found = interpreter(averages_there, torch.empty(0, 3), keys, bias)
    assert [value.shape for value in found] == [(0,), (0, 3), (0,)]


@pytest.mark.parametrize("dimension", [10, 20])
def test_far_queries(interpreter, dimension):
    queries, keys, bias = make_scores(64, 150, dimension)
    queries *= torch.logspace(0, 9, 64)[:, None]
    found = interpreter(averages_there, queries, keys, bias)
    assert_float32_accuracy(found, queries, keys, bias)
    assert found[0].max() > 1e9


@pytest.mark.parametrize("dimension", [10, 20])
@pytest.mark.parametrize("size", [0.0, 1e-20, 1e12])
def test_keys_of_any_size(interpreter, dimension, size):
    queries, keys, _ = make_scores(64, 150, dimension)
    keys, queries = size * keys, queries / max(size, 1e-4)
    bias = -keys.square().sum(1) / 2 - math.log(150)
    found = interpreter(averages_there, queries, keys, bias)
    assert_float32_accuracy(found, queries, keys, bias)


@pytest.mark.parametrize("dimension", [10, 20])
def test_dimensions_of_very_different_size(interpreter, dimension):
    queries, keys, _ = make_scores(64, 150, dimension)
    sizes = torch.logspace(-6, 1, dimension)
    keys, queries = keys * sizes, queries * sizes
    bias = -keys.square().sum(1) / 2 - math.log(150)
    found = interpreter(averages_there, queries, keys, bias)
    assert_float32_accuracy(found, queries, keys, bias)


@pytest.mark.parametrize("dimension", [10, 20])
def test_one_centre_many_times(interpreter, dimension):
    queries, keys, _ = make_scores(8, 1, dimension)
    bias = -keys.square().sum(1) / 2
    many = interpreter(averages_there, queries, keys.repeat(200, 1), bias.repeat(200))
    one = interpreter(averages_there, queries, keys, bias)
    np.testing.assert_allclose(many[0], one[0] + math.log(200), rtol=1e-6, atol=2e-6)
    np.testing.assert_allclose(many[1], np.broadcast_to(keys, (8, dimension)), rtol=1e-6)
    np.testing.assert_allclose(one[2], float(keys.square().sum()), rtol=1e-6)


@pytest.mark.parametrize("dimension", [10, 20])
def test_a_row_out_of_range_is_nan_and_changes_no_other(interpreter, dimension):
    queries, keys, bias = make_scores(8, 100, dimension)
    queries[3, 1], queries[4, 1], queries[5, 1] = float("inf"), float("nan"), 3e38
    found = interpreter(averages_there, queries, keys, bias)
    assert not np.isfinite(found[0][[3, 4]]).any()
    others = [0, 1, 2, 6, 7]
    assert_float32_accuracy([part[others] for part in found], queries[others], keys, bias)


def errors(found, true, bandwidth):
    """Largest errors in log ρ and K, relative where these exceed one."""
    found = Moments(*map(torch.from_numpy, found), true.dimension)
    K, truth = curvature(found, bandwidth), curvature(true, bandwidth)
    log_error = (found.log_density - true.log_density).abs() / true.log_density.abs().clamp(min=1)
    return float(log_error.max()), float(((K - truth).abs() / truth.abs().clamp(min=1)).max())


@pytest.mark.parametrize("dimension", [10, 20])
def test_the_kernel_alone_is_accurate_on_logits(interpreter, dimension):
    centers = make_logits(2000, dimension=dimension)
    queries = make_logits(64, 7.0, 0.0, dimension, 1)
    bandwidth = silverman(centers)
    found = interpreter(float32_moments_there, queries, centers, bandwidth)
    true = moments(queries, centers, bandwidth, engine="reference")
    log_error, K_error = errors(found, true, bandwidth)
    assert log_error <= 1e-5
    assert K_error <= 1e-4


HARD = {
    "offset": (make_logits(300, offset=1e4), make_logits(64, offset=1e4, seed=1)),
    "tiny": (make_logits(300, spread=1e-3), make_logits(64, spread=1e-3, seed=1)),
    "huge": (make_logits(300, spread=1e3), make_logits(64, spread=1e3, seed=1)),
    "at the centres": (make_logits(300), make_logits(300)[:64]),
    "far": (make_logits(300), 1e3 * make_logits(64, seed=1)),
    "very far": (make_logits(300), 1e7 * make_logits(64, seed=1)),
    "centres beyond float32": (1e36 * make_logits(300), 1e36 * make_logits(64, seed=1)),
}


@pytest.mark.parametrize("factor", [1e-3, 1.0])
@pytest.mark.parametrize("case", HARD)
def test_the_engine_is_accurate_on_hard_data(interpreter, case, factor):
    centers, queries = HARD[case]
    bandwidth = factor * silverman(centers)
    log_weights = torch.linspace(-5, 0, 300)
    found = interpreter(moments_there, queries, centers, bandwidth, log_weights)
    true = moments(queries, centers, bandwidth, log_weights, engine="reference")
    log_error, K_error = errors(found, true, bandwidth)
    assert log_error <= 1e-4
    assert K_error <= 1e-3


@pytest.mark.parametrize("size", [1e20, 1e38])
def test_queries_beyond_float32_have_finite_moments(interpreter, size):
    centers, queries = make_logits(300), size * make_logits(8, seed=1).clamp(-3, 3)
    log_density, m1_squared, m2 = interpreter(moments_there, queries, centers, 0.1)
    distance = queries.double().square().sum(1).numpy()
    np.testing.assert_allclose(log_density, -distance / (2 * 0.1**2), rtol=1e-6)
    np.testing.assert_allclose(m1_squared, distance, rtol=1e-6)
    assert np.isfinite(m2).all()


def assembly(dimension):
    """Assembly of the kernel of this dimension for a Hopper GPU; compiling needs no GPU."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler import compile as compile_kernel

    packed = subject.pack_centers(torch.zeros(1, dimension), torch.zeros(1))
    kernel = packed.kernel
    constants = {name: value for name, value in packed.options.items() if name.isupper()}
    options = {name: value for name, value in packed.options.items() if name not in constants}
    pointers = [
        "*fp32",
        *(f"*{'fp16' if t.dtype == torch.float16 else 'fp32'}" for t in packed.tiles),
    ]
    kinds = [*pointers, "*fp64", "*fp32", "*fp32", *["i32"] * 7, "fp32", "fp32"]
    names = kernel.arg_names
    signature = dict(zip(names, kinds + ["constexpr"] * len(constants), strict=True))
    options["enable_fp_fusion"] = True
    # arrays from PyTorch start at multiples of 16 bytes
    aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(kinds) if kind[0] == "*"}
    fixed = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature, fixed, aligned)
    return compile_kernel(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]


def test_the_kernels_compile_for_hopper(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for dimension in (10, 128):
        found = assembly(dimension)
        assert "wgmma.mma_async" in found
        assert "ex2.approx.ftz.f32" in found  # one instruction per pair, not three


def test_weights_far_out_between_centres_of_like_distance(interpreter):
    centers = torch.tensor([[-1855.8, 2810.6, 2187.8], [159.3, -2261.3, 92.1]])
    query = torch.tensor([[-848.24902, 274.65091, 1139.94971]])
    _, m1_squared, m2 = interpreter(moments_there, query, centers, 1.0)
    assert m2 / 4 - m1_squared / 8 - 3 / 4 == pytest.approx(1_583_918.231, rel=1e-6)
