"""torch.export: any kind of network, a batch of any length, the network left as it was."""

import math
import re
import warnings

import pytest
import torch
from torch import nn

import qipf
from qipf import QIPFError, QIPFInputError, QIPFWarning
from qipf.export.program import (
    ExactConstants,
    Example,
    checked_example,
    shortened,
    varying_tokens,
    with_tokens,
)
from tests.conftest import make_logits
from tests.network.test_wrapped import Net


@pytest.fixture(scope="module")
def images():
    return torch.randn(60, 1, 8, 8, generator=torch.Generator().manual_seed(1))


class Pair(nn.Module):
    """Two inputs, an option, and logits in a dict."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 5, dtype=torch.float64)
        self.second = nn.Linear(5, 2, dtype=torch.float64)

    def forward(self, left, right, sign=1.0):
        return {"logits": self.second(torch.tanh(self.first(left + sign * right)))}


@pytest.fixture
def pair():
    torch.manual_seed(0)
    return Pair()


@pytest.fixture
def halves():
    return torch.randn(2, 50, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def wrapped(net, **how):
    """With two modes, since every mode takes its time to trace."""
    return qipf.wrap(net, field=qipf.QIPF(orders=(1, 2)), **how)


def assert_agrees(judged, model, *inputs, **options):
    prediction = model(*inputs, **options)
    torch.testing.assert_close(judged["logits"], prediction.logits)
    torch.testing.assert_close(
        judged["uncertainty"], prediction.uncertainty, rtol=1e-4, atol=1e-4, check_dtype=False
    )


@pytest.mark.slow
def test_digits_for_a_batch_of_any_length(digits):
    model, images = digits
    program = model.export()
    for length in (0, 1, 7, 64, len(images)):
        judged = program.module()(images[:length])
        assert list(judged) == ["logits", "uncertainty", "modes", "novelty"]
        assert judged["modes"].shape == (length, 4)
        assert_agrees(judged, model, images[:length])


@pytest.mark.slow
def test_a_program_survives_its_file(digits, rule, tmp_path):
    model, images = digits
    program = model.export(images, rule=rule)
    torch.export.save(program, tmp_path / "digits.pt2")
    loaded = torch.export.load(tmp_path / "digits.pt2").module()(images)
    for name, values in program.module()(images).items():
        assert torch.equal(loaded[name], values)
    torch.testing.assert_close(loaded["accepted"], loaded["uncertainty"] <= rule.threshold)
    assert 0 < loaded["accepted"].sum() < len(images)


@pytest.mark.slow
def test_the_fields_own_rule_is_the_default(images):
    model = wrapped(Net()).fit([images])
    scores = model(images).uncertainty
    model.field.rule_ = qipf.accept_rule(scores, scores > scores.median(), min_coverage=0.5)
    judged = model.export().module()(images)
    assert torch.equal(judged["accepted"], judged["uncertainty"] <= model.field.rule_.threshold)
    assert 0 < judged["accepted"].sum() < len(images)


@pytest.mark.slow
@pytest.mark.parametrize(
    "pooling", ["mean", "flatten", lambda maps: maps.amax((2, 3))], ids=["mean", "flatten", "max"]
)
def test_a_layer_with_its_pooling(pooling, images):
    model = wrapped(Net(), layer="backbone.0", pooling=pooling).fit([images])
    judged = model.export().module()(images[:9])
    assert_agrees(judged, model, images[:9])


@pytest.mark.slow
def test_an_activation_in_place_does_not_reach_the_layer_before_it(images):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, 3))
    model = wrapped(net, layer="0").fit([images])
    assert_agrees(model.export().module()(images), model, images)


@pytest.mark.slow
def test_several_inputs(pair, halves):
    model = wrapped(pair).fit([(tuple(halves),)])
    judged = model.export(tuple(halves)).module()(*halves[:, :5])
    assert_agrees(judged, model, *halves[:, :5])


@pytest.mark.slow
def test_keyword_inputs_and_an_option_that_stays(pair, halves):
    batch = {"left": halves[0], "right": halves[1], "sign": -1.0}
    model = wrapped(pair).fit([batch])
    judged = model.export(batch).module()(*halves)
    assert_agrees(judged, model, **batch)


@pytest.mark.slow
def test_one_row_is_example_enough(images):
    model = wrapped(Net()).fit([images])
    assert_agrees(model.export(images[:1]).module()(images), model, images)


@pytest.mark.slow
def test_the_network_is_left_as_it_was(images):
    net = Net().train()
    net.drop.eval()
    model = wrapped(net, layer="backbone").fit([images])
    state = {name: value.clone() for name, value in net.state_dict().items()}
    model.export()
    assert (net.training, net.drop.training, net.backbone.training) == (True, False, True)
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
    assert not net.backbone._forward_hooks


def test_what_fit_saw_is_remembered_by_a_few_rows(images):
    seen = images.clone()
    model = wrapped(Net()).fit([seen])
    (kept,), options = model._example
    seen.zero_()
    assert torch.equal(kept, images[:16])
    assert options == {}


class Branching(nn.Linear):
    def forward(self, x):
        logits = super().forward(x)
        return logits if logits.sum() > 0 else -logits


class OddBatches(nn.Linear):
    def forward(self, x):
        return super().forward(x) if len(x) % 2 == 0 else super().forward(-x)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "reason"), [(Branching, "data-dependent expression"), (OddBatches, "Constraints")]
)
def test_networks_that_cannot_be_traced_are_rejected(kind, reason, capfd):
    torch.manual_seed(0)
    model = wrapped(kind(3, 2)).fit([torch.randn(40, 3)])
    with pytest.raises(QIPFError, match=f"torch.export cannot trace the network.*{reason}"):
        model.export()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("example", "phrase"),
    [
        (torch.zeros(2, 3, 8, 8), "cannot take input of shape (2, 3, 8, 8), float32: Given"),
        (torch.zeros(0, 1, 8, 8), "at least 1. Got input of shape (0, 1, 8, 8)"),
        ((torch.zeros(2, 1, 8, 8), torch.zeros(3)), "tensors of one length"),
        (torch.tensor(1.0), "Got input of shape ()"),
        ("images", "It has no tensor"),
        ((torch.zeros(2, 1, 8, 8), [torch.zeros(2)]), "2 positional arguments but 3 were given"),
        (torch.full((2, 1, 8, 8), torch.nan), "2 rows with NaN or inf"),
    ],
)
def test_invalid_examples_are_rejected(example, phrase, images):
    model = wrapped(Net()).fit([images])
    with pytest.raises(QIPFInputError, match=re.escape(phrase)):
        model.export(example)


def test_a_model_that_has_seen_no_inputs_needs_an_example(images):
    field = wrapped(Net()).fit([images]).field
    with pytest.raises(QIPFInputError, match="Pass example="):
        qipf.wrap(Net(), field=field).export()


def test_what_is_no_rule_is_rejected(images):
    with pytest.raises(QIPFInputError, match="rule must be an AcceptRule"):
        wrapped(Net()).fit([images]).export(rule=0.5)


@pytest.mark.slow
def test_a_rule_of_the_whole_field_does_not_hold_for_the_condensed_one():
    field = qipf.QIPF(orders=(1,)).fit(make_logits(100).numpy())
    rule = qipf.accept_rule(field.uncertainty(field.centers_), [False] * 100, max_risk=0.1)
    model = qipf.wrap(nn.Linear(3, 10), field=field)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        model.export(torch.randn(2, 3), rule=rule, max_centers=50)
    (warning,) = [w for w in warned if w.category is QIPFWarning]
    assert "100 centres, and the file has 50" in str(warning.message)
    assert warning.filename == __file__


class Constants(nn.Module):
    """The functions that the field's graph calls with Python numbers."""

    def forward(self, x):
        with ExactConstants():
            return torch.stack(
                [
                    x * math.pi,
                    torch.add(x, 1e300),
                    torch.full_like(x, 0.1),
                    torch.nan_to_num(x / 0.0, 0.1, 1e300, -1e300),
                    torch.clamp(x, min=1 / 3),
                ]
            )


def test_the_values_are_those_of_plain_torch():
    x = torch.tensor([0.0, 1.5, -2.0], dtype=torch.float64)
    expected = torch.stack(
        [
            x * math.pi,
            x + 1e300,
            torch.full_like(x, 0.1),
            torch.tensor([0.1, 1e300, -1e300], dtype=torch.float64),
            x.clamp(min=1 / 3),
        ]
    )
    assert torch.equal(Constants()(x), expected)


class Reader(nn.Module):
    """Tokens of any number, or of one number only."""

    def __init__(self, fixed):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.Embedding(20, 4), nn.Linear(36 if fixed else 4, 3)
        self.fixed = fixed

    def forward(self, tokens):
        rows = self.words(tokens)
        return self.head(rows.flatten(1) if self.fixed else rows.mean(1))


@pytest.mark.slow
@pytest.mark.parametrize("fixed", [False, True])
def test_the_number_of_tokens_is_free_where_the_network_allows_it(fixed):
    tokens = torch.randint(20, (40, 9), generator=torch.Generator().manual_seed(0))
    model = wrapped(Reader(fixed)).fit([tokens])
    program = model.export()
    few = checked_example(Example((tokens,), {}))
    assert with_tokens(few) == [0]
    assert varying_tokens(program, few) == ([] if fixed else [0])
    for length in [9] if fixed else [2, 5, 9, 30]:
        shown = tokens.repeat(1, 4)[:7, :length]
        assert_agrees(program.module()(shown), model, shown)


class Categories(nn.Module):
    """Three columns of integers, each with an embedding of its own."""

    def __init__(self):
        super().__init__()
        self.columns = nn.ModuleList([nn.Embedding(10, 4) for _ in range(3)])
        self.head = nn.Linear(12, 3)

    def forward(self, values):
        assert values.shape[1] == 3, "three columns"
        return self.head(torch.cat([own(values[:, i]) for i, own in enumerate(self.columns)], 1))


@pytest.mark.slow
def test_columns_of_categories_are_no_tokens(tmp_path):
    values = torch.randint(10, (40, 3), generator=torch.Generator().manual_seed(0))
    model = wrapped(Categories()).fit([values])
    few = checked_example(Example((values,), {}))
    assert varying_tokens(model.export(), few) == []
    written = model.export_onnx(tmp_path / "model.onnx")
    assert written.difference is None or written.difference < 1e-4


def test_the_last_tokens_are_left_out():
    ids, mask = torch.zeros(4, 6, dtype=torch.long), torch.ones(4, 6)
    example = Example((ids, torch.zeros(4, 3)), {"attention_mask": mask})
    shorter = shortened(example, [0, 2])
    assert [part.shape for part in shorter.tensors.values()] == [(4, 5), (4, 3), (4, 5)]
    assert shortened(example, []) is None
    assert shortened(Example((ids[:, :2],), {}), [0]) is None
    mask = torch.tensor([[0.0, 0, 0, 0, 0, 1]]).repeat(4, 1)  # padded on the left
    assert shortened(Example((ids,), {"attention_mask": mask}), [0, 1]) is None


def test_only_integers_and_what_is_as_long_are_tokens():
    ids, mask = torch.zeros(4, 6, dtype=torch.long), torch.ones(4, 6)
    example = Example((ids, torch.zeros(4, 3)), {"attention_mask": mask, "kinds": ids[:, :1]})
    assert with_tokens(example) == [0, 2, 3]
    assert with_tokens(Example((torch.zeros(4, 6),), {})) == []
    assert with_tokens(Example((torch.zeros(4, 1, 6, 6, dtype=torch.uint8),), {})) == []
