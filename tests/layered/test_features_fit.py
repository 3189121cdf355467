"""What FeatureQIPF is fitted on: centres, tuning examples, perturbed copies, seeds."""

import pickle

import numpy as np
import pytest
import torch

from qipf import FeatureQIPF, QIPFInputError, QIPFNotFittedError, QIPFWarning
from qipf.layered.holdout import ONE_IN
from tests.layered.feature_examples import FEW, FRESH, HELD_OUT, TRAIN, examples


@pytest.mark.slow
def test_examples_to_tune_with_are_no_centres():
    model = FeatureQIPF(max_tuning=60).fit(*TRAIN)
    assert len(model.fields_[0].embeddings) == 400 - 60
    few = FeatureQIPF().fit(*TRAIN)
    assert len(few.fields_[0].embeddings) == 400 - 400 // ONE_IN
    own = FeatureQIPF().fit(*TRAIN, held_out=HELD_OUT)
    assert sorted(own.fields_[0].examples.tolist()) == list(range(400))
    assert torch.equal(own.fields_[0].labels, torch.from_numpy(np.sort(TRAIN[2])))


def test_a_fast_fit_holds_out_fewer_of_both_kinds():
    model, random = FeatureQIPF(effort="fast"), np.random.RandomState(0)
    assert len(model._split(5000, None, random)[1]) == 250
    assert len(model._split(5000, 2000, random)[1]) == 250


def test_a_coreset_stands_for_all_examples():
    model = FeatureQIPF(max_centers=40, reduction="coreset").fit(*TRAIN)
    for field in model.fields_:
        assert float(field.counts.sum()) == 320
        assert len(field.embeddings) <= 40


@pytest.mark.slow
def test_perturbed_copies_are_used_and_told():
    features, logits, labels = TRAIN
    random = np.random.default_rng(3)
    noisy = {name: v + 0.4 * random.normal(size=v.shape) for name, v in features.items()}
    copies = {"noise": (noisy, 6 * noisy["deep"])}
    model = FeatureQIPF(**FEW).fit(features, logits, labels, perturbed=copies)
    assert model.perturbed_ == ("noise",)
    assert "perturbed     noise" in model.summary()
    without = FeatureQIPF(**FEW).fit(features, logits, labels)
    assert not torch.equal(model.weights_, without.weights_)
    with pytest.raises(QIPFInputError, match="a copy of each of the 600 held-out"):
        FeatureQIPF().fit(*TRAIN, held_out=HELD_OUT, perturbed=copies)
    shorter = {"noise": ({name: v[:9] for name, v in noisy.items()}, logits[:9])}
    with pytest.raises(QIPFInputError, match="a copy of each of the 400 training"):
        FeatureQIPF().fit(*TRAIN, perturbed=shorter)


def test_the_last_layer_serves_the_novelty_of_few_examples():
    features, logits, labels = examples(40, 0)
    with pytest.warns(QIPFWarning, match="novelty is minus the log density of deep"):
        model = FeatureQIPF().fit(features, logits, labels)
    fresh, z, _ = examples(30, 1)
    assert [site.layer for site in model.layers_] == ["deep"]
    np.testing.assert_allclose(
        model.novelty(fresh, z), -model.log_density(fresh, z)[:, 0], rtol=1e-6
    )


def test_autocast_does_not_reach_the_fit():
    plain = FeatureQIPF(**FEW).fit(*TRAIN)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model = FeatureQIPF(**FEW).fit(*TRAIN)
    assert torch.equal(model.lengths_.shortest, plain.lengths_.shortest)
    assert model.novelty_model_.parameters() == plain.novelty_model_.parameters()
    assert model.error_model_.parameters() == plain.error_model_.parameters()


def test_a_copy_cannot_be_named_clean():
    with pytest.raises(QIPFInputError, match="'clean', which is the name of the examples"):
        FeatureQIPF().fit(*TRAIN, perturbed={"clean": TRAIN[:2]})
    with pytest.raises(QIPFInputError, match="perturbed must be a dict of .features, logits."):
        FeatureQIPF().fit(*TRAIN, perturbed=[1])


@pytest.mark.slow
@pytest.mark.parametrize("centers", [200, 400])  # a sample of the training examples, or all
def test_neither_training_nor_held_out_examples_calibrate(centers):
    other = examples(500, 7)
    model = FeatureQIPF(**{**FEW, "max_centers": centers}).fit(*TRAIN, held_out=other)
    assert model.training_sample().total == 900
    assert len(model.training_sample().rows) == 900 * centers // 400
    for seen in (TRAIN, other):
        with pytest.raises(QIPFInputError, match="About .*% of the calibration rows are training"):
            model.calibrate(*seen)
    assert model.calibration_ is None
    model.calibrate(*HELD_OUT)


@pytest.mark.slow
def test_a_model_keeps_no_view_of_the_arrays():
    features, logits, labels = examples(400, 8)
    model = FeatureQIPF(**FEW).fit(features, logits, labels)
    before = model._few(None).logits.clone()
    size = len(pickle.dumps(model))
    longer = FeatureQIPF(**FEW).fit(*examples(4000, 8))
    assert len(pickle.dumps(longer)) < 1.2 * size
    for part in (logits, *features.values()):
        part[:] = np.nan
    few = model._few(None)  # what it is exported with
    assert torch.equal(few.logits, before)
    assert all(bool(torch.isfinite(rows).all()) for rows in few.given.values())


@pytest.mark.slow
def test_a_fit_that_fails_leaves_the_model_as_it_was(monkeypatch):
    kept = FeatureQIPF(**FEW).fit(*TRAIN).calibrate(*HELD_OUT)
    kept.accept_rule(max_risk=0.02)
    before = kept.digest(), kept.rule_, kept.uncertainty(*FRESH[:2])

    def fails(*args):
        raise MemoryError

    monkeypatch.setattr("qipf.layered.fitting.error_detection", fails)
    with pytest.raises(MemoryError):
        kept.fit(*examples(300, 9))
    assert (kept.digest(), kept.rule_) == before[:2]
    np.testing.assert_array_equal(kept.uncertainty(*FRESH[:2]), before[2])


@pytest.mark.slow
def test_one_logit_is_that_of_class_one_against_class_zero():
    features, logits, labels = TRAIN
    one = logits[:, 1:2] - logits[:, :1]
    binary = labels < 2
    part = {name: value[binary] for name, value in features.items()}
    single = FeatureQIPF(**FEW).fit(part, one[binary], labels[binary])
    double = np.concatenate([np.zeros_like(one), one], 1)
    both = FeatureQIPF(**FEW).fit(part, double[binary], labels[binary])
    np.testing.assert_array_equal(
        single.uncertainty(part, one[binary]), both.uncertainty(part, double[binary])
    )
    assert set(single(part, one[binary]).predicted) == {0, 1}
    program = single.export()
    inputs = program.example_inputs[0]
    np.testing.assert_array_equal(inputs[0], one[binary][: len(inputs[0])])
    few = [torch.from_numpy(part[site.layer][:3]) for site in single.layers_]
    found = program.module()(torch.from_numpy(one[binary][:3]), *few)["uncertainty"]
    np.testing.assert_allclose(
        found, single.uncertainty(part, one[binary])[:3], rtol=1e-4, atol=1e-5
    )


@pytest.mark.slow
def test_the_same_seed_gives_the_same_model():
    one, two = (FeatureQIPF(**FEW).fit(*TRAIN) for _ in range(2))
    assert one.digest() == two.digest()
    assert FeatureQIPF(**FEW, random_state=1).fit(*TRAIN).digest() != one.digest()


def test_invalid_use_is_rejected():
    features, logits, labels = TRAIN
    with pytest.raises(QIPFNotFittedError, match=r"Call fit\(features, logits, labels\) first"):
        FeatureQIPF().uncertainty(features, logits)
    with pytest.raises(QIPFInputError, match="max_tuning"):
        FeatureQIPF(max_tuning=0).fit(features, logits, labels)
    with pytest.raises(QIPFInputError, match="Did you mean 'fast'"):
        FeatureQIPF(effort="faster").fit(features, logits, labels)
    with pytest.raises(QIPFInputError, match="labels must hold classes 0..3"):
        FeatureQIPF().fit(features, logits, labels + 1)
    with pytest.raises(QIPFInputError, match="labels are needed"):
        FeatureQIPF().fit(features, logits, None)
    with pytest.raises(QIPFInputError, match="needs at least a few dozen"):
        FeatureQIPF().fit({"a": np.ones((1, 2))}, np.ones((1, 3)), [0])
    with pytest.raises(QIPFInputError, match="have .* numbers per prediction"):
        FeatureQIPF().fit(
            *TRAIN,
            held_out=(
                {"early": np.ones((4, 3)), "deep": np.ones((4, 4))},
                np.ones((4, 4)),
                [0] * 4,
            ),
        )
