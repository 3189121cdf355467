import types
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from qipf.bench import datasets, scoring
from qipf.bench.corruptions import corrupt
from qipf.bench.datasets import TextDataset
from qipf.bench.methods import Batch, create
from qipf.bench.scoring import NetworkBench, Setting, parameters
from qipf.bench.suites import BenchNetwork, Suite, effective_options
from qipf.bench.text import Vocabulary
from qipf.errors import QIPFError, QIPFScoreWarning
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


@pytest.mark.filterwarnings("error")
def test_a_benchmark_does_not_warn_that_a_score_is_poor(bench, monkeypatch):
    class Poor:
        def fit(self, clean):
            warnings.warn("worse than the entropy", QIPFScoreWarning, stacklevel=1)
            return create("entropy")

    monkeypatch.setattr(Suite, "create", lambda suite, name: Poor())
    assert bench.method("entropy").name == "entropy"


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


UNSEEN_IMAGES = torch.rand(40, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def test_unseen_inputs_are_the_positives_among_all_known_ones(tmp_path, monkeypatch):
    monkeypatch.setitem(datasets.UNSEEN, "digits", ("svhn",))
    monkeypatch.setattr(scoring, "load_unseen", lambda *_: UNSEEN_IMAGES)
    methods = ("entropy", "knn", "mc_dropout_ll")
    suite = Suite("own", TINY.networks, {}, methods, clean=False, unseen=("svhn",))
    assert [(task.corruption, task.level) for task in suite.tasks()] == [("svhn", 0.0)] * 3
    bench = NetworkBench(Setting(suite, tmp_path, "cpu"), "tiny_mlp")
    records = {record["method"]: record for record in bench.results("svhn", 0.0, methods)}
    images = bench.dataset.test_images.float() / 255
    for name in ("entropy", "knn"):
        method = bench.method(name)
        known, unseen = (
            method.score(Batch.of(bench.network, part)) for part in (images, UNSEEN_IMAGES)
        )
        higher = (unseen[:, None] > known).double() + (unseen[:, None] == known).double() / 2
        assert records[name]["roc_auc"] == pytest.approx(float(higher.mean()), abs=1e-9)
        assert records[name]["accuracy"] == pytest.approx(599 / 639)
        assert records[name]["test_images"] == 40
    kept = bench.store("svhn").read()[0.0]
    assert kept["entropy"].shape == (639,)
    assert kept["wrong"].tolist() == [False] * 599 + [True] * 40


def test_a_suite_may_take_a_random_part_of_the_test_inputs(tmp_path):
    suite = replace(TINY, most=50)
    bench = NetworkBench(Setting(suite, tmp_path, "cpu"), "tiny_mlp")
    (record,) = bench.results("none", 0.0, ("entropy",))
    assert record["test_images"] == 50
    assert record["parameters"]["most"] == 50
    count = len(bench.dataset.test_images)
    rows = np.sort(np.random.RandomState(0).permutation(count)[:50])
    assert rows.max() > count // 2
    predicted = Batch.of(bench.network, bench.dataset.test_images[rows]).predicted
    right = (predicted == bench.dataset.test_labels[rows]).double().mean()
    assert record["accuracy"] == pytest.approx(float(right))
    other = NetworkBench(Setting(replace(suite, seed=1), tmp_path, "cpu"), "tiny_mlp")
    assert torch.equal(other.test_labels, bench.test_labels)  # the same for every seed


def test_sentences_are_corrupted_before_they_are_tokens(tmp_path):
    sentences = tuple(f"please book flight {i} to rome" for i in range(30))
    vocabulary = Vocabulary.of(sentences, length=12)
    tokens, labels = vocabulary.encode(sentences), torch.arange(30) % 3
    texts = TextDataset(
        "clinc150", tokens, labels, tokens, labels, ("a", "b", "c"), "", vocabulary, sentences
    )
    recipe = {"epochs": 1, "pool": 2}
    network = BenchNetwork("text", "clinc150", "transformer", recipe)
    methods = ("entropy", "ensemble_log_odds", "tta_entropy", "vim")
    suite = Suite("own", (network,), {"typing": (0.2,)}, methods, {"ensemble": {"networks": 1}})
    bench = NetworkBench(Setting(suite, tmp_path, "cpu"), "text", texts)
    records = list(bench.results("typing", 0.2, methods))
    assert [record["method"] for record in records] == list(methods)
    expected = vocabulary.encode(corrupt(sentences, "typing", 0.2))
    assert torch.equal(bench.inputs("typing", 0.2), expected)
    assert not torch.equal(expected, tokens)
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.pt"))
    assert files == [f"networks/seed{k}/text/network.pt" for k in range(2)]
