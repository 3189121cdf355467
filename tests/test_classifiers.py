"""Kinds of classifiers: one logit, several labels, pixels, several inputs, text; all verbs on each.

`docs/classifiers.md` names these tests.
"""

import pickle

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import qipf
from qipf import LayeredQIPF, ShiftMonitor
from qipf.validation.labels import class_logits


def uniform(*shape, seed):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def normal(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Kind:
    """A network, inputs for it, and how its predictions lie in its output."""

    shape: tuple[int, ...] = ()  # of the predictions of one input
    ignored = 0.0  # share of labels that are unknown
    makers = ("wrap", "layered")

    def net(self):
        torch.manual_seed(0)
        return self.make().eval()

    def rows(self, output):
        """The logits of each prediction: the definition that the library is compared with."""
        return output if output.ndim == 2 and output.shape[1] > 1 else output.reshape(-1, 1)

    def output(self, batch):
        with torch.no_grad():
            return run(NETS[self.name], batch)

    def labelled(self, count, seed):
        """Inputs, and labels that the network misses more often the less its class leads."""
        batch = self.inputs(count, seed)
        logits = class_logits(self.rows(self.output(batch)))
        top = logits.topk(2, 1)
        lead = top.values[:, 0] - top.values[:, 1]
        missed = uniform(len(lead), seed=seed) < 0.3 * torch.exp(-2 * lead)
        missed |= self.weak(batch) & (uniform(len(lead), seed=seed + 2) < 0.8)
        labels = torch.where(missed, top.indices[:, 1], top.indices[:, 0])
        labels[uniform(len(lead), seed=seed + 1) < self.ignored] = -100
        return batch, labels.reshape(count, *self.shape)

    def weak(self, batch):
        """Where the network errs whatever its logits: what layers can know, and logits cannot."""
        return torch.zeros((), dtype=torch.bool)

    def loader(self, count, seed, size=50):
        return [
            self.batch(*self.labelled(min(size, count - start), seed * 1000 + start))
            for start in range(0, count, size)
        ]

    def batch(self, inputs, labels):
        return inputs, labels


def run(net, batch):
    if isinstance(batch, torch.Tensor):
        found = net(batch)
    elif isinstance(batch, tuple):
        found = net(*batch)
    else:
        found = net(**batch)
    return found if isinstance(found, torch.Tensor) else found["logits"]


class OneLogit(Kind):
    """(n, 1), trained with BCEWithLogitsLoss; labels are floats."""

    name = "one logit"

    def make(self):
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def inputs(self, count, seed):
        return 2 * normal(count, 4, seed=seed)

    def weak(self, batch):
        return batch[:, 0] > 2

    def batch(self, inputs, labels):
        return inputs, labels.double()[:, None]


class MultiLabel(Kind):
    name = "multilabel"
    shape, makers = (5,), ("wrap",)

    def make(self):
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 5))

    def rows(self, output):
        return output.reshape(-1, 1)

    def inputs(self, count, seed):
        return 2 * normal(count, 4, seed=seed)


class Segmentation(Kind):
    name = "segmentation"
    shape, makers, ignored = (6, 5), ("wrap",), 0.1

    def make(self):
        return nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.Tanh(), nn.Conv2d(6, 3, 1))

    def rows(self, output):
        return output.permute(0, 2, 3, 1).reshape(-1, 3)

    def inputs(self, count, seed):
        return 2 * normal(count, 1, 6, 5, seed=seed)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3), nn.Linear(3, 16)
        self.inner, self.head = nn.Linear(32, 8), nn.Linear(8, 3)

    def forward(self, image, table):
        seen = torch.cat([self.first(image).flatten(1), self.second(table)], 1)
        return {"logits": 3 * self.head(self.inner(seen.tanh()).tanh())}


class Several(Kind):
    """An image and a row of a table, as a tuple; logits in a dict."""

    name = "several inputs"

    def make(self):
        return Two()

    def inputs(self, count, seed):
        return normal(count, 1, 4, 4, seed=seed), normal(count, 3, seed=seed + 1)

    def weak(self, batch):
        table = batch["table"] if isinstance(batch, dict) else batch[1]
        return table[:, 0] > 0.5


class Keywords(Several):
    """The same by keyword, with the labels in the dict."""

    name = "keyword inputs"

    def inputs(self, count, seed):
        image, table = super().inputs(count, seed)
        return {"image": image, "table": table}

    def batch(self, inputs, labels):
        return {**inputs, "labels": labels}


class Text(Kind):
    """A BERT of `transformers`, built from its config and trained; a BatchEncoding a batch."""

    name = "text"

    def make(self):
        from transformers import BertConfig, BertForSequenceClassification

        net = BertForSequenceClassification(
            BertConfig(
                vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                intermediate_size=32, max_position_embeddings=20, num_labels=3,
            )
        )  # fmt: skip
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        for step in range(40):
            batch = self.inputs(32, step)
            optimizer.zero_grad()
            net(**batch, labels=self.truth(batch)).loss.backward()
            optimizer.step()
        return net

    def truth(self, batch):
        """Which third of the vocabulary is most common."""
        ids = batch["input_ids"]
        thirds = torch.stack([((ids > 3) & (ids % 3 == third)).sum(1) for third in range(3)], 1)
        return thirds.argmax(1)

    def inputs(self, count, seed):
        from transformers import BatchEncoding

        random = torch.Generator().manual_seed(seed)
        longest = 8 + seed % 3  # as if every batch were padded to its own longest text
        ids = torch.randint(4, 40, (count, longest), generator=random)
        length = torch.randint(5, longest + 1, (count, 1), generator=random)
        places = torch.arange(longest)
        ids[:, 0] = 1
        ids = torch.where(places == length - 1, 2, torch.where(places < length, ids, 0))
        return BatchEncoding({"input_ids": ids, "attention_mask": (ids > 0).long()})

    def batch(self, inputs, labels):
        from transformers import BatchEncoding

        return BatchEncoding({**inputs, "labels": self.truth(inputs)})


KINDS = {
    kind.name: kind() for kind in (OneLogit, MultiLabel, Segmentation, Several, Keywords, Text)
}


class Nets(dict):
    def __missing__(self, name):
        self[name] = KINDS[name].net()
        return self[name]


NETS, _fitted = Nets(), {}
PAIRS = [(kind, maker) for kind in KINDS.values() for maker in kind.makers]


def made(kind, maker, **options):
    net = NETS[kind.name]
    if maker == "wrap":
        return qipf.wrap(net, field=qipf.QIPF(orders=(1,), max_centers=100), **options)
    return LayeredQIPF(net, max_centers=200, max_tuning=60, reduction="random", **options)


def calibrated(kind, maker):
    """A fitted and calibrated model, copied so that tests may change it."""
    key = kind.name, maker
    if key not in _fitted:
        model = made(kind, maker).fit(kind.loader(60 if kind.shape else 300, 1))
        _fitted[key] = pickle.dumps(model.calibrate(kind.loader(400, 2)))
    return pickle.loads(_fitted[key])


#: In tests/export/test_program.py.
EXPORTED_ELSEWHERE = [
    ("several inputs", "wrap"),
    ("keyword inputs", "wrap"),
    ("keyword inputs", "layered"),
]


def named(pair):
    return f"{pair[1]}, {pair[0].name}"


@pytest.fixture(params=PAIRS, ids=named)
def pair(request):
    return request.param


def tensors_of(batch):
    if isinstance(batch, torch.Tensor):
        return [batch]
    return list(batch) if isinstance(batch, tuple) else list(batch.values())


def part_of(batch, rows):
    if isinstance(batch, torch.Tensor):
        return batch[rows]
    if isinstance(batch, tuple):
        return tuple(part[rows] for part in batch)
    return {name: part[rows] for name, part in batch.items()}


@pytest.mark.slow
def test_predictions_lie_as_the_task_says(pair):
    kind, maker = pair
    model, batch = calibrated(*pair), kind.inputs(20, 30)
    prediction = model(batch)
    rows = kind.rows(kind.output(batch))
    shape = (20, *kind.shape)
    for part in (prediction.uncertainty, prediction.predicted, prediction.p_value):
        assert part.shape == shape
    expected = (rows[:, 0] > 0).long() if rows.shape[1] == 1 else rows.argmax(1)
    assert torch.equal(prediction.predicted.flatten(), expected)
    if maker == "wrap":
        torch.testing.assert_close(
            prediction.uncertainty.flatten(), model.field.uncertainty(rows), rtol=1e-4, atol=1e-5
        )
    shown = part_of(batch, slice(3))
    torch.testing.assert_close(
        model.uncertainty(shown), prediction.uncertainty[:3], rtol=1e-4, atol=1e-4
    )
    assert torch.equal(model.p_values(batch), prediction.p_value)


@pytest.mark.slow
def test_the_calibration_set_has_one_prediction_of_each_input(pair):
    kind, maker = pair
    model, loader = calibrated(*pair), kind.loader(400, 2)
    scores, wrong, known = [], [], []
    for batch in loader:
        labels = batch["labels"] if hasattr(batch, "keys") else batch[1]
        inputs = batch if hasattr(batch, "keys") else batch[0]
        prediction = model(inputs)
        labels = labels.reshape(len(labels), -1)
        scores.append(prediction.uncertainty.reshape(labels.shape))
        wrong.append(prediction.predicted.reshape(labels.shape) != labels)
        known.append(labels != -100)
    scores, wrong, known = (torch.cat(parts).numpy() for parts in (scores, wrong, known))
    held_out = model.calibration_
    assert len(held_out) == 400
    if not kind.shape:
        order = np.argsort(scores[:, 0])
        np.testing.assert_allclose(held_out.scores, scores[order, 0], rtol=1e-4, atol=1e-4)
        assert held_out.wrong.sum() == wrong.sum() == model.detection_.errors
    else:
        every = np.sort(scores[known])
        near = np.abs(every[np.searchsorted(every, held_out.scores).clip(1) - 1] - held_out.scores)
        after = every[np.searchsorted(every, held_out.scores).clip(max=len(every) - 1)]
        assert np.minimum(near, np.abs(after - held_out.scores)).max() < 1e-3
        share = wrong[known].mean()
        assert held_out.wrong.mean() == pytest.approx(share, abs=4 * (share / 400) ** 0.5)
    if maker == "layered":
        assert model.weights_[0] < 1  # its layers are used
        assert model.detection_.uncertainty > 0.6


@pytest.mark.slow
def test_a_file_keeps_scores_and_decisions(pair, tmp_path):
    kind, _ = pair
    model, batch = calibrated(*pair), kind.inputs(20, 31)
    rule = model.accept_rule(max_risk=0.3)
    assert torch.equal(model.accepts(batch), model.uncertainty(batch) <= rule.threshold)
    model.save(tmp_path / "model.qipf")
    again = qipf.load(tmp_path / "model.qipf", NETS[kind.name])
    for verb in ("uncertainty", "p_values", "accepts"):
        assert torch.equal(getattr(again, verb)(batch), getattr(model, verb)(batch))
    assert torch.equal(again(batch).predicted, model(batch).predicted)
    assert again.summary() == model.summary()
    assert again.digest() == model.digest()
    again.calibrate(kind.loader(100, 3))
    assert len(again.calibration_) == 100


@pytest.mark.slow
def test_a_monitor_takes_batches_and_counts_inputs(pair):
    kind, _ = pair
    monitor = ShiftMonitor(calibrated(*pair), alpha=0.01)
    for seed in range(40, 44):
        verdict = monitor.update(kind.inputs(25, seed))
    assert (verdict.seen, verdict.alarm) == (100, False)
    whole = kind.inputs(50, 48)
    at_once, in_parts = (ShiftMonitor(calibrated(*pair)) for _ in range(2))
    in_parts.update(part_of(whole, slice(20)))
    in_parts.update(part_of(whole, slice(20, None)))
    expected = at_once.update(whole).log_evidence
    assert in_parts.verdict().log_evidence == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "pair",
    [(kind, maker) for kind, maker in PAIRS if (kind.name, maker) not in EXPORTED_ELSEWHERE],
    ids=named,
    indirect=True,
)
@pytest.mark.usefixtures("onnx_operators")
def test_an_onnx_file_scores_as_the_model_does(pair, tmp_path):
    kind, _ = pair
    model = calibrated(*pair)
    rule = model.accept_rule(max_risk=0.3)
    example = kind.inputs(12, 50)
    path = model.export_onnx(tmp_path / "model.onnx", example, check=False).path  # done here
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    inputs = [part.name for part in session.get_inputs()]
    outputs = [part.name for part in session.get_outputs()]
    for count, seed in ((1, 51), (7, 52), (30, 53)):  # text of other lengths than the example's
        batch = kind.inputs(count, seed)
        feeds = {name: part.numpy() for name, part in zip(inputs, tensors_of(batch), strict=True)}
        found = dict(zip(outputs, session.run(None, feeds), strict=True))
        prediction = model(batch)
        assert found["logits"].shape == tuple(prediction.logits.shape)
        np.testing.assert_allclose(found["logits"], prediction.logits, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(
            found["uncertainty"], prediction.uncertainty, rtol=2e-4, atol=2e-4
        )
        np.testing.assert_array_equal(found["accepted"], found["uncertainty"] <= rule.threshold)
