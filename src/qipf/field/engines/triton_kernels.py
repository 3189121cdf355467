"""Device code of the fused CUDA kernel; `qipf.field.engines.triton` explains and launches it.

The module can be imported without Triton. Names ending in ``_ptr`` are arrays in device memory;
capitals are sizes fixed at compilation, all powers of two.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls

from __future__ import annotations  # without Triton its types have no names

from collections.abc import Callable
from importlib.util import find_spec
from inspect import signature
from typing import Any

INSTALLED = find_spec("triton") is not None
if INSTALLED:
    import triton
    import triton.language as tl

#: Arguments that vary from call to call, or from field to field.
_NOT_SPECIALIZED = frozenset(
    {"n_queries", "n_centers", "span", "d", "limit", "key_exponent", "bias_exponent"}
    | {"n", "stride", "classes", "columns", "layers", "most_slots"}
    | {"bands", "length", "width"}
)


def jit(function: Callable[..., Any]) -> Any:
    """The kernel, compiled once for all values of its sizes and scales."""
    if not INSTALLED:
        return function
    names = [name for name in signature(function).parameters if name in _NOT_SPECIALIZED]
    return triton.jit(function, do_not_specialize=names)


@jit
def _power_of_two(exponent):
    """2**exponent from its bits: zero below float32's range, infinity above."""
    exponent = tl.minimum(tl.maximum(exponent, -127), 128)
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@jit
def _row_exponents(x, limit):
    """Exponent that scales each row's largest entry to [2^14, 2^15), at most `limit`."""
    largest = tl.max(tl.abs(x), 1)
    return tl.minimum(141 - (largest.to(tl.int32, bitcast=True) >> 23), limit)


@jit
def _halves(x):
    high = x.to(tl.float16)
    return high, (x - high.to(tl.float32)).to(tl.float16)


@jit
def online_step(score, reference, top):
    """Weights 2^(s-r) of a block, the factor for the sums of earlier blocks, and the new r.

    r is the larger of the reference so far and `top`, the largest score of the block or near it.
    """
    raised = tl.maximum(reference, top)
    return tl.math.exp2(score - raised[:, None]), tl.math.exp2(reference - raised), raised


@jit
def _weights(score, scale, reference):
    """As `online_step`, with r 14 below the largest score so far.

    The largest weight is 2^14, and half precision can still represent weights of 2^-38 of that.
    """
    top = tl.max(score, 1) * scale
    below = top - 14.0
    # large float32 scores have steps of 8 and more: rounding to 16 below would overflow
    below = tl.where(top - below > 15.0, top, below)
    return online_step(score * scale[:, None], reference, below)


@jit
def _store(
    lse_ptr, mean_ptr, square_ptr, row, n_queries, d, column, reference, total, mean, square
):
    live = row < n_queries
    row += tl.program_id(1).to(tl.int64) * n_queries
    lse = (reference.to(tl.float64) + tl.math.log2(total).to(tl.float64)) * 0.6931471805599453
    tl.store(lse_ptr + row, lse, mask=live)
    tl.store(square_ptr + row, square, mask=live)
    kept = live[:, None] & (column < d)[None, :]
    tl.store(mean_ptr + row[:, None] * d + column[None, :], mean, mask=kept)


@jit
def packed_kernel(
    query_ptr,  # (Q, d) float32
    key_ptr,  # (N, KEYS) [k_h, k_l, k_h, bias_h, bias_l, 0...]
    value_ptr,  # (N, 2·VALUES) halves of [k, |k|², 1, 0...], interleaved
    lse_ptr,
    mean_ptr,
    square_ptr,
    n_queries,
    n_centers,
    span,
    d,
    limit,
    key_exponent,
    bias_exponent,
    key_unit,
    square_unit,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One product per block for the scores, one per half of the weights for all sums."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    entry = tl.arange(0, KEYS)
    inside = (row < n_queries)[:, None] & (entry < 3 * d)[None, :]
    x = tl.load(query_ptr + row[:, None] * d + (entry % d)[None, :], mask=inside, other=0.0)
    exponent = _row_exponents(x, limit)
    query_high, query_low = _halves(x * _power_of_two(exponent)[:, None])
    one = _power_of_two(exponent + key_exponent - bias_exponent).to(tl.float16)
    query = tl.where((entry < 2 * d)[None, :], query_high, query_low)
    query = tl.where((entry >= 3 * d)[None, :], one[:, None], query)
    scale = _power_of_two(-exponent - key_exponent)

    reference = tl.full([ROWS], float("-inf"), tl.float32)
    sums = tl.zeros([ROWS, 2 * VALUES], tl.float32)
    start = tl.program_id(1) * span
    center = start.to(tl.int64) + tl.arange(0, COLUMNS)
    keys = key_ptr + center[:, None] * KEYS + entry[None, :]
    values = value_ptr + center[:, None] * (2 * VALUES) + tl.arange(0, 2 * VALUES)[None, :]
    for _ in range(start, tl.minimum(start + span, n_centers), COLUMNS):
        key = tl.load(keys)
        value = tl.load(values)
        score = tl.dot(query, tl.trans(key))
        weight, fade, reference = _weights(score, scale, reference)
        high, low = _halves(weight)
        block = tl.dot(low, value)
        block = tl.dot(high, value, block)
        sums = tl.fma(sums, tl.broadcast_to(fade[:, None], sums.shape), block)
        keys += COLUMNS * KEYS
        values += COLUMNS * 2 * VALUES

    sums = tl.sum(tl.reshape(sums, (ROWS, VALUES, 2)), 2)
    column = tl.arange(0, VALUES)
    total = tl.sum(tl.where((column == d + 1)[None, :], sums, 0.0), 1)
    square = tl.sum(tl.where((column == d)[None, :], sums, 0.0), 1) / total * square_unit
    mean = sums / total[:, None] * key_unit
    _store(lse_ptr, mean_ptr, square_ptr, row, n_queries, d, column, reference, total, mean, square)


@jit
def wide_kernel(
    query_ptr,  # (Q, d) float32
    high_ptr,  # (N, VALUES) k_h
    low_ptr,  # (N, VALUES) k_l
    bias_ptr,  # (N,) float32
    norm_ptr,  # (N,) float32, |k|²
    lse_ptr,
    mean_ptr,
    square_ptr,
    n_queries,
    n_centers,
    span,
    d,
    limit,
    key_exponent,
    bias_exponent,
    key_unit,
    square_unit,
    VALUES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Three products for the scores, three for the sums; bias, |k|² and total without products."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, VALUES)
    inside = (row < n_queries)[:, None] & (column < d)[None, :]
    x = tl.load(query_ptr + row[:, None] * d + column[None, :], mask=inside, other=0.0)
    exponent = _row_exponents(x, limit)
    query_high, query_low = _halves(x * _power_of_two(exponent)[:, None])
    unit = _power_of_two(exponent + key_exponent)
    scale = _power_of_two(-exponent - key_exponent)

    reference = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    square = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, VALUES], tl.float32)
    start = tl.program_id(1) * span
    center = start.to(tl.int64) + tl.arange(0, COLUMNS)
    highs = high_ptr + center[:, None] * VALUES + column[None, :]
    lows = low_ptr + center[:, None] * VALUES + column[None, :]
    biases = bias_ptr + center
    norms = norm_ptr + center
    for _ in range(start, tl.minimum(start + span, n_centers), COLUMNS):
        key_high = tl.load(highs)
        key_low = tl.load(lows)
        score = tl.dot(query_low, tl.trans(key_high))
        score = tl.dot(query_high, tl.trans(key_low), score)
        score = tl.dot(query_high, tl.trans(key_high), score)
        score += tl.load(biases)[None, :] * unit[:, None]
        weight, fade, reference = _weights(score, scale, reference)
        total = total * fade + tl.sum(weight, 1)
        square = square * fade + tl.sum(weight * tl.load(norms)[None, :], 1)
        high, low = _halves(weight)
        block = tl.dot(low, key_high)
        block = tl.dot(high, key_low, block)
        block = tl.dot(high, key_high, block)
        sums = tl.fma(sums, tl.broadcast_to(fade[:, None], sums.shape), block)
        highs += COLUMNS * VALUES
        lows += COLUMNS * VALUES
        biases += COLUMNS
        norms += COLUMNS

    mean = sums / total[:, None] * key_unit
    square = square / total * square_unit
    _store(lse_ptr, mean_ptr, square_ptr, row, n_queries, d, column, reference, total, mean, square)
