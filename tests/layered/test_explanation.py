"""Explanations say what the numbers say."""

import copy
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from qipf import QIPFInputError
from qipf.layered.class_field import ClassField
from qipf.layered.explanation import Explanation, LayerPosterior, Neighbor, _neighbors, shares
from qipf.layered.metric import Metric


def test_an_explanation_is_the_prediction_taken_apart(model, fresh):
    prediction, posteriors = model(fresh), model.posteriors(fresh)
    names = ["softmax", *map(str, model.layers_)]
    for i, told in enumerate(model.explain(fresh)):
        k = int(prediction.predicted[i])
        assert told.predicted == k
        assert told.uncertainty == pytest.approx(float(prediction.uncertainty[i]))
        assert told.probability == pytest.approx(float(prediction.probabilities[i, k]))
        assert [o.name for o in told.posteriors] == names
        assert [o.weight for o in told.posteriors] == model.weights_.tolist()
        for posterior, q in zip(told.posteriors, posteriors[i], strict=True):
            assert posterior.label == int(q.argmax())
            assert posterior.confidence == pytest.approx(float(q.max()))
            assert posterior.support == pytest.approx(float(q[k]))
            off = posterior.weight * (1 - posterior.support) / (1 - told.probability)
            assert posterior.share == pytest.approx(off, abs=1e-6)
        assert sum(o.share for o in told.posteriors) == pytest.approx(1)
        assert told.disagreeing == tuple(o.name for o in told.posteriors if o.label != k)


def test_neighbours_are_the_nearest_centres_of_the_two_classes(model, fresh, data):
    from qipf.network.features import run_in_batches

    with torch.no_grad():
        _, rows = run_in_batches(model.net.eval(), fresh, model.layers_)
    fields = dict(zip(map(str, model.layers_), model.fields_, strict=True))
    read = {str(site): part for site, part in rows.items()}
    posteriors = model.posteriors(fresh)
    for i, told in enumerate(model.explain(fresh, nearest=4)):
        layers = told.posteriors[1:]
        assert told.layer == max(layers, key=lambda o: o.share).name
        number = 1 + [o.name for o in layers].index(told.layer)
        others = posteriors[i, number].clone()
        others[told.predicted] = -1
        assert told.rival == int(others.argmax())
        field = fields[told.layer]
        cosines = (field.metric(read[told.layer][i : i + 1]) @ field.embeddings.T)[0]
        for label, found in ((told.predicted, told.nearest), (told.rival, told.nearest_rival)):
            own = (field.labels == label).nonzero()[:, 0]
            expected = own[cosines[own].argsort(descending=True)][:4]
            assert [n.index for n in found] == field.examples[expected].tolist()
            assert [n.cosine for n in found] == pytest.approx(cosines[expected].tolist(), abs=1e-5)
            # places in the loader's order: the labels there are those that are told
            assert [int(data[1][n.index]) for n in found] == [label] * 4 == [n.label for n in found]


def test_weighted_centres_name_the_examples_nearest_to_them(condensed, fresh, data):
    fields = dict(zip(map(str, condensed.layers_), condensed.fields_, strict=True))
    for told in condensed.explain(fresh, nearest=4):
        field = fields[told.layer]
        for label, found in ((told.predicted, told.nearest), (told.rival, told.nearest_rival)):
            assert [n.label for n in found] == [label] * 4
            assert [int(data[1][n.index]) for n in found] == [label] * 4
            assert [n.cosine for n in found] == sorted((n.cosine for n in found), reverse=True)
            own = set(field.examples[field.labels == label].tolist())
            assert {n.index for n in found} <= own


def test_a_class_with_few_centres_has_few_neighbours(model, fresh):
    told = model.explain(fresh[:1], nearest=1000)[0]
    own = int((model.fields_[0].labels == told.predicted).sum())
    assert len(told.nearest) == own
    assert len({n.index for n in told.nearest}) == own


def test_certainty_is_doubted_by_the_weights():
    weights = torch.tensor([0.6, 0.4], dtype=torch.float64)
    found = shares(torch.tensor([[0, 0], [1e-300, 0], [0.2, 0.3]], dtype=torch.float64), weights)
    torch.testing.assert_close(found[0], weights)
    assert found[1].tolist() == [1.0, 0.0]
    torch.testing.assert_close(found[2], torch.tensor([0.5, 0.5]).double())


def test_in_words():
    told = Explanation(
        predicted=3,
        uncertainty=0.4055,
        probability=0.4,
        posteriors=(
            LayerPosterior("softmax", 0.25, 3, 0.9, 0.9, 0.041),
            LayerPosterior("conv2 (input)", 0.75, 5, 0.7, 0.2333, 0.959),
        ),
        layer="conv2 (input)",
        rival=5,
        nearest=(Neighbor(17, 3, 0.81), Neighbor(4, 3, 0.8)),
        nearest_rival=(Neighbor(1203, 5, 0.95),),
    )
    assert str(told).splitlines() == [
        "class 3, uncertainty 0.406: the network and its layers give it 40.0%",
        "  prefer another class: conv2 (input)",
        "  layer          weight  prefers            class 3      share",
        "  softmax         25.0%  class 3 (90.0%)          90.0%   4.1%",
        "  conv2 (input)   75.0%  class 5 (70.0%)          23.3%  95.9%",
        "  nearest training examples in conv2 (input) (largest share):",
        "    of class 3: 17 (cosine 0.810), 4 (cosine 0.800)",
        "    of class 5: 1203 (cosine 0.950)",
    ]


@pytest.mark.parametrize(
    ("uncertainty", "novelty", "verdict"),
    [
        (-1.0, -2.0, "nothing unusual: the mixture gives class 0 88.0%"),
        (1.0, -2.0, "probably wrong: a prefers class 4 (70.0%)"),
        (-1.0, 2.0, "novelty above zero: the largest term of the novelty is that of energy (2)"),
        (
            1.0,
            2.0,
            "probably wrong, novelty above zero: a prefers class 4 (70.0%), and the largest "
            "term of the novelty is that of energy (2)",
        ),
    ],
)
def test_which_of_the_two_scores_is_high_and_why(uncertainty, novelty, verdict):
    terms = (("constant", -0.5), ("mixture", uncertainty + 0.5), ("softmax", 0.0))
    told = Explanation(
        0,
        uncertainty,
        0.88,
        (
            LayerPosterior("softmax", 0.5, 0, 0.88, 0.88, 0.3),
            LayerPosterior("a", 0.5, 4, 0.7, 0.2, 0.7),
        ),
        None,
        None,
        (),
        (),
        novelty,
        terms,
        (("constant", 9.0), ("energy", novelty), ("distance", -9.0)),
    )
    p_error = 1 / (1 + np.exp(-uncertainty))
    assert told.p_error == pytest.approx(p_error)
    assert str(told).splitlines()[1:5] == [
        f"  {verdict}",
        f"  probability of an error {p_error:.1%}, novelty {novelty:.3g}",
        f"  uncertainty = -0.5 (constant) + {uncertainty + 0.5:.3g} (mixture)",
        f"  novelty = 9 (constant) + {novelty:.3g} (energy) + -9 (distance)",
    ]
    alone = replace(told, posteriors=told.posteriors[:1], uncertainty=1.0, novelty=None)
    assert alone.reason == "softmax gives class 0 no more than 88.0%"


def test_terms_of_both_scores(model, fresh):
    prediction = model(fresh)
    for i, told in enumerate(model.explain(fresh)):
        assert sum(value for _, value in told.terms) == pytest.approx(told.uncertainty)
        assert sum(value for _, value in told.novelty_terms) == pytest.approx(told.novelty)
        assert told.p_error == pytest.approx(float(prediction.p_error[i]))
        assert told.novelty == pytest.approx(float(prediction.novelty[i]))
        layers = [posterior.name for posterior in told.posteriors]
        assert [name for name, _ in told.terms] == ["constant", "mixture", *layers]
        named = [name for name, _ in told.novelty_terms]
        assert named == ["constant", "energy", layers[-1], "residual", "distance", "mixture"]
    assert Explanation(0, -1e4, 1.0, (), None, None, (), ()).p_error == 0.0


@pytest.mark.parametrize(
    ("novelty", "p_value", "verdict"),
    [(2.0, 0.0501, "nothing unusual"), (-1.0, 0.05, "unlike the training data")],
)
def test_a_novelty_with_a_p_value_is_high_where_that_is_small(novelty, p_value, verdict):
    told = Explanation(
        0, -1.0, 0.9, (LayerPosterior("softmax", 1.0, 0, 0.9, 0.9, 1.0),), None, None, (), (),
        novelty, novelty_terms=(("energy", novelty),), novelty_p_value=p_value,
    )  # fmt: skip
    assert told.verdict == verdict
    assert ("term of the novelty" in told.reason) == (p_value <= 0.05)
    assert f"novelty {novelty:.3g} (p-value {p_value:.3f})" in str(told)
    assert f"{novelty:.3g} (p-value {p_value:.3f}) = " in told._repr_html_()


def test_p_values_of_a_calibrated_model_are_those_of_its_predictions(model, fresh, data):
    assert {told.novelty_p_value for told in model.explain(fresh)} == {None}
    calibrated = copy.deepcopy(model)
    calibrated._set_calibration(model._outcomes_of([(fresh + 0.1, data[1][: len(fresh)])]))
    found = [told.novelty_p_value for told in calibrated.explain(fresh)]
    assert found == calibrated(fresh).novelty_p_value.tolist()


def test_in_words_without_layers():
    told = Explanation(
        0, -2.0, 0.88, (LayerPosterior("softmax", 1.0, 0, 0.88, 0.88, 1.0),), None, None, (), ()
    )
    assert str(told).splitlines() == [
        "class 0, uncertainty -2: the network and its layers give it 88.0%",
        "  prefer another class: none",
        "  layer    weight  prefers            class 0      share",
        "  softmax  100.0%  class 0 (88.0%)          88.0%  100.0%",
    ]


def test_nothing_to_explain(model, fresh):
    assert model.explain(fresh[:0]) == []


@pytest.mark.parametrize("nearest", [0, -1, 2.5, True, "3", None])
def test_what_is_no_number_of_neighbours(model, fresh, nearest):
    message = f"nearest must be an integer of at least 1, got {nearest!r}."
    with pytest.raises(QIPFInputError, match=f"^{re.escape(message)}$"):
        model.explain(fresh, nearest)


def test_the_reason_of_a_novelty_is_its_largest_term():
    terms = (("constant", 9.0), ("energy", 2.0), ("last layer", -1.0), ("distance", 0.5))
    told = Explanation(1, -2.0, 0.9, (), None, None, (), (), novelty=1.5, novelty_terms=terms)
    assert told.reason == "the largest term of the novelty is that of energy (2)"


def test_an_example_is_named_once_though_it_stands_for_several_centres():
    angles = torch.linspace(0, 1, 6)
    metric = Metric(torch.zeros(2), torch.eye(2), False)
    centers = torch.stack([angles.cos(), angles.sin()], 1)
    examples, labels = torch.tensor([7, 7, 8, 8, 9, 9]), torch.zeros(6, dtype=torch.long)
    field = ClassField(metric, centers, labels, 2, 0.5, examples)
    (near,) = _neighbors(field, torch.tensor([[1.0, 0.0]]), torch.tensor([0]), 2)
    assert [neighbor.index for neighbor in near] == [7, 8]
    assert near[0].cosine == pytest.approx(1.0)
