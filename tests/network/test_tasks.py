"""Tasks: how predictions lie in a network's output, and what "auto" makes of it."""

import re

import numpy as np
import pytest
import torch
from torch import nn

import qipf
from qipf import LayeredQIPF, QIPFInputError
from qipf.network.tasks import Task, single_logits, task_of


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


OUTPUTS = {
    "multiclass": (numbers(5, 3), (5,), (5, 3)),
    "binary": (numbers(5, 1), (5,), (5, 1)),
    "multilabel": (numbers(5, 3), (5, 3), (15, 1)),
    "segmentation": (numbers(5, 3, 4, 2), (5, 4, 2), (40, 3)),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_rows_are_the_logits_of_the_predictions_in_their_order(name):
    output, shape, rows = OUTPUTS[name]
    task = Task(name)
    assert task.shape(output) == shape
    assert task.rows(output).shape == rows
    # values of the rows come back at the place of their prediction
    first = task.shaped(task.rows(output)[:, 0], output)
    expected = output if name == "multilabel" else output[:, 0]
    assert torch.equal(first, expected)
    pairs = task.shaped(torch.stack([task.rows(output)[:, 0]] * 2, 1), output)
    assert torch.equal(pairs[..., 1], expected)


def test_one_logit_may_have_one_dimension():
    assert Task("binary").shape(numbers(5)) == (5,)
    assert torch.equal(Task("binary").rows(numbers(5)), numbers(5)[:, None])
    both = Task("binary").logits(numbers(5))
    assert torch.equal(both, torch.stack([torch.zeros(5), numbers(5)], 1))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("multiclass", (5, 1)), ("multiclass", (5,)), ("multiclass", (5, 3, 4, 2)),
        ("binary", (5, 2)), ("multilabel", (5,)), ("multilabel", (5, 3, 4, 2)),
        ("segmentation", (5, 3)), ("segmentation", (5, 3, 4)),
    ],
)  # fmt: skip
def test_an_output_of_another_task_is_rejected(name, shape):
    message = f"logits have shape {shape}, which does not fit the task '{name}'"
    with pytest.raises(QIPFInputError, match=re.escape(message)):
        Task(name).rows(torch.zeros(shape))


def test_labels_are_flattened_like_the_rows():
    logits = numbers(2, 3, 4, 2)
    labels = logits.argmax(1)
    labels[0, 0, 0] = -100
    found = Task("segmentation").labels(labels, logits, "labels")
    rows = Task("segmentation").rows(logits)
    assert found.tolist()[1:] == rows.argmax(1).tolist()[1:]
    assert found[0] == -100
    assert torch.equal(Task("segmentation").labels(labels[:, None], logits, "labels"), found)
    several = np.array([[1.0, 0.0, 1.0], [0.0, 0.0, 255.0]])
    found = Task("multilabel", 255).labels(several, numbers(2, 3), "labels")
    assert found.tolist() == [1, 0, 1, 0, 0, 255]
    for given in ([0, 1], [[0], [1]], torch.tensor([[0.0], [1.0]])):
        assert Task("binary").labels(given, numbers(2, 1), "labels").tolist() == [0, 1]


@pytest.mark.parametrize(
    ("name", "labels", "phrase"),
    [
        ("binary", [0, 2, 0, 0, 0], "two classes, got 2 in 1 of 5 rows (first: row 1)"),
        ("binary", [0, 0.5, 0, 0, 0], "integers"),
        ("multiclass", [0, 1, 2, -100, 0], "got -100 in 1 of 5 rows"),
        ("multilabel", np.zeros(5), "shape (5, 3), one class per prediction"),
        ("multilabel", np.full((5, 3), 2), "-100 left out, must hold classes 0..1"),
        ("segmentation", np.zeros((5, 2, 4)), "shape (5, 4, 2)"),
        ("segmentation", np.full((5, 4, 2), 3), "classes 0..2, got 3 in 40 of 40 rows"),
    ],
)
def test_labels_that_do_not_fit_are_rejected(name, labels, phrase):
    with pytest.raises(QIPFInputError, match=re.escape(phrase)):
        Task(name).labels(labels, OUTPUTS[name][0], "labels")


@pytest.mark.parametrize(
    ("output", "labels", "expected"),
    [
        (numbers(4, 3), None, "multiclass"),
        (numbers(4, 3), [0, 1, 2, 0], "multiclass"),
        (numbers(4, 2), torch.tensor([0, 1, 1, 0]), "multiclass"),
        (numbers(4, 1), None, "binary"),
        (numbers(4), [0, 1, 1, 0], "binary"),
        (numbers(4, 1), torch.tensor([[0.0], [1.0], [1.0], [0.0]]), "binary"),
        (numbers(4, 3), torch.tensor([[0, 1, 1], [0, 0, 0], [1, 0, 0], [0, 0, 1]]), "multilabel"),
        (numbers(4, 3, 2, 2), None, "segmentation"),
        (numbers(4, 1, 2, 2), torch.zeros(4, 2, 2), "segmentation"),
    ],
)
def test_auto_decides_by_output_and_labels(output, labels, expected):
    assert task_of("auto", output, labels).name == expected
    assert task_of(expected, output, None, 255) == Task(expected, 255)


def test_auto_does_not_guess_what_one_hot_labels_mean():
    with pytest.raises(QIPFInputError, match=r"argmax\(1\) .* task='multilabel'"):
        task_of("auto", numbers(3, 3), torch.eye(3))
    assert task_of("multilabel", numbers(3, 3), torch.eye(3)).name == "multilabel"


def test_regression_is_told_what_works():
    net, x = nn.Linear(4, 1), numbers(40, 4)
    for model in (qipf.wrap(net, task="regression"), qipf.wrap(net)):
        with pytest.raises(QIPFInputError, match=r"not regression\. What works: QIPF\(\)\.fit"):
            model.fit([(x, x[:, 0] * 3)])
    # and it does work
    with torch.no_grad():
        hidden, errors = x[:, :2], (net(x)[:, 0] - 3 * x[:, 0]).abs()
    wrong = errors > errors.median()
    field = qipf.QIPF(bandwidth=1.0).fit(hidden[:20], wrong=wrong[:20])
    field.calibrate(hidden[20:], wrong=wrong[20:])
    assert field.detection_.errors == wrong[20:].sum() > 0


def test_an_unknown_task_is_rejected():
    for task, phrase in (("multi-label", "Did you mean 'multilabel'"), (None, "Unknown task None")):
        with pytest.raises(QIPFInputError, match=phrase):
            qipf.wrap(nn.Linear(4, 3), task=task).fit([numbers(9, 4)])
    with pytest.raises(QIPFInputError, match="ignore_index must be an integer"):
        qipf.wrap(nn.Linear(4, 3), ignore_index=None).fit([numbers(9, 4)])


def test_a_layer_has_no_row_for_each_pixel():
    net = nn.Conv2d(1, 3, 1)
    with pytest.raises(QIPFInputError, match="layer= scores one row per input"):
        qipf.wrap(nn.Sequential(net), layer="0").fit([numbers(9, 1, 4, 4)])


def test_a_layered_model_takes_one_prediction_an_input():
    assert single_logits(numbers(3)).shape == (3, 2)
    assert single_logits(numbers(3, 4)).shape == (3, 4)
    net = nn.Sequential(nn.Conv2d(1, 3, 1), nn.Conv2d(3, 3, 1))
    with pytest.raises(QIPFInputError, match=r"qipf\.wrap\(net, task='segmentation'\)"):
        LayeredQIPF(net).fit([(numbers(40, 1, 4, 4), torch.zeros(40, dtype=torch.long))])


def test_one_logit_was_predicted_as_class_zero_for_all():
    """Finding 4: labels were rejected as not 0..0, and every prediction was class 0."""
    net, x = nn.Linear(4, 1), numbers(200, 4)
    with torch.no_grad():
        z = net(x)[:, 0]
    model = qipf.wrap(net, field=qipf.QIPF(bandwidth=1.0)).fit([(x, (z > 0.2).long())])
    assert torch.equal(model(x).predicted, (z > 0).long())
    with torch.no_grad():
        other_z = net(-x)[:, 0]
    assert model.calibrate([(-x, (other_z > 0.2).float())]).detection_.errors == int(
        ((other_z > 0) & (other_z <= 0.2)).sum()
    )
    for labels in (None, (z > 0).long()):
        batch = x if labels is None else (x, labels)
        again = qipf.wrap(net, field=qipf.QIPF(bandwidth=1.0)).fit([batch])
        assert torch.equal(again(x).predicted, (z > 0).long())
    # a field that was fitted elsewhere knows no task; the output decides
    other = qipf.wrap(net, field=qipf.QIPF(bandwidth=1.0).fit(z[:, None], (z > 0).long()))
    torch.testing.assert_close(other(x).uncertainty, again(x).uncertainty)
