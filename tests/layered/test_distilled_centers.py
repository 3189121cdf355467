"""Gradient descent of a distilled field's centres: its slopes, its steps, what it is fitted to."""

import math

import pytest
import torch
from torch.nn import functional

from qipf.layered import distillation, distilled_centers
from qipf.layered.distillation import blends, fit_targets
from qipf.layered.distilled_centers import Adam, fit_centers
from tests.layered.field_examples import PLAIN, clustered, drawn, whole


class PlainDescent(Adam):
    """Without Adam's scaling."""

    def __call__(self, slopes):
        for (part, rate, *_), slope in zip(self._parts, slopes, strict=True):
            part -= rate * slope


def test_steps_are_those_of_adam_with_a_cosine_schedule():
    random = torch.Generator().manual_seed(0)
    starts = [torch.randn(5, 3, generator=random).double(), torch.zeros(()).double()]
    slopes = [torch.randn(12, *part.shape, generator=random).double() for part in starts]
    own, theirs = ([part.clone() for part in starts] for _ in range(2))
    adam = Adam(own, (0.1, 0.02), 12)
    groups = [{"params": [p], "lr": lr} for p, lr in zip(theirs, (0.1, 0.02), strict=True)]
    reference = torch.optim.Adam(groups, betas=distilled_centers.KEPT)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(reference, 12)
    for step in range(12):
        adam([slope[step] for slope in slopes])
        for part, slope in zip(theirs, slopes, strict=True):
            part.grad = slope[step]
        reference.step()
        schedule.step()
        torch.testing.assert_close(own, theirs, rtol=1e-12, atol=1e-12)


def test_one_step_follows_the_gradient(monkeypatch):
    """Without Adam's scaling: a step of plain gradient descent, against autograd in float64."""
    monkeypatch.setattr(distilled_centers, "RATES", (0.1, 0.1, 0.1, 0.1))
    monkeypatch.setattr(distilled_centers, "LOWEST", 100.0)
    monkeypatch.setattr(distilled_centers, "Adam", PlainDescent)
    full = whole(60)
    first = torch.eye(6)[:, 2:]  # onto the last four dimensions
    start = distillation._projected(clustered(full, 9), first)
    points, labels = functional.normalize(drawn(30, 3)[0], dim=1), drawn(30, 3)[1]
    log_fields = torch.randn(10, 3, generator=torch.Generator().manual_seed(4)) - 2
    target = fit_targets(points[:20], labels[:20], points[20:], log_fields)
    random = torch.Generator().manual_seed(0)
    found, _ = fit_centers(start, PLAIN, first, target, random, 1)
    parts = (
        start.embeddings.double(), start.counts.double().log(), torch.zeros(()).double(),
        first.double(),
    )  # fmt: skip
    places, log_weights, widening, projection = (part.clone().requires_grad_() for part in parts)
    limit = math.log(distilled_centers.FACTOR)
    inverse = torch.exp(-2 * limit * torch.tanh(widening / limit)) / start.bandwidth**2
    unit = functional.normalize(places, dim=1)
    rows = functional.normalize(points.double() @ projection, dim=1)
    scores = (rows @ unit.T - 1) * inverse + torch.log_softmax(log_weights, 0)
    members = functional.one_hot(start.labels, 3).double()
    log_sums = (scores.exp() @ members).log()  # (n, classes)
    own = log_sums[:20].gather(1, labels[:20, None])[:, 0]
    of_class = distilled_centers.OF_CLASS * (log_sums[:20].logsumexp(1) - own)
    of_field = (log_sums[20:] - log_fields).square().mean(1)
    torch.cat([of_class, of_field]).mean().backward()
    stepped = functional.normalize(parts[0] - 0.1 * places.grad, dim=1)
    torch.testing.assert_close(found.embeddings.double(), stepped, atol=1e-5, rtol=0)
    counts = torch.softmax(parts[1] - 0.1 * log_weights.grad, 0) * 60
    torch.testing.assert_close(found.counts.double(), counts, atol=1e-4, rtol=1e-4)
    width = -0.1 * float(widening.grad)
    expected = start.bandwidth * math.exp(limit * math.tanh(width / limit))
    assert found.bandwidth == pytest.approx(expected, rel=1e-4)
    directions = parts[3] - 0.1 * projection.grad  # the field's own are the identity
    directions /= directions.abs().max()
    torch.testing.assert_close(found.metric.directions.double(), directions, atol=1e-5, rtol=0)
    assert not torch.allclose(directions, parts[3])


def test_fields_far_below_the_largest_are_not_compared():
    sums = torch.tensor([[1.0, 1e-20, 1e-20]])
    log_fields = torch.tensor([[0.0, -99.0, -5.0]])
    found = distilled_centers._slopes(sums, torch.ones(1, 1), torch.tensor([-1]), log_fields)
    torch.testing.assert_close(found, torch.tensor([[1.0, 0.0, -10.0]]) * 2 / 3)


@pytest.mark.slow
def test_fitted_to_blends_alone_the_class_fields_are_those_of_the_examples(monkeypatch):
    monkeypatch.setattr(distillation, "BLENDS", 4000)
    full = whole(1000)
    start, random = clustered(full, 30), torch.Generator().manual_seed(0)
    none = full.embeddings[:0], torch.empty(0, dtype=torch.long)
    targets = fit_targets(*none, *blends(full, random))
    found, _ = fit_centers(start, PLAIN, torch.eye(6), targets, random, 480)
    points, expected = blends(full, random)

    def unlike(field):
        values = field(points)
        return float((values.posterior.log() + values.log_density[:, None] - expected).abs().mean())

    assert unlike(found) < 0.5 * unlike(start)


@pytest.mark.parametrize("widening", [-9.0, -0.1, 0.0, 0.1, 1.0, 9.0])
def test_the_bandwidth_widens_up_to_a_factor(widening):
    found = float(distilled_centers._inverse(0.3, torch.tensor(widening).double())) ** -0.5
    limit = math.log(distilled_centers.FACTOR)
    assert found == pytest.approx(0.3 * math.exp(limit * math.tanh(widening / limit)))
    assert 0.3 / 4 <= found <= 0.3 * 4


@pytest.mark.parametrize(("rows", "batch", "steps"), [(10, 4, 7), (8, 8, 3), (9, 2, 1)])
def test_no_row_is_drawn_twice_before_all_whole_batches(rows, batch, steps):
    found = distilled_centers._drawn(rows, batch, steps, torch.Generator().manual_seed(0))
    assert found.shape == (steps, batch)
    for order in found.split(rows // batch):
        assert len(set(order.flatten().tolist())) == order.numel()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs need a GPU")
def test_a_graph_of_the_steps_gives_what_the_steps_give(monkeypatch):
    full = whole(1000)
    start, random = clustered(full, 30), torch.Generator().manual_seed(0)
    targets = fit_targets(full.embeddings, full.labels, *blends(full, random))
    start, targets = start.to(torch.device("cuda")), [part.cuda() for part in targets]
    metric, found = PLAIN.to(torch.device("cuda")), []
    for graphs in "01":
        monkeypatch.setenv("QIPF_CUDA_GRAPHS", graphs)
        random = torch.Generator().manual_seed(0)
        given = distilled_centers.Targets(*targets)
        found.append(fit_centers(start, metric, torch.eye(6).cuda(), given, random, 20)[0])
    torch.testing.assert_close(found[0].embeddings, found[1].embeddings, rtol=0, atol=1e-4)
    torch.testing.assert_close(found[0].counts, found[1].counts, rtol=1e-3, atol=0)
