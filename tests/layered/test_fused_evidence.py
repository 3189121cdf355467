"""The CUDA kernels of the evidence, run on the CPU by Triton's interpreter and compiled."""

import math

import pytest
import torch

from qipf import QIPFWarning
from qipf.field.engines import triton
from qipf.layered import evidence_kernels
from qipf.layered import fused_evidence as subject
from qipf.layered.class_field import ClassField
from qipf.layered.error_model import ErrorModel
from qipf.layered.metric import Metric
from qipf.layered.mixture import evidence_of, posteriors_of
from qipf.layered.novelty import NoveltyModel, RowLengths
from qipf.layered.scorer import Scorer
from qipf.network.features import LayerSite

pytest.importorskip("triton")


def make_field(random, centers, classes, width, dimension, bandwidth, **about):
    """Random centres; counts and classes without centres on request."""
    directions = torch.randn(width, dimension, generator=random)
    metric = Metric(torch.rand(width, generator=random), directions, about.get("gain_free", False))
    labels = torch.randint(classes - about.get("missing", 0), (centers,), generator=random)
    embeddings = metric(torch.randn(centers, width, generator=random))
    counts = 5 * torch.rand(centers, generator=random) if about.get("weighted") else None
    if counts is not None:
        counts[::7] = 0
    return ClassField(metric, embeddings, labels, classes, bandwidth, torch.arange(centers), counts)


def make_inputs(count, classes=10, centers=90, seed=0):
    """Fields, mixture weights, logits and rows."""
    random = torch.Generator().manual_seed(seed)
    fields = (
        make_field(random, centers, classes, 40, 16, 0.3),
        make_field(random, 3 * centers, classes, 33, 20, 0.1, gain_free=True, missing=1),
        make_field(random, centers // 2, classes, 7, 5, 0.7, weighted=True),
    )
    weights = torch.tensor([0.4, 0.3, 0.2, 0.1]).double()
    logits = 3 * torch.randn(count, classes, generator=random)
    rows = [torch.randn(count, len(f.metric.mean), generator=random).relu() for f in fields]
    return fields, weights, logits, rows


def named(values):
    return {LayerSite(str(number)): value for number, value in enumerate(values)}


NO_LENGTHS = RowLengths.of({}, (), {})


def models_of(layers, lengths):
    """Constants of both scores."""
    size = 1 + layers + lengths
    error = torch.linspace(0.1, 1, 7 + layers).double()
    novelty = torch.linspace(-0.2, 0.3, 6 + size + size**2).double()
    return ErrorModel.of(error), NoveltyModel.of(novelty, layers, lengths)


def fused_there(fields, weights, logits, rows):
    models = models_of(len(fields), 1)
    fused = subject.FusedEvidence(named(fields), weights, NO_LENGTHS, models)
    found = fused(logits, named(rows))
    return found.probabilities, found.evidence.odds, found.evidence.unusual[:, :-1]


def expected(fields, weights, logits, rows):
    """In PyTorch's float32."""
    values = [field(part) for field, part in zip(fields, rows, strict=True)]
    densities = torch.stack([found.log_density for found in values], 1)
    posteriors = posteriors_of(logits, fields, values)
    probabilities, evidence = evidence_of(logits, posteriors, densities, weights)
    return probabilities, *evidence


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "classes", "centers"), [(1, 10, 90), (17, 2, 40), (3, 150, 400), (2, 10, 1200)]
)
def test_evidence_is_that_of_the_fields(interpreter, count, classes, centers):
    inputs = make_inputs(count, classes, centers)
    for found, wanted in zip(interpreter(fused_there, *inputs), expected(*inputs), strict=True):
        assert found.dtype == torch.float64
        torch.testing.assert_close(found, wanted.double(), rtol=1e-5, atol=5e-5)


@pytest.mark.slow
def test_no_rows(interpreter):
    shapes = [tuple(part.shape) for part in interpreter(fused_there, *make_inputs(0))]
    assert shapes == [(0, 10), (0, 5), (0, 4)]


@pytest.mark.slow
def test_a_row_far_from_all_centres_has_finite_evidence(interpreter):
    fields, weights, logits, rows = make_inputs(2)
    narrow = [field.at(0.01) for field in fields]  # kernels far below float32's smallest number
    for found in interpreter(fused_there, narrow, weights, logits, rows):
        assert bool(torch.isfinite(found).all())
    wanted = expected(narrow, weights, logits, rows)[2]
    found = interpreter(fused_there, narrow, weights, logits, rows)[2]
    torch.testing.assert_close(found, wanted.double(), rtol=1e-4, atol=5e-2)
    assert float(found[:, 1:].max()) > 500


@pytest.mark.slow
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_what_is_not_finite_makes_its_own_row_nan(interpreter, value, place):
    fields, weights, logits, rows = make_inputs(3, centers=20)
    clean = interpreter(fused_there, fields, weights, logits, rows)
    parts = [logits, *rows]
    parts[place][1, 4] = value
    found = interpreter(fused_there, fields, weights, logits, rows)
    for one, other in zip(found, clean, strict=True):
        torch.testing.assert_close(one[[0, 2]], other[[0, 2]], rtol=0, atol=0)
    if not (place == 0 and value < 0):  # a class of probability zero; its logit is seen itself
        assert bool(torch.isnan(found[1][1, 0]))
        assert bool(torch.isnan(found[2][1]).any())


def test_where_the_kernels_cannot_run(monkeypatch):
    (*fields, _), *_ = make_inputs(1)
    fields, device = named(fields), torch.device("cpu")
    assert "on an NVIDIA GPU" in subject.obstacle(fields, NO_LENGTHS, device)
    monkeypatch.setattr(triton, "INTERPRETED", True)
    assert subject.obstacle(fields, NO_LENGTHS, device) is None
    assert "needs layers" in subject.obstacle({}, NO_LENGTHS, device)
    monkeypatch.setattr(subject, "MAX_CLASSES", 9)
    assert "at most 9 classes" in subject.obstacle(fields, NO_LENGTHS, device)
    monkeypatch.undo()
    monkeypatch.setattr(triton, "INTERPRETED", True)
    wide = make_field(torch.Generator().manual_seed(0), 9, 10, 200, 129, 1.0)
    assert subject.obstacle(named([wide]), NO_LENGTHS, device) == "takes up to 128 dimensions"
    monkeypatch.setattr(triton, "INSTALLED", False)
    assert "needs the package triton" in subject.obstacle(fields, NO_LENGTHS, device)
    models = models_of(2, 1)
    assert subject.prepared(fields, torch.ones(3), NO_LENGTHS, models, device) is None


def test_kernels_that_fail_are_not_used(monkeypatch):
    fields, weights, *_ = make_inputs(1)
    monkeypatch.setattr(triton, "INTERPRETED", True)

    def fails(*_):
        raise OSError("no C compiler")

    monkeypatch.setattr(subject.FusedEvidence, "__call__", fails)
    about = named(fields), weights, NO_LENGTHS, models_of(3, 1)
    with pytest.warns(QIPFWarning, match=r"Triton failed, no C compiler \(OSError\)"):
        assert subject.prepared(*about, torch.device("cpu")) is None


def test_every_centre_is_in_a_block_of_its_class():
    fields, *_ = make_inputs(1, 150, 400)
    for field in fields:
        found = subject._blocks(field, 32)
        held = torch.isfinite(found.bias)
        assert int(held.sum()) == int((field.counts > 0).sum())
        slots = found.blocks[:, 0].repeat_interleave(subject.COLUMNS)[held]
        starts, counts = found.slots.T
        owner = torch.searchsorted(starts + counts, slots, right=True)
        order = field.labels[field.counts > 0].argsort(stable=True)
        assert owner.equal(field.labels[field.counts > 0][order].long())
        begin, end = found.items.T
        assert begin[1:].equal(end[:-1])
        assert int(end[-1]) == len(found.blocks)


def assembly(kernel, constants, **options):
    """Assembly of a kernel for a Hopper GPU; compiling needs no GPU."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler import compile as compile_kernel

    whole = {"layer_ptr", "block_ptr", "item_ptr", "slot_ptr", "known_ptr", "part_ptr"}
    doubles = {
        "weight_ptr", "constant_ptr", "probability_ptr", "odds_ptr", "unusual_ptr", "shortest_ptr",
        "checksum_ptr", "error_ptr", "novelty_ptr", "score_ptr",
    }  # fmt: skip
    signature, fixed = {}, {}
    for place, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name], fixed[(place,)] = "constexpr", constants[name]
        elif name.endswith("_ptr"):
            signature[name] = "*i32" if name in whole else "*fp64" if name in doubles else "*fp32"
        else:
            signature[name] = "i32"
    source = ASTSource(kernel, signature, fixed, {})
    return compile_kernel(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]


@pytest.mark.slow
def test_the_kernels_compile_for_hopper(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    sizes = {"ROWS": 16, "DIMENSION": 128, "PRECISION": subject.PRECISION}  # the default
    assert "mma" in assembly(evidence_kernels.metric_kernel, {**sizes, "STEP": 32})
    assert "mma" in assembly(evidence_kernels.class_kernel, {**sizes, "COLUMNS": 32})
    assert "fma.rn.f64" in assembly(evidence_kernels.evidence_kernel, {"CLASSES": 16}, num_warps=1)
    assert "sqrt" in assembly(evidence_kernels.length_kernel, {"ROWS": 16, "STEP": 64})
    tiles = {"ROWS": 16, "ODDS": 8, "COLUMNS": 32}
    assert "atom" in assembly(evidence_kernels.score_kernel, tiles)


def scores_there(fields, weights, logits, rows, others, measured):
    """The scores by the kernels, if they can run; `others` are rows of layers without fields."""
    by_site, read = named(fields), named([*rows, *others])
    sites = tuple(read) if measured else ()
    random = torch.Generator().manual_seed(2)
    seen = {
        site: own.double().std().clamp(max=1e20).float()
        * torch.randn(200, own.shape[1], generator=random)
        for site, own in read.items()
    }
    lengths = RowLengths.of(seen, sites, {s: f.metric for s, f in by_site.items() if measured})
    models = models_of(len(fields), lengths.count)
    scorer = Scorer(by_site, weights, models[0], lengths, models[1], torch.device("cpu"))
    assert (scorer._kernels is not None) == triton.INTERPRETED
    return scorer(logits, read)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "others", "size"), [(4, 0, 1), (19, 1, 1e20), (3, 1, 3e38)])
@pytest.mark.parametrize("measured", [True, False])
def test_scores_by_the_kernels_are_those_of_pytorch(interpreter, count, others, size, measured):
    random = torch.Generator().manual_seed(1)
    extra = [size * (2 * torch.rand(count, 70, generator=random) - 1) for _ in range(others)]
    inputs = (*make_inputs(count), extra, measured)
    wanted = scores_there(*inputs)
    for found, one in zip(interpreter(scores_there, *inputs), wanted, strict=True):
        torch.testing.assert_close(found, one, rtol=1e-5, atol=1e-5)
