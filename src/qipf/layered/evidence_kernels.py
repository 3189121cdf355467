"""Device code of the evidence and scores of predictions; `fused_evidence` launches it.

The module can be imported without Triton. Names ending in ``_ptr`` are arrays in device memory;
capitals are sizes fixed at compilation, all powers of two.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls

from __future__ import annotations  # without Triton its types have no names

from qipf.field.engines.triton_kernels import INSTALLED, jit, online_step

if INSTALLED:
    import triton.language as tl


@jit
def _unit_rows(x):
    """Rows scaled to length one, by their largest number first; rows of zeros stay zero."""
    x = x / tl.maximum(tl.max(tl.abs(x), 1), 1.1754943508222875e-38)[:, None]
    return x / tl.maximum(tl.sqrt(tl.sum(x * x, 1)), 1e-12)[:, None]


@jit
def _squares(x):
    x = x.to(tl.float64)
    return tl.sum(x * x, 1)


@jit
def _log_length(squares, shortest_ptr, column):
    return tl.log(tl.sqrt(squares) + tl.load(shortest_ptr + column))


@jit
def metric_kernel(
    joint_ptr,  # (n, stride) float32: logits, then the rows of each layer
    mean_ptr,  # (all widths,) float32
    directions_ptr,  # (all widths, DIMENSION) float32
    layer_ptr,  # (entries, 6) int32: first number, width, gain_free, place in mean and directions,
    # column of the length in `unusual`, or -1, and whether it is that of the residual
    shortest_ptr,  # (columns,) float64
    unit_ptr,  # (layers, n, DIMENSION) float32, written; layers are the first entries
    unusual_ptr,  # (n, columns) float64: lengths are written
    n,
    stride,
    columns,
    ROWS: tl.constexpr,
    STEP: tl.constexpr,
    DIMENSION: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Rows of a layer, whitened and scaled to unit length, as `qipf.layered.metric.Metric`.

    Or the lengths of their residuals, as `qipf.layered.novelty.PrincipalSubspace`.
    """
    layer = tl.program_id(1)
    first = tl.load(layer_ptr + 6 * layer)
    width = tl.load(layer_ptr + 6 * layer + 1)
    gain_free = tl.load(layer_ptr + 6 * layer + 2)
    place = tl.load(layer_ptr + 6 * layer + 3)
    measured = tl.load(layer_ptr + 6 * layer + 4)
    is_residual = tl.load(layer_ptr + 6 * layer + 5)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    step, column = tl.arange(0, STEP), tl.arange(0, DIMENSION)
    live = row < n
    start = joint_ptr + row[:, None] * stride + first + step[None, :]
    largest = tl.full([ROWS], 1.0, tl.float32)
    length = tl.full([ROWS], 1.0, tl.float32)
    if gain_free != 0:
        largest = tl.zeros([ROWS], tl.float32)
        for k in range(0, width, STEP):
            inside = live[:, None] & (k + step < width)[None, :]
            x = tl.load(start + k, mask=inside, other=0.0)
            largest = tl.maximum(largest, tl.max(tl.abs(x), 1))
        largest = tl.maximum(largest, 1.1754943508222875e-38)
        length = tl.zeros([ROWS], tl.float32)
        for k in range(0, width, STEP):
            inside = live[:, None] & (k + step < width)[None, :]
            x = tl.load(start + k, mask=inside, other=0.0) / largest[:, None]
            length += tl.sum(x * x, 1)
        length = tl.maximum(tl.sqrt(length), 1e-12)
    found = tl.zeros([ROWS, DIMENSION], tl.float32)
    for k in range(0, width, STEP):
        known = k + step < width
        x = tl.load(start + k, mask=live[:, None] & known[None, :], other=0.0)
        x = x / largest[:, None] / length[:, None]
        x -= tl.load(mean_ptr + place + k + step, mask=known, other=0.0)[None, :]
        at = (place + k + step)[:, None] * DIMENSION + column[None, :]
        directions = tl.load(directions_ptr + at, mask=known[:, None], other=0.0)
        found = tl.dot(x, directions, found, input_precision=PRECISION)
    if is_residual == 0:
        at = (layer.to(tl.int64) * n + row)[:, None] * DIMENSION + column[None, :]
        tl.store(unit_ptr + at, _unit_rows(found), mask=live[:, None])
        squares = _squares(found)
    else:
        squares = tl.zeros([ROWS], tl.float64)
        for k in range(0, width, STEP):
            known = k + step < width
            x = tl.load(start + k, mask=live[:, None] & known[None, :], other=0.0)
            x -= tl.load(mean_ptr + place + k + step, mask=known, other=0.0)[None, :]
            at = (place + k + step)[None, :] * DIMENSION + column[:, None]
            directions = tl.load(directions_ptr + at, mask=known[None, :], other=0.0)
            squares += _squares(x - tl.dot(found, directions, input_precision=PRECISION))
    huge = (squares < float("inf")) == 0
    if tl.sum(huge.to(tl.int32), 0) > 0:  # products beyond float32: the row's own length
        own = tl.zeros([ROWS], tl.float64)
        for k in range(0, width, STEP):
            inside = live[:, None] & (k + step < width)[None, :]
            own += _squares(tl.load(start + k, mask=inside, other=0.0))
        squares = tl.where(huge, own, squares)
    length = _log_length(squares, shortest_ptr, tl.maximum(measured, 0))
    tl.store(unusual_ptr + row * columns + measured, length, mask=live & (measured >= 0))


@jit
def length_kernel(
    row_ptr,  # (n, stride) float32
    part_ptr,  # (parts, 3) int32: first number, width, column in `unusual`
    shortest_ptr,  # (columns,) float64
    unusual_ptr,  # (n, columns) float64, written
    n,
    stride,
    columns,
    ROWS: tl.constexpr,
    STEP: tl.constexpr,
):
    """Logarithms of the lengths of parts of rows, in float64."""
    part = tl.program_id(1)
    first = tl.load(part_ptr + 3 * part)
    width = tl.load(part_ptr + 3 * part + 1)
    column = tl.load(part_ptr + 3 * part + 2)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live, step = row < n, tl.arange(0, STEP)
    start = row_ptr + row[:, None] * stride + first + step[None, :]
    squares = tl.zeros([ROWS], tl.float64)
    for k in range(0, width, STEP):
        inside = live[:, None] & (k + step < width)[None, :]
        squares += _squares(tl.load(start + k, mask=inside, other=0.0))
    length = _log_length(squares, shortest_ptr, column)
    tl.store(unusual_ptr + row * columns + column, length, mask=live)


@jit
def class_kernel(
    unit_ptr,  # (layers, n, DIMENSION) float32
    center_ptr,  # (blocks · COLUMNS, DIMENSION) float32, times log2(e) / σ²
    bias_ptr,  # (blocks · COLUMNS,) float32: log2 of the counts, -inf where there is no centre
    block_ptr,  # (blocks, 3) int32: slot; whether it is the first, and the last block of its slot
    item_ptr,  # (items, 3) int32: first block, last + 1, layer
    log_sum_ptr,  # (slots, n) float32, written
    n,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DIMENSION: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Logarithms, to base 2, of the kernels summed over each slot: centres of one class."""
    item = tl.program_id(1)
    begin = tl.load(item_ptr + 3 * item)
    end = tl.load(item_ptr + 3 * item + 1)
    layer = tl.load(item_ptr + 3 * item + 2)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live, entry, column = row < n, tl.arange(0, DIMENSION), tl.arange(0, COLUMNS)
    at = (layer.to(tl.int64) * n + row)[:, None] * DIMENSION + entry[None, :]
    query = tl.load(unit_ptr + at, mask=live[:, None], other=0.0)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    center = begin.to(tl.int64) * COLUMNS + column
    keys = center_ptr + center[:, None] * DIMENSION + entry[None, :]
    biases, about = bias_ptr + center, block_ptr + 3 * begin
    for _ in range(begin, end):
        slot = tl.load(about)
        starts = tl.load(about + 1)
        ends = tl.load(about + 2)
        score = tl.dot(query, tl.trans(tl.load(keys)), input_precision=PRECISION)
        score += tl.load(biases)[None, :]
        before = tl.where(starts != 0, float("-inf"), top)
        weight, fade, top = online_step(score, before, tl.max(score, 1))
        total = tl.where(starts != 0, 0.0, total) * fade + tl.sum(weight, 1)
        found = log_sum_ptr + slot.to(tl.int64) * n + row
        tl.store(found, top + tl.math.log2(total), mask=live & (ends != 0))
        keys += COLUMNS * DIMENSION
        biases += COLUMNS
        about += 3


@jit
def _at_least(x, least):
    return tl.where(x < least, least, x)  # unlike tl.maximum it keeps NaN


@jit
def _log_odds(against, own, least):
    return tl.log(_at_least(against, least)) - tl.log(_at_least(own, least))


@jit
def evidence_kernel(
    joint_ptr,  # (n, stride) float32: logits first
    log_sum_ptr,  # (slots, n) float32
    slot_ptr,  # (layers, classes, 2) int32: first slot of the class, and how many it has
    known_ptr,  # (layers, classes) int32: whether the class has centres
    weight_ptr,  # (1 + layers,) float64, of the mixture
    constant_ptr,  # (layers, 2) float64: 1/σ², logarithm of the sum of counts
    probability_ptr,  # (n, classes) float64, written
    odds_ptr,  # (n, 2 + layers) float64, written
    unusual_ptr,  # (n, columns) float64: the first 1 + layers are written
    checksum_ptr,  # () float64: the logits are added
    n,
    stride,
    columns,
    classes,
    layers,
    most_slots,
    CLASSES: tl.constexpr,
):
    """The mixture of the posteriors at a row, and its evidence, in float64."""
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, CLASSES)
    inside = c < classes
    logit = tl.load(joint_ptr + row * stride + c, mask=inside, other=float("-inf")).to(tl.float64)
    top = tl.max(logit, 0)
    softmax = tl.exp(logit - top)
    total = tl.sum(softmax, 0)
    softmax = softmax / total
    own_class = c == tl.argmax(logit, 0)
    unusual = unusual_ptr + row * columns
    tl.store(unusual, -(top + tl.log(total)))
    tl.atomic_add(checksum_ptr, tl.sum(tl.where(inside, logit, 0.0), 0))
    own = tl.sum(tl.where(own_class, softmax, 0.0), 0)
    against = tl.sum(tl.where(own_class, 0.0, softmax), 0)
    odds = odds_ptr + row * (2 + layers)
    tl.store(odds + 1, _log_odds(against, own, 1e-300))
    weight = tl.load(weight_ptr)
    mixture, own_mixture, against_mixture = weight * softmax, weight * own, weight * against
    for layer in range(0, layers):
        at = layer * classes + c
        slot = tl.load(slot_ptr + 2 * at, mask=inside, other=0).to(tl.int64)
        count = tl.load(slot_ptr + 2 * at + 1, mask=inside, other=0)
        tops = tl.full([CLASSES], float("-inf"), tl.float64)
        sums = tl.zeros([CLASSES], tl.float64)
        for j in range(0, most_slots):
            part = tl.load(log_sum_ptr + (slot + j) * n + row, mask=j < count, other=float("-inf"))
            part = part.to(tl.float64) * 0.6931471805599453
            higher = tl.maximum(tops, part)
            reference = tl.where(higher == float("-inf"), 0.0, higher)  # not -inf minus -inf
            sums = sums * tl.exp(tops - reference) + tl.exp(part - reference)
            tops = higher
        highest = tl.max(tops, 0)
        kernels = sums * tl.exp(tops - highest)
        whole = tl.sum(kernels, 0)
        inverse = tl.load(constant_ptr + 2 * layer)
        log_count = tl.load(constant_ptr + 2 * layer + 1)
        log_density = highest - inverse + tl.log(whole) - log_count
        tl.store(unusual + 1 + layer, -log_density)
        posterior = _at_least(kernels / whole, 1e-30)
        # a class without centres has the softmax's probability
        known = tl.load(known_ptr + at, mask=inside, other=1) != 0
        left = tl.sum(tl.where(known, 0.0, softmax), 0)
        posterior = tl.where(known, posterior * (1 - left), softmax)
        posterior = tl.where(inside, posterior, 0.0)
        own = tl.sum(tl.where(own_class, posterior, 0.0), 0)
        against = tl.sum(tl.where(own_class, 0.0, posterior), 0)
        tl.store(odds + 2 + layer, _log_odds(against, own, 1e-20))
        weight = tl.load(weight_ptr + 1 + layer)
        mixture += weight * posterior
        own_mixture += weight * own
        against_mixture += weight * against
    tl.store(odds, _log_odds(against_mixture, own_mixture, 1e-300))
    tl.store(probability_ptr + row * classes + c, mixture, mask=inside)


@jit
def _sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@jit
def score_kernel(
    odds_ptr,  # (n, 2 + layers) float64
    unusual_ptr,  # (n, columns) float64
    error_ptr,  # (7 + layers,) float64, as `ErrorModel.parameters`
    novelty_ptr,  # float64, as `NoveltyModel.parameters`
    score_ptr,  # (3, n) float64, written
    checksum_ptr,  # () float64: the scores are added
    n,
    columns,
    layers,
    ROWS: tl.constexpr,
    ODDS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Uncertainty, novelty and probability of an error, from the evidence, in float64."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live, term, column = row < n, tl.arange(0, ODDS), tl.arange(0, COLUMNS)
    odds, unusual = odds_ptr + row * (2 + layers), unusual_ptr + row * columns
    known = term < 2 + layers
    terms = tl.load(odds[:, None] + term[None, :], mask=live[:, None] & known[None, :], other=0.0)
    slopes = tl.load(error_ptr + 5 + term, mask=known, other=0.0)
    near = tl.load(error_ptr + 4) + tl.sum(terms * slopes[None, :], 1)
    mixture = tl.load(odds, mask=live, other=0.0)
    far = tl.load(error_ptr + 2) + tl.load(error_ptr + 3) * mixture
    energy = tl.load(unusual, mask=live, other=0.0)
    gate = tl.load(error_ptr) + tl.load(error_ptr + 1) * energy
    uncertainty = _sigmoid(-gate) * near + _sigmoid(gate) * far
    inside = column < columns
    offsets = tl.load(
        unusual[:, None] + column[None, :], mask=live[:, None] & inside[None, :], other=0.0
    )
    # its mean and whitening come after the constant and five slopes
    mean = tl.load(novelty_ptr + 6 + column, mask=inside, other=0.0)
    offsets = tl.where(live[:, None], offsets - mean[None, :], 0.0)
    squares = tl.zeros([ROWS], tl.float64)
    for k in range(0, columns):
        whiten = novelty_ptr + 6 + columns + column * columns + k
        along = tl.sum(offsets * tl.load(whiten, mask=inside, other=0.0)[None, :], 1)
        squares += along * along
    novelty = tl.load(novelty_ptr) + tl.load(novelty_ptr + 1) * energy
    novelty += tl.load(novelty_ptr + 2) * tl.load(unusual + layers, mask=live, other=0.0)
    novelty += tl.load(novelty_ptr + 3) * tl.load(unusual + columns - 1, mask=live, other=0.0)
    novelty += tl.load(novelty_ptr + 4) * squares
    novelty += tl.load(novelty_ptr + 5) * mixture
    p_error = _sigmoid(uncertainty)
    tl.store(score_ptr + row, uncertainty, mask=live)
    tl.store(score_ptr + n + row, novelty, mask=live)
    tl.store(score_ptr + 2 * n + row, p_error, mask=live)
    tl.atomic_add(checksum_ptr, tl.sum(tl.where(live, uncertainty + novelty + p_error, 0.0), 0))
