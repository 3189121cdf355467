"""Distilled fields: laws of the clusters and of the fit, and models that use it."""

import pytest
import torch
from torch.nn import functional

import qipf
from qipf.layered import distillation, distilled_centers
from qipf.layered.class_field import ClassField, FieldValues
from qipf.layered.distillation import (
    Labelled,
    blends,
    cross_entropy,
    distilled_field,
    distilled_mixture,
    distilled_size,
)
from qipf.layered.effort import EFFORTS
from qipf.layered.mixture_fit import FittedMixture, fit_mixture, tuning_posteriors
from qipf.layered.tuning import Tuning
from qipf.network.features import LayerSite
from tests.layered.conftest import batches
from tests.layered.field_examples import PLAIN, clustered, drawn, whole

NONE = Labelled(torch.empty(0, 6), torch.empty(0, dtype=torch.long))


#: Rows that no field is made of.
HELD = Labelled(*drawn(500, 9))


@pytest.fixture(scope="module")
def fields():
    full = whole(3000)
    rows, _ = drawn(1000, 1)
    return (
        full,
        clustered(full, 30),
        distilled_field(full, 30, 6, copies_of(full, rows), HELD, seed=0),
    )


def copies_of(full, rows):
    """Noisy copies of the first centres."""
    own = torch.arange(len(rows)) % len(full.embeddings)
    return Labelled(full.embeddings[own] + 0.1 * rows, full.labels[own])


def reference(full, point, without=None):
    """Posterior and log density at a unit vector, naively, in float64."""
    kept = torch.arange(len(full.embeddings)) != (-1 if without is None else without)
    squares = (full.embeddings[kept].double() - point.double()).square().sum(1)
    kernel = (-squares / (2 * full.bandwidth**2)).exp() * full.counts[kept].double()
    by_class = torch.stack([kernel[full.labels[kept] == c].sum() for c in range(3)])
    total = by_class.sum()
    return by_class / total, (total / full.counts[kept].double().sum()).log()


def test_each_point_without_its_own_centre():
    full = whole(40)
    own = torch.tensor([0, 7, -1, 39])
    points = functional.normalize(torch.cat([full.embeddings[own[:2]], drawn(2, 5)[0]]), dim=1)
    found = full.leave_one_out(points, own)
    for i, point in enumerate(points):
        posterior, density = reference(full, point, None if own[i] < 0 else int(own[i]))
        torch.testing.assert_close(found.posterior[i].double(), posterior, atol=1e-5, rtol=1e-4)
        shift = torch.tensor(40.0 if own[i] < 0 else 39.0).log() - torch.tensor(40.0).log()
        torch.testing.assert_close(
            found.log_density[i].double(), density + shift.double(), atol=1e-5, rtol=1e-5
        )


def test_clusters_share_the_examples_of_each_class():
    full = whole(200)
    small = clustered(full, 30)
    assert len(small.embeddings) <= 30
    assert float((small.embeddings.norm(dim=1) - 1).abs().max()) < 1e-6
    for label in range(3):
        assert float(small.counts[small.labels == label].sum()) == (full.labels == label).sum()
    assert small.bandwidth == full.bandwidth


def test_as_many_clusters_as_examples_are_the_examples():
    full = whole(60)
    small = clustered(full, 60)
    rows = drawn(20, 3)[0]
    torch.testing.assert_close(small(rows).posterior, full(rows).posterior)
    torch.testing.assert_close(small(rows).log_density, full(rows).log_density)
    assert sorted(small.examples.tolist()) == sorted(full.examples.tolist())


def test_clusters_without_examples_are_left_out():
    full = whole(60)
    full.embeddings = torch.eye(6)[:1].repeat(60, 1)
    small = clustered(full, 30)
    assert small.labels.tolist() == [0, 1, 2]
    assert small.counts.tolist() == torch.bincount(full.labels).tolist()


def test_every_class_has_a_cluster():
    assert clustered(whole(60), 1).labels.tolist() == [0, 1, 2]


def test_cross_entropy_of_the_classes():
    full = whole(40)
    given = Labelled(drawn(5, 3)[0], torch.tensor([0, 1, 2, 0, 1]))
    own = [
        reference(full, functional.normalize(row, dim=0))[0][label].log()
        for row, label in zip(*given, strict=True)
    ]
    assert cross_entropy(full, given) == pytest.approx(-float(sum(own)) / 5, rel=1e-5)
    assert cross_entropy(full, NONE) == 0


@pytest.mark.parametrize(("classes", "size"), [(2, 1500), (10, 1500), (75, 1500), (150, 3000)])
def test_size_of_a_distilled_field(classes, size):
    assert distilled_size(classes) == size


def test_a_field_of_few_centres_stays_as_it_is():
    full = whole(40)
    assert distilled_field(full, 40, 6, NONE, HELD, seed=0) is full


def test_too_many_classes_for_a_table_are_not_fitted(monkeypatch):
    monkeypatch.setattr(distillation, "LARGEST_TABLE", 80)
    full = whole(100)
    found = distilled_field(full, 30, 6, NONE, HELD, seed=0)
    assert torch.equal(found.embeddings, clustered(full, 30).embeddings)


def test_a_field_of_many_dimensions_is_projected_to_fewer(monkeypatch):
    monkeypatch.setattr(distillation, "STEPS", 5)
    full = whole(300)
    found = distilled_field(full, 30, 4, copies_of(full, drawn(50, 1)[0]), HELD, seed=0)
    assert found.embeddings.shape[1] == 4
    assert found.metric.directions.shape == (6, 4)
    assert float(found.metric.directions[:2].abs().max()) > 0  # learned: it started at zero
    cosines = found.embeddings @ found.metric(full.embeddings).T
    cosines[found.labels[:, None] != full.labels] = -2
    named = (found.examples[:, None] == full.examples).long().argmax(1)
    best = cosines.amax(1)
    torch.testing.assert_close(cosines.gather(1, named[:, None])[:, 0], best, atol=1e-6, rtol=0)


def test_clusters_are_projected_too(monkeypatch):
    full = whole(300)
    monkeypatch.setattr(distillation, "fit_centers", lambda start, _, first, *__: (start, first))
    found = distilled_field(full, 30, 4, NONE, HELD, seed=0)
    wanted = functional.normalize(clustered(full, 30).embeddings[:, 2:], dim=1)
    torch.testing.assert_close(found.embeddings, wanted)
    assert torch.equal(found.metric.directions, torch.eye(6)[:, 2:])
    cosines = wanted @ functional.normalize(full.embeddings[:, 2:], dim=1).T
    cosines[found.labels[:, None] != full.labels] = -2
    assert torch.equal(found.examples, full.examples[cosines.argmax(1)])


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-8])
@pytest.mark.parametrize("flushed", [False, True])
def test_points_without_a_direction_after_the_projection_do_no_harm(scale, flushed, monkeypatch):
    monkeypatch.setattr(distillation, "STEPS", 20)
    losses = iter([0.0, 1.0])  # the fit is taken
    monkeypatch.setattr(distillation, "cross_entropy", lambda *_: next(losses))
    full = whole(300)
    full.embeddings[::3, 2:] *= scale  # all that the first projection keeps
    full.embeddings[0] = 0.0
    torch.set_flush_denormal(flushed)
    try:
        found = distilled_field(full, 30, 4, copies_of(full, drawn(50, 1)[0]), HELD, seed=0)
    finally:
        torch.set_flush_denormal(False)
    assert torch.isfinite(found.embeddings).all()
    assert torch.isfinite(found.metric.directions).all()
    assert float(found.metric.directions[:2].abs().max()) > 0.01  # fitted


@pytest.mark.parametrize(("dimension", "expected"), [(3, 3), (6, 6), (12, 8), (2**62, 8)])
def test_a_model_has_at_most_the_dimensions_that_were_asked_for(dimension, expected, monkeypatch):
    monkeypatch.setattr(distillation, "STEPS", 3)
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(300) % 3
    hidden = torch.randn(300, 8, generator=random) + 2 * functional.one_hot(labels, 8)
    logits = hidden[:, :3] + torch.randn(300, 3, generator=random)
    model = qipf.FeatureQIPF(max_centers=30, max_dimension=dimension)
    model.fit({"hidden": hidden}, logits, labels)
    (field,) = model.fields_
    assert field.embeddings.shape[1] == expected
    assert field.metric.directions.shape == (8, expected)


def test_blends_lie_on_the_sphere_and_have_the_logarithms_of_the_fields(monkeypatch):
    monkeypatch.setattr(distillation, "BLENDS", 12)
    full = whole(40)
    points, log_fields = blends(full, torch.Generator().manual_seed(0))
    assert points.shape == (12, 6)
    assert log_fields.shape == (12, 3)
    torch.testing.assert_close(points.norm(dim=1), torch.ones(12))
    for point, found in zip(points, log_fields, strict=True):
        posterior, density = reference(full, point)
        torch.testing.assert_close(found.double(), posterior.log() + density, atol=1e-4, rtol=1e-4)


def test_blends_without_noise_lie_between_two_centres(monkeypatch):
    monkeypatch.setattr(distillation, "NOISE", 0.0)
    full = whole(40)
    points, _ = blends(full, torch.Generator().manual_seed(0))
    random, count = torch.Generator().manual_seed(0), len(points)
    first, second = full.embeddings[torch.randint(40, (2, count), generator=random)]
    share = distillation.SECOND * torch.rand(count, 1, generator=random)
    torch.testing.assert_close(points, functional.normalize((1 - share) * first + share * second))


def test_blends_are_compared_with_few_of_many_centres(monkeypatch):
    monkeypatch.setattr(distillation, "BLENDS", 12)
    monkeypatch.setattr(distillation, "MOST_CENTERS", 25)
    seen = []
    monkeypatch.setattr(
        ClassField,
        "leave_one_out",
        lambda self, points, own: (
            seen.append(len(self.embeddings)) or FieldValues(torch.ones(12, 3), torch.zeros(12))
        ),
    )
    blends(whole(40), torch.Generator().manual_seed(0))
    assert seen == [25]


@pytest.mark.slow
def test_it_knows_the_classes_of_new_rows_better_than_clusters_do(fields):
    full, start, found = fields
    new = Labelled(*drawn(2000, 7))
    torch.testing.assert_close(found(new.rows).posterior.sum(1), torch.ones(2000))
    coarse, fitted, all_of_them = (cross_entropy(f, new) for f in (start, found, full))
    assert fitted < coarse - (coarse - all_of_them) / 3


@pytest.mark.slow
def test_centres_are_unit_vectors_that_name_examples_of_their_class(fields):
    full, start, small = fields
    assert len(small.embeddings) == len(start.embeddings) <= 30
    assert float((small.embeddings.norm(dim=1) - 1).abs().max()) < 1e-6
    assert torch.equal(small.labels, start.labels)
    torch.testing.assert_close(float(small.counts.sum()), 3000.0, rtol=1e-5, atol=0)
    assert (small.counts > 0).all()
    assert full.bandwidth / 4 < small.bandwidth < full.bandwidth * 4
    cosines = small.embeddings.double() @ small.metric(full.embeddings).double().T
    cosines[small.labels[:, None] != full.labels] = -2
    named = (small.examples[:, None] == full.examples).long().argmax(1)
    torch.testing.assert_close(
        cosines.gather(1, named[:, None])[:, 0], cosines.amax(1), atol=1e-6, rtol=0
    )


@pytest.mark.slow
def test_the_seed_decides(monkeypatch):
    monkeypatch.setattr(distillation, "STEPS", 3)
    full = whole(200)
    one, two, other = (distilled_field(full, 20, 6, NONE, HELD, seed=s) for s in (1, 1, 2))
    assert torch.equal(one.embeddings, two.embeddings)
    assert torch.equal(one.counts, two.counts)
    assert not torch.equal(one.embeddings, other.embeddings)
    assert torch.equal(full.embeddings, whole(200).embeddings)  # not changed


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_default_type_of_numbers_does_not_matter(dtype, monkeypatch):
    monkeypatch.setattr(distillation, "STEPS", 3)
    full = whole(200)
    wanted = distilled_field(full, 20, 4, NONE, HELD, seed=1)
    torch.set_default_dtype(dtype)
    try:
        found = distilled_field(full, 20, 4, NONE, HELD, seed=1)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(found.embeddings, wanted.embeddings)
    assert torch.equal(found.metric.directions, wanted.metric.directions)


def test_a_fit_is_compared_with_clusters_at_rows_that_are_in_neither(monkeypatch):
    full, start = whole(300), clustered(whole(300), 30)
    seen = []
    monkeypatch.setattr(distillation, "fit_centers", lambda *_: (start, torch.eye(6)))
    monkeypatch.setattr(distillation, "cross_entropy", lambda _, given: seen.append(given) or 0.0)
    distilled_field(full, 30, 6, copies_of(full, drawn(5, 1)[0]), HELD, seed=0)
    assert all(given is HELD for given in seen)
    assert len(seen) == 2


def test_a_fit_that_is_no_better_on_other_rows_is_not_used(monkeypatch):
    full = whole(300)
    start = clustered(full, 30)
    labels = (start.labels + 1) % 3
    wrong = ClassField(PLAIN, start.embeddings, labels, 3, 0.3, start.examples)
    monkeypatch.setattr(distillation, "fit_centers", lambda *_: (wrong, torch.eye(6)))
    found = distilled_field(full, 30, 6, NONE, HELD, seed=0)
    assert torch.equal(found.labels, start.labels)
    torch.testing.assert_close(found.embeddings, start.embeddings)


@pytest.mark.parametrize(("effort", "steps"), [("full", 240), ("fast", 120)])
def test_a_fast_fit_has_fewer_steps(effort, steps, monkeypatch):
    seen = []
    monkeypatch.setattr(
        distillation, "fit_centers", lambda s, m, p, *more: seen.append(more[-1]) or (s, p)
    )
    distilled_field(whole(60), 9, 6, NONE, HELD, seed=0, effort=EFFORTS[effort])
    assert seen == [steps]


SITE = LayerSite("layer")


def tuned(copies=None):
    """A mixture of the softmax and one field, and the tuning rows it is fitted to."""
    full, sets = whole(), {}
    for name, noise, seed in (("clean", 1.0, 3), ("noise", 2.0, 4)):
        rows, labels = drawn(200, 2)
        random = torch.Generator().manual_seed(seed)
        logits = rows[:, :3] + noise * torch.randn(200, 3, generator=random)
        sets[name] = logits, {SITE: rows}
    tuning = Tuning(sets, labels)
    if copies is not None:
        tuning.copies, tuning.copied = {SITE: copies.rows}, full.examples[: len(copies.rows)]
    return fit_mixture({SITE: full}, tuning), tuning


def held_of(tuning):
    """All tuning rows."""
    rows = torch.cat([found[SITE] for _, found in tuning.sets.values()])
    return Labelled(rows, tuning.labels.repeat(len(tuning.sets)))


def test_a_mixture_keeps_the_weights_of_all_examples(monkeypatch):
    monkeypatch.setattr(distillation, "STEPS", 20)
    copies = copies_of(whole(), drawn(50, 7)[0])
    mixture, tuning = tuned(copies)
    found = distilled_mixture(mixture, tuning, 30, 6, seed=0)
    assert torch.equal(found.weights, mixture.weights)
    (field,) = mixture.fields.values()  # at its bandwidth in the mixture
    wanted = distilled_field(field, 30, 6, copies, held_of(tuning), seed=0)
    assert torch.equal(found.fields[SITE].embeddings, wanted.embeddings)
    assert found.fields[SITE].bandwidth == wanted.bandwidth
    # what the scores are fitted to is of the distilled fields
    again = tuning_posteriors({SITE: wanted}, tuning, (1.0,))
    torch.testing.assert_close(found.posteriors.truth, again.truth, rtol=0, atol=0)
    assert not torch.allclose(found.posteriors.truth, mixture.posteriors.truth)


def test_without_copies_a_field_is_distilled_at_its_own_rows_alone(monkeypatch):
    monkeypatch.setattr(distillation, "STEPS", 20)
    mixture, tuning = tuned()
    (field,) = mixture.fields.values()
    found = distilled_mixture(mixture, tuning, 30, 6, seed=5).fields[SITE]
    wanted = distilled_field(field, 30, 6, NONE, held_of(tuning), seed=5)
    assert torch.equal(found.embeddings, wanted.embeddings)


def test_a_mixture_of_the_softmax_alone_stays(monkeypatch):
    alone = FittedMixture({}, torch.ones(1), None)
    assert distilled_mixture(alone, tuned()[1], 30, 6, seed=0) is alone


@pytest.mark.slow
def test_a_model_with_distilled_fields(net, data, fresh, tmp_path, monkeypatch):
    monkeypatch.setattr(distillation, "STEPS", 20)
    options = {"reduction": "distilled", "max_centers": 12, "max_tuning": 50}
    model = qipf.LayeredQIPF(net, **options).fit(batches(data))
    again = qipf.LayeredQIPF(net, **options).fit(batches(data))
    assert torch.equal(model.uncertainty(fresh), again.uncertainty(fresh))
    assert all(len(field.embeddings) <= 12 for field in model.fields_)
    labels = data[1]
    for field in model.fields_:
        assert torch.equal(labels[field.examples], field.labels)
    for explanation in model.explain(fresh[:5]):
        for near in (*explanation.nearest, *explanation.nearest_rival):
            assert labels[near.index] == near.label
    model.save(tmp_path / "small.qipf")
    loaded = qipf.load(tmp_path / "small.qipf", net)
    assert torch.equal(loaded.uncertainty(fresh), model.uncertainty(fresh))
    assert loaded.reduction == "distilled"
    assert "weighted centres" in model.summary()


@pytest.mark.slow
def test_distilled_fields_are_the_default(net, data, fresh, monkeypatch):
    monkeypatch.setattr(distillation, "STEPS", 5)
    monkeypatch.setattr(distillation, "DISTILLED", 12)
    monkeypatch.setattr(distillation, "EACH_CLASS", 1)
    model, named = (qipf.LayeredQIPF(net, **o) for o in ({}, {"reduction": "distilled"}))
    model.fit(batches(data))
    assert all(len(field.embeddings) <= 12 for field in model.fields_)
    assert all((field.counts != 1).any() for field in model.fields_)
    assert torch.equal(model.uncertainty(fresh), named.fit(batches(data)).uncertainty(fresh))
    rows, labels = drawn(300, 0)
    features = qipf.FeatureQIPF().fit({"hidden": rows}, 2 * rows[:, :3], labels)
    assert all(len(field.embeddings) <= 12 for field in features.fields_)


@pytest.mark.slow
def test_an_exported_graph_has_distilled_fields(net, data, fresh, monkeypatch):
    monkeypatch.setattr(distillation, "STEPS", 5)
    model = qipf.LayeredQIPF(net, max_centers=12, max_tuning=50).fit(batches(data))
    found = model.export(fresh[:4]).module()(fresh)
    torch.testing.assert_close(
        found["uncertainty"].double(), model.uncertainty(fresh).double(), atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize(
    ("reduction", "given", "examples", "centers"),
    [
        ("auto", 60_000, 60_000, 1500),
        ("auto", 500, 60_000, 500),
        ("auto", 70_000, 70_000, 70_000),
        ("coreset", 500, 60_000, 500),
        ("random", 500, 500, None),
    ],
)
def test_examples_and_centres_by_max_centers(net, reduction, given, examples, centers):
    model = qipf.LayeredQIPF(net, reduction=reduction, max_centers=given)
    assert (model._examples(), model._condensed(10)) == (examples, centers)


@pytest.mark.slow
def test_nothing_is_copied_for_clusters_that_are_not_fitted(net, data, monkeypatch):
    monkeypatch.setattr(distillation, "LARGEST_TABLE", 30)
    monkeypatch.setattr("qipf.layered.tuning._add_copies", None)
    model = qipf.LayeredQIPF(net, max_centers=12, max_tuning=50).fit(batches(data))
    assert all(len(field.embeddings) <= 12 for field in model.fields_)


@pytest.mark.slow
def test_few_examples_are_the_centres_and_are_not_copied(net, data, fresh, monkeypatch):
    every = qipf.LayeredQIPF(net, reduction="random", max_tuning=50).fit(batches(data))
    monkeypatch.setattr("qipf.layered.tuning._add_copies", None)
    model = qipf.LayeredQIPF(net, reduction="distilled", max_tuning=50).fit(batches(data))
    assert torch.equal(model.uncertainty(fresh), every.uncertainty(fresh))


def test_distilled_fields_of_at_most_four_layers(net):
    assert qipf.LayeredQIPF(net, reduction="distilled")._most_layers() == 4
    assert qipf.LayeredQIPF(net)._most_layers() == 4
    assert qipf.LayeredQIPF(net, reduction="random")._most_layers() is None


@pytest.mark.slow
@pytest.mark.parametrize("copied", [False, True])
def test_features_with_and_without_perturbed_copies(copied, monkeypatch):
    monkeypatch.setattr(distillation, "STEPS", 20)
    rows, labels = drawn(300, 0)
    hidden, logits = rows + functional.one_hot(labels, 6), 2 * rows[:, :3]
    noise = torch.randn(300, 6, generator=torch.Generator().manual_seed(1))
    noisy = {"noise": ({"hidden": hidden + noise}, logits + noise[:, :3])} if copied else None
    model = qipf.FeatureQIPF(reduction="distilled", max_centers=12)
    model.fit({"hidden": hidden}, logits, labels, perturbed=noisy)
    (field,) = model.fields_
    assert len(field.embeddings) <= 12
    assert torch.equal(labels[field.examples], field.labels)
    assert (field.counts % 1 != 0).any()
    assert torch.isfinite(model.uncertainty({"hidden": hidden}, logits)).all()


def test_the_fit_is_that_of_the_measured_results():
    assert (distillation.STEPS, distilled_centers.BATCH) == (240, 512)
    assert distilled_centers.RATES == (7e-3, 7e-2, 1.4e-2, 3e-3)
    assert distilled_centers.KEPT == (0.9, 0.99)
    assert distillation.WIDER == 2
    assert (distillation.MOST_ROWS, distillation.LLOYD) == (60_000, 6)
    assert (distillation.BLENDS, distillation.MOST_CENTERS) == (16_000, 20_000)
    assert (distillation.SECOND, distillation.NOISE) == (0.9, 0.7)
    assert (distilled_centers.OF_CLASS, distilled_centers.LOWEST) == (4.0, 15.0)
