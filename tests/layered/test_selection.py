"""The field of a layer is the most likely of those tried; constant layers have none."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qipf import QIPFWarning
from qipf.field.bandwidth import silverman
from qipf.layered import selection
from qipf.layered.class_field import ClassField
from qipf.layered.effort import FULL
from qipf.layered.holdout import LABELS, PLACES
from qipf.layered.metric import Metric, Scatter
from qipf.layered.selection import chosen_fields, chosen_metric, condensed_field
from qipf.layered.tuning import Tuning
from qipf.network.features import LayerSite


def rows_of(count, seed, width=5, classes=3):
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (count,), generator=random)
    rows = 3 * torch.eye(width)[labels] + torch.randn(count, width, generator=random)
    return rows, labels


ROWS, LABELS_OF = rows_of(80, 0)
CLEAN, TRUTH = rows_of(60, 1)
SETS = {
    "clean": CLEAN,
    "noise": CLEAN + torch.randn(60, 5, generator=torch.Generator().manual_seed(2)),
}
SITE = LayerSite("a")


def field_of(metric, width, rows=ROWS, labels=LABELS_OF):
    return ClassField(metric, metric(rows), labels, 3, width, torch.arange(len(rows)))


def likelihood(field):
    own = [field(rows).posterior.gather(1, TRUTH[:, None]).log() for rows in SETS.values()]
    return float(torch.stack(own).clamp(min=selection.FLOOR).double().mean())


# ---------------------------------------------------------------------- metric and width


def test_it_is_the_likeliest_of_a_plain_search():
    metric, width = chosen_metric(ROWS, LABELS_OF, SETS, TRUTH, 3, 4)
    best = likelihood(field_of(metric, width))
    for gain_free in (False, True):
        for shrinkage in selection.SHRINKAGES:
            other = Scatter(ROWS, LABELS_OF, gain_free).metric(shrinkage, 4)
            for factor in selection.FACTORS[1::2]:
                tried = field_of(other, factor * silverman(other(ROWS)))
                assert likelihood(tried) <= best + 1e-9
    assert metric.directions.shape == (5, 4)


def test_rows_of_unit_length_are_tried_with_the_best_shrinkage_alone(monkeypatch):
    tried = []
    plain = Scatter.metric

    def metric(self, shrinkage, dimension):
        tried.append((self.gain_free, shrinkage))
        return plain(self, shrinkage, dimension)

    monkeypatch.setattr(Scatter, "metric", metric)
    found, width = chosen_metric(ROWS, LABELS_OF, SETS, TRUTH, 3, 4)
    assert tried[:-1] == [(False, shrinkage) for shrinkage in selection.SHRINKAGES]
    assert tried[-1][0]
    scatter = Scatter(ROWS, LABELS_OF, found.gain_free)
    assert torch.equal(found.directions, plain(scatter, tried[-1][1], 4).directions)
    assert width > 0


def test_shrinkages_and_factors_are_those_of_the_published_results():
    """Other values would change every published result of LayeredQIPF."""
    assert selection.SHRINKAGES == (0.02, 0.1, 0.3, 0.5, 0.8)
    assert selection.FACTORS[1::2] == pytest.approx((1.4, 2.8, 5.6))
    assert selection.FACTORS[::2] == pytest.approx([1.4 * 2 ** (k - 0.5) for k in range(4)])


def test_each_set_counts_the_same():
    """Twice the same set is the set once."""
    once = chosen_metric(ROWS, LABELS_OF, {"a": CLEAN}, TRUTH, 3, 4)
    twice = chosen_metric(ROWS, LABELS_OF, {"a": CLEAN, "b": CLEAN}, TRUTH, 3, 4)
    assert once[1] == twice[1]
    assert torch.equal(once[0].directions, twice[0].directions)


def test_many_rows_are_thinned_together_with_their_labels():
    thinned = chosen_metric(ROWS, LABELS_OF, SETS, TRUTH, 3, 4, FULL._replace(rows=30))
    few = {name: rows[::4] for name, rows in SETS.items()}
    plain = chosen_metric(ROWS, LABELS_OF, few, TRUTH[::4], 3, 4)
    assert thinned[1] == plain[1]
    assert torch.equal(thinned[0].directions, plain[0].directions)


def test_many_centres_are_tried_by_the_first_of_them():
    """And so are the rows that a metric is made of; the field has all."""
    few = FULL._replace(centers=50, metric_rows=50)
    first = chosen_metric(ROWS[:50], LABELS_OF[:50], SETS, TRUTH, 3, 4)
    found = chosen_metric(ROWS, LABELS_OF, SETS, TRUTH, 3, 4, few)
    assert found[1] == first[1]
    assert torch.equal(found[0].directions, first[0].directions)
    other = chosen_metric(ROWS, LABELS_OF, SETS, TRUTH, 3, 4, few._replace(metric_rows=80))
    assert not torch.equal(other[0].directions, first[0].directions)
    assert len(fields_of(ROWS)[SITE].embeddings) == 80


def test_without_tuning_rows_it_is_the_middle_of_everything():
    metric, width = chosen_metric(ROWS, LABELS_OF, {}, torch.empty(0, dtype=torch.long), 3, 4)
    middle = selection.SHRINKAGES[len(selection.SHRINKAGES) // 2]
    plain = Scatter(ROWS, LABELS_OF, False).metric(middle, 4)
    assert torch.equal(metric.directions, plain.directions)
    assert width == pytest.approx(2.8 * silverman(plain(ROWS)))


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 1e20])
def test_equal_rows_have_no_field(value):
    rows = torch.full((20, 3), value)
    assert chosen_metric(rows, LABELS_OF[:20], {"a": rows[:5]}, TRUTH[:5], 3, 4) is None


def test_one_number_that_never_is_negative():
    """Free of gain it is always 1; as it is, it has two sides."""
    rows = ROWS[:, :1].abs()
    found = chosen_metric(rows, LABELS_OF, {"a": CLEAN[:, :1].abs()}, TRUTH, 3, 4)
    assert found is not None
    assert not found[0].gain_free


def test_a_row_far_from_its_class_counts_for_no_more_than_the_floor():
    """One of four rows has the wrong label; unlimited, it would ask for a wide kernel."""
    angles = torch.tensor([0.0, 0.1, 1.5, 1.6])
    metric = Metric(torch.zeros(2), torch.eye(2), gain_free=False)
    rows = torch.stack([angles.cos(), angles.sin()], 1)
    field = ClassField(metric, rows, torch.tensor([0, 0, 1, 1]), 2, 0.1, torch.arange(4))
    truth = torch.tensor([0, 0, 1, 0])
    widths = [0.1, 0.2]
    likelihoods = selection._likelihoods(field, rows, truth, widths)
    for width, found in zip(widths, likelihoods, strict=True):
        posterior = field.at(width)(rows).posterior.double()
        own = posterior.gather(1, truth[:, None]).log()
        assert float(own.min()) < -20
        assert found == pytest.approx(float(own.clamp(min=-12.0).mean()), abs=1e-6)
        assert found == pytest.approx(-3, abs=0.01)  # the floor of one row in four


# ---------------------------------------------------------------------- the fields of the layers


def examples(rows, labels):
    return {**rows, PLACES: 3 * torch.arange(len(labels)) + 1, LABELS: labels}


def fields_of(rows, condensed=None):
    tuning = Tuning({"clean": (CLEAN, {SITE: CLEAN})}, TRUTH)
    return chosen_fields(examples({SITE: rows}, LABELS_OF), tuning, [SITE], 3, 4, condensed)


def test_a_field_has_every_row_at_the_chosen_metric_and_width():
    field = fields_of(ROWS)[SITE]
    metric, width = chosen_metric(ROWS, LABELS_OF, {"clean": CLEAN}, TRUTH, 3, 4)
    assert field.bandwidth == width
    order = LABELS_OF.argsort(stable=True)  # by class
    assert torch.equal(field.embeddings, metric(ROWS)[order])
    assert torch.equal(field.labels, LABELS_OF[order])
    assert field.counts.tolist() == [1.0] * 80
    assert torch.equal(field.examples, 3 * order + 1)  # places in the loader


@pytest.mark.parametrize("condensed", [12, 80, 1000])
def test_it_is_condensed_where_it_has_more_rows_than_asked_for(condensed):
    whole, field = fields_of(ROWS)[SITE], fields_of(ROWS, condensed)[SITE]
    assert len(field.embeddings) == 11 if condensed == 12 else 80
    assert field.bandwidth == whole.bandwidth
    assert float(field.counts.sum()) == 80
    if condensed >= 80:
        assert torch.equal(field.embeddings, whole.embeddings)


def test_a_constant_layer_is_left_out_and_missing_classes_are_warned_of():
    sites = SITE, LayerSite("b")
    centers = examples({sites[0]: ROWS, sites[1]: torch.ones(80, 2)}, LABELS_OF)
    tuning = Tuning({"clean": (CLEAN, {sites[0]: CLEAN, sites[1]: torch.ones(60, 2)})}, TRUTH)
    with pytest.warns(QIPFWarning) as warned:
        fields = chosen_fields(centers, tuning, sites, 5, 4)
    constant, missing = (str(w.message) for w in warned)
    assert constant.startswith("b (output) gives the same numbers")
    assert "no training examples of class 3, class 4:" in missing
    assert list(fields) == [sites[0]]


# ---------------------------------------------------------------------- weighted centres

PLAIN = Metric(torch.zeros(5), torch.eye(5), gain_free=False)


def many(counts, seed=0):
    """A field with given numbers of centres of each class, in random order."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=random)]
    rows = torch.randn(len(labels), 5, generator=random) + torch.eye(5)[labels % 5]
    places = 1000 + 7 * torch.arange(len(labels))
    return ClassField(PLAIN, PLAIN(rows), labels, len(counts), 0.5, places)


def assert_stands_for(small, whole):
    """Counts, labels and examples of the weighted centres are right."""
    for label in range(whole.classes):
        own, members = small.labels == label, whole.labels == label
        assert bool(own.any()) == bool(members.any())
        if not own.any():
            continue
        assert float(small.counts[own].sum()) == int(members.sum())
        assert (small.counts[own] >= 1).all()
        assert (small.counts[own] % 1 == 0).all()
        # each names the example of its class that is nearest to it
        cosines = small.embeddings[own].double() @ whole.embeddings[members].double().T
        named = (small.examples[own][:, None] == whole.examples[members]).double()
        assert (named.sum(1) == 1).all()
        torch.testing.assert_close((cosines * named).sum(1), cosines.amax(1), atol=1e-6, rtol=0)
    assert float((small.embeddings.norm(dim=1) - 1).abs().max()) < 1e-6
    assert (small.bandwidth, small.classes, small.metric) == (0.5, whole.classes, PLAIN)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 60), min_size=2, max_size=7).filter(lambda counts: sum(counts) > 1),
    st.integers(1, 100),
    st.integers(0, 1000),
)
@pytest.mark.slow
def test_weighted_centres_stand_for_all_of_their_class(counts, size, seed):
    whole = many(counts, seed)
    small = condensed_field(whole, size)
    assert_stands_for(small, whole)
    least = [max(1, size * count // sum(counts)) for count in counts if count]
    assert len(small.embeddings) <= sum(least)
    assert len(small.embeddings) <= max(size, len(least) + size - 1)


@pytest.mark.parametrize("size", [40, 41, 44])
def test_no_more_centres_than_asked_for(size):
    """Shares that would all be rounded up."""
    small = condensed_field(many([55, 55, 55, 55, 55, 55]), size)
    assert len(small.embeddings) == 6 * (size // 6)


def test_classes_of_one_member_keep_it():
    whole = many([1, 50, 1])
    small = condensed_field(whole, 1)
    assert_stands_for(small, whole)
    assert len(small.embeddings) == 3
    for label in (0, 2):
        (place,) = (whole.labels == label).nonzero()[:, 0]
        torch.testing.assert_close(
            small.embeddings[small.labels == label], whole.embeddings[place : place + 1]
        )
        assert small.examples[small.labels == label].tolist() == [int(whole.examples[place])]


def test_centres_enough_for_all_are_the_rows_themselves():
    whole = many([20, 30])
    small = condensed_field(whole, 50)
    assert small.counts.tolist() == [1.0] * 50
    rows = torch.randn(40, 5, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(small(rows).posterior, whole(rows).posterior)
    torch.testing.assert_close(small(rows).log_density, whole(rows).log_density)


def test_more_weighted_centres_are_closer_to_the_whole_field():
    whole = many([300, 500, 400])
    rows = torch.randn(200, 5, generator=torch.Generator().manual_seed(3))
    off = [
        float((condensed_field(whole, size)(rows).posterior - whole(rows).posterior).abs().mean())
        for size in (3, 60, 600)
    ]
    assert off[0] > off[1] > off[2]
    assert off[2] < 0.01


def test_equal_rows_become_one_centre():
    embeddings = torch.ones(30, 5) / 5**0.5
    whole = ClassField(PLAIN, embeddings, torch.arange(30) % 2, 2, 0.5, torch.arange(30))
    small = condensed_field(whole, 10)
    assert_stands_for(small, whole)
    torch.testing.assert_close(small(embeddings).posterior, whole(embeddings).posterior)


def test_the_same_rows_give_the_same_centres():
    one, two = (condensed_field(many([200, 300]), 40) for _ in range(2))
    assert torch.equal(one.embeddings, two.embeddings)
    assert torch.equal(one.examples, two.examples)
