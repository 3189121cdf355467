import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from qipf.bench import datasets, networks, training
from qipf.bench.corruptions import corrupt
from qipf.bench.methods import Batch, create
from qipf.bench.results import ScoreStore, Task, read_results
from qipf.bench.runner import Job, _arithmetic, plan, run
from qipf.bench.scoring import Setting, _device_name
from qipf.errors import QIPFError, QIPFInputError
from qipf.io.atomic import locked_folder
from qipf.metrics.error_detection import evaluate
from tests.bench.tiny import TASKS, TINY, without_timings

pytestmark = pytest.mark.slow
REPOSITORY = Path(__file__).parents[2]


def start(*arguments):
    """Another Python, which finds the tests' modules."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        cwd=REPOSITORY,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The tiny suite, run once and undisturbed."""
    out = tmp_path_factory.mktemp("whole")
    assert run(TINY, out, device="cpu") == out / "results.jsonl"
    return out


def test_another_dataset_under_the_same_name_is_refused(whole, tmp_path):
    lines = [json.loads(line) for line in (whole / "results.jsonl").read_text().splitlines()]
    moved = "".join(json.dumps({**line, "dataset": "mnist"}) + "\n" for line in lines)
    (tmp_path / "results.jsonl").write_text(moved)
    with pytest.raises(QIPFInputError, match="dataset was 'mnist', is 'digits'"):
        run(TINY, tmp_path, device="cpu")


def test_every_task_has_one_line_with_all_that_a_reader_needs(whole):
    records = read_results(whole)
    assert len(records) == TASKS == 20
    assert {(r["corruption"], r["level"]) for r in records} == {
        ("none", 0.0),
        ("rotation", 30.0),
        ("rotation", 90.0),
        ("brightness", 0.4),
    }
    record = next(r for r in records if r["method"] == "mc_dropout")
    assert list(record) == [
        "suite", "network", "dataset", "corruption", "level", "method", "seed", "accuracy",
        "roc_auc", "pr_auc", "pr_auc_trapezoid", "point_biserial", "aurc", "augrc", "naurc",
        "fpr95", "seconds",
        "milliseconds_per_prediction", "network_seconds", "forward_passes", "test_images",
        "dataset_note", "parameters", "fitted", "device", "versions",
    ]  # fmt: skip
    assert (record["network"], record["dataset"], record["seed"]) == ("tiny_mlp", "digits", 0)
    assert (record["forward_passes"], record["test_images"]) == (3, 599)
    assert record["parameters"]["options"] == {"rate": None, "passes": 3}
    assert record["parameters"]["recipe"]["epochs"] == 2
    assert record["seconds"] > 0
    assert record["milliseconds_per_prediction"] == pytest.approx(1000 * record["seconds"] / 599)
    assert record["dataset_note"] == datasets.load("digits").note
    assert record["versions"]["torch"] == torch.__version__
    qipf = next(r for r in records if r["method"] == "qipf")
    assert qipf["fitted"]["bandwidth"] > 0


def test_the_numbers_are_those_of_the_parts_put_together_by_hand(whole):
    data = datasets.load("digits")
    network, recipe = networks.build("mlp", 1, 10, 8, seed=0)
    recipe = replace(recipe, epochs=2)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    training.train(network, data.train_images, data.train_labels, recipe, seed=0)
    trainer = training.Trainer(recipe)
    clean = trainer.clean_data(network, data.train_images, data.train_labels)
    corrupted = corrupt(data.test_images.float() / 255, "rotation", 90)
    batch = Batch.of(network, corrupted)
    wrong = (batch.predicted != data.test_labels).numpy()
    for name, options in (("qipf", {}), ("entropy", {}), ("mc_dropout", {"passes": 3})):
        uncertainty = create(name, **options).fit(clean).score(batch).numpy()
        expected = evaluate(uncertainty, wrong)
        (record,) = (r for r in read_results(whole) if (r["method"], r["level"]) == (name, 90.0))
        assert {metric: record[metric] for metric in expected} == expected
        kept = ScoreStore(whole, "tiny_mlp", "rotation", 0).read()[90.0]
        np.testing.assert_array_equal(kept["wrong"], wrong)
        np.testing.assert_array_equal(kept[name], uncertainty.astype(np.float32))
    torch.set_num_threads(before)


def test_a_finished_run_does_nothing_more(whole):
    before = (whole / "results.jsonl").read_bytes()
    run(TINY, whole, device="cpu")
    assert (whole / "results.jsonl").read_bytes() == before


def test_in_pieces_it_comes_to_the_same(whole, tmp_path):
    run(TINY, tmp_path, device="cpu", only=["method=mc_dropout_entropy", "corruption=rotation"])
    assert len(read_results(tmp_path)) == 2
    run(TINY, tmp_path, device="cpu", only=["method=qipf,ensemble"], keep_scores=False)
    run(TINY, tmp_path, device="cpu")
    assert without_timings(tmp_path) == without_timings(whole)


def test_a_level_without_errors_has_null_where_nothing_is_defined(tmp_path, monkeypatch):
    data = datasets.load("digits")
    easy = replace(data, test_images=data.test_images[:0], test_labels=data.test_labels[:0])
    chosen = data.test_labels == 0
    easy = replace(
        easy, test_images=data.test_images[chosen][:5], test_labels=data.test_labels[chosen][:5]
    )
    monkeypatch.setattr(datasets, "load", lambda *_: easy)
    suite = replace(TINY, corruptions={}, methods=("entropy",))
    run(replace(suite, networks=(replace(TINY.networks[0], recipe={"epochs": 40}),)), tmp_path)
    (record,) = read_results(tmp_path)
    assert (record["accuracy"], record["roc_auc"], record["fpr95"]) == (1.0, None, None)
    assert (record["pr_auc"], record["aurc"]) == (0.0, 0.0)


def test_the_seed_changes_the_numbers_and_has_its_own_lines(tmp_path):
    only = ["method=entropy", "corruption=rotation", "level=30"]
    run(TINY, tmp_path, device="cpu", only=only)
    run(TINY, tmp_path, device="cpu", only=only, seed=1)
    first, second = read_results(tmp_path)
    assert (first["seed"], second["seed"]) == (0, 1)
    assert first["roc_auc"] != second["roc_auc"]


def test_other_parameters_do_not_mix_with_results_that_are_there(tmp_path):
    only = ["method=mc_dropout", "corruption=none"]
    run(TINY, tmp_path, device="cpu", only=only)
    other = replace(TINY, options={"mc_dropout": {"passes": 4}})
    with pytest.raises(QIPFInputError, match=r"options.passes was 3, is 4"):
        run(other, tmp_path, device="cpu", only=only)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"jobs": 0}, "jobs must be at least 1; got 0."),
        ({"only": ["metod=qipf"]}, "Unknown kind of only 'metod'"),
        ({"only": ["method=knn"]}, "Unknown method of this suite 'knn'"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_written(given, message, tmp_path):
    with pytest.raises(QIPFInputError, match=message):
        run(TINY, tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()


def test_an_unusable_device_is_refused(tmp_path):
    with pytest.raises(QIPFInputError, match="device 'nonsense' cannot be used here .*Name 'cpu'"):
        run(TINY, tmp_path, device="nonsense")


def test_missing_data_is_told_before_any_training(tmp_path):
    suite = replace(TINY, networks=(*TINY.networks, networks_of("mnist")))
    with pytest.raises(QIPFError, match="^root must be a folder"):
        run(suite, tmp_path / "out", data=Path(__file__))
    assert read_results(tmp_path / "out") == []
    assert not (tmp_path / "out" / "networks").exists()


def networks_of(dataset):
    return replace(TINY.networks[0], name=f"tiny_{dataset}", dataset=dataset)


def test_two_runs_do_not_share_a_folder(tmp_path):
    with locked_folder(tmp_path), pytest.raises(QIPFError, match="in use by another run"):
        run(TINY, tmp_path, device="cpu")


def test_a_lock_file_left_behind_locks_nothing(tmp_path):
    (tmp_path / ".lock").write_text("4711\n")
    run(TINY, tmp_path, device="cpu", only=["method=entropy", "corruption=none"])
    assert len(read_results(tmp_path)) == 1


def test_ctrl_c_loses_nothing(tmp_path, monkeypatch, whole):
    from qipf.bench.results import ResultLog

    append = ResultLog.append

    def interrupted(self, record):
        append(self, record)
        if len(self.records) == 7:
            raise KeyboardInterrupt

    monkeypatch.setattr(ResultLog, "append", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(TINY, tmp_path, device="cpu")
    monkeypatch.undo()
    assert len(read_results(tmp_path)) == 7
    run(TINY, tmp_path, device="cpu")
    assert without_timings(tmp_path) == without_timings(whole)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_again_and_again_it_ends_with_the_same_results(tmp_path):
    process = start("-m", "tests.bench.interrupted_runs", tmp_path)
    out, err = process.communicate()
    assert process.returncode == 0, err
    summary = json.loads(out)
    assert summary["kills"] >= 5  # from outside
    assert summary["deaths"] >= 10  # at a write
    assert summary["equal"] is True


def test_several_processes_give_the_same_numbers_even_when_killed(whole, tmp_path):
    command = (
        "from qipf.bench.runner import run; from tests.bench.tiny import TINY; "
        f"run(TINY, {str(tmp_path)!r}, device='cpu', jobs=2)"
    )
    process = start("-c", command)
    results = tmp_path / "results.jsonl"
    while process.poll() is None and not (
        results.exists() and results.read_bytes().count(b"\n") > TASKS // 2
    ):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)  # in the midst of it, its workers busy
    _, err = process.communicate()
    assert process.returncode in (0, -signal.SIGKILL), err
    run(TINY, tmp_path, device="cpu")
    assert without_timings(tmp_path) == without_timings(whole)


def test_the_plan_trains_then_fits_then_scores():
    tasks = [
        Task("a", "none", 0.0, "svi_entropy", 0),
        Task("a", "zoom", 2.0, "svi_entropy", 0),
        Task("a", "zoom", 2.0, "qipf", 0),
        Task("b", "none", 0.0, "qipf", 0),
    ]
    assert plan(tasks) == [
        [Job("a"), Job("b")],
        [Job("a", "svi")],
        [
            Job("a", None, "none", 0.0, ("svi_entropy",)),
            Job("a", None, "zoom", 2.0, ("svi_entropy", "qipf")),
            Job("b", None, "none", 0.0, ("qipf",)),
        ],
    ]


@pytest.mark.parametrize("tf32", [False, True])
def test_convolutions_in_tensor_float_only_if_wanted(tf32, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", not tf32)
    with _arithmetic(Setting(TINY, tmp_path, "cuda", tf32=tf32)):
        assert torch.backends.cudnn.allow_tf32 is tf32
    assert torch.backends.cudnn.allow_tf32 is not tf32
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    shown = "cuda (a GPU, TF32)" if tf32 else "cuda (a GPU)"
    assert _device_name(torch.device("cuda"), tf32) == shown
    assert _device_name(torch.device("cpu"), tf32).startswith("cpu (")
