import types

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
