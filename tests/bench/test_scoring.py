import types

import numpy as np
import pytest
import torch

from qipf.bench import scoring
from qipf.bench.methods import create
from qipf.bench.scoring import NetworkBench, Setting, parameters
from qipf.bench.suites import effective_options
from qipf.errors import QIPFError
from tests.bench.tiny import TINY


@pytest.fixture
def bench(tmp_path):
    return NetworkBench(Setting(TINY, tmp_path, "cpu"), "tiny_mlp")


def test_shared_draws_count_in_full_for_both_scores(bench, monkeypatch):
    clock = [0.0]
    spread, entropy = bench.method("mc_dropout"), bench.method("mc_dropout_entropy")
    draw = spread._draw

    def slow_draw(batch):
        clock[0] += 5.0
        return draw(batch)

    spread._draw = entropy._draw = slow_draw
    fake = types.SimpleNamespace(perf_counter=lambda: clock[0])
    monkeypatch.setattr(scoring, "time", fake)
    names = ("mc_dropout", "mc_dropout_entropy", "entropy")
    records = list(bench.results("rotation", 30.0, names))
    assert [record["seconds"] for record in records] == [5.0, 5.0, 0.0]
    assert clock == [5.0]  # drawn once
    # a score that comes alone, as after an interruption, draws for itself
    (alone,) = bench.results("rotation", 30.0, ["mc_dropout_entropy"])
    assert alone["seconds"] == 5.0


def test_training_goes_on_from_its_checkpoint(bench):
    weights = bench.network.state_dict()
    again = NetworkBench(bench.setting, "tiny_mlp").network.state_dict()
    assert all(torch.equal(weights[name], again[name]) for name in weights)
    files = [path.name for path in bench.setting.out.rglob("*.pt")]
    assert files == ["network.pt"]


def test_the_test_images_are_scored_and_wrong_is_what_differs_from_their_labels(bench):
    """Predictions by hand, from the network's weights and plain numpy."""
    data = bench.dataset
    hidden = data.test_images.numpy().reshape(599, -1).astype(np.float64) / 255 * 2 - 1
    dense = [layer for layer in bench.network.modules() if isinstance(layer, torch.nn.Linear)]
    for k, layer in enumerate(dense):
        weight, bias = layer.weight.detach().double().numpy(), layer.bias.detach().double().numpy()
        hidden = hidden @ weight.T + bias
        if k + 1 < len(dense):
            hidden = np.maximum(hidden, 0)
    wrong = hidden.argmax(1) != data.test_labels.numpy()
    assert 0 < wrong.mean() < 0.5
    probabilities = np.exp(hidden - hidden.max(1, keepdims=True))
    probabilities /= probabilities.sum(1, keepdims=True)
    entropy = -(probabilities * np.log(probabilities)).sum(1)
    (record,) = bench.results("none", 0.0, ["entropy"])
    kept = bench.store("none").read()[0.0]
    np.testing.assert_array_equal(kept["wrong"], wrong)
    np.testing.assert_allclose(kept["entropy"], entropy, rtol=1e-3)
    assert record["accuracy"] == pytest.approx(1 - wrong.mean())
    won = (entropy[wrong][:, None] > entropy[~wrong][None, :]).mean()
    assert record["roc_auc"] == pytest.approx(won, abs=1e-4)


def test_scores_that_cannot_be_ranked_are_told_with_their_task(bench, monkeypatch):
    method = bench.method("entropy")
    monkeypatch.setattr(
        type(method), "score", lambda self, batch: torch.full((len(batch),), torch.nan)
    )
    with pytest.raises(QIPFError, match="entropy on tiny_mlp, rotation 90: uncertainty has 599"):
        list(bench.results("rotation", 90.0, ["entropy"]))


def test_parameters_say_all_that_decides_the_numbers():
    task = next(task for task in TINY.tasks() if task.method == "ensemble")
    assert parameters(TINY, task) == {
        "network": "mlp",
        "recipe": {
            "epochs": 2,
            "batch_size": 64,
            "learning_rate": 2e-3,
            "augment": False,
            "bfloat16": False,
            "dropout_rate": 0.1,
        },
        "options": {"networks": 2},
    }
    assert effective_options(create("svi_entropy", epochs=3)) == {
        "epochs": 3,
        "passes": 100,
        "initial_std": 0.1,
    }
    assert effective_options(create("knn")) == {"k": 50}
