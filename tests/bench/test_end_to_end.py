"""A run of the benchmark whose every number is computed again, by NumPy, from logits and labels.

Only the trained networks are taken from the run; scores of layers are those of a `LayeredQIPF` of
the test's own. Nothing of `qipf.bench` or `qipf.metrics` has a part in what is expected.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.polynomial import hermite
from sklearn.datasets import load_digits

from qipf import LayeredQIPF
from qipf.bench import datasets, scoring
from qipf.bench.results import ScoreStore, read_results
from qipf.bench.runner import run
from qipf.bench.scoring import NetworkBench, Setting
from qipf.bench.suites import BenchNetwork, Suite
from tests.conftest import naive_moments

FIELDS = ("qipf", "qipf_normalized", "qipf_potential", "qipf_density")
LAYERS = ("qipf_plus", "qipf_plus_novelty")
SUITE = Suite(
    "own",
    (BenchNetwork("tiny_mlp", "digits", "mlp", {"epochs": 12, "pool": 3}),),
    corruptions={"brightness": (0.3,), "rotation": (90,)},
    methods=("softmax", "entropy", "max_logit", "energy", "knn", "ensemble", *FIELDS, *LAYERS),
    options={"ensemble": {"networks": 2}, **{name: {"engine": "reference"} for name in FIELDS}},
    unseen=("svhn",),
)
TRAIN, TEST = 300, 200  # the first images of each part
UNSEEN = torch.from_numpy(np.random.default_rng(0).random((40, 1, 8, 8), np.float32))
DIGITS = datasets.load("digits")
SMALL = replace(
    DIGITS,
    train_images=DIGITS.train_images[:TRAIN],
    train_labels=DIGITS.train_labels[:TRAIN],
    test_images=DIGITS.test_images[:TEST],
    test_labels=DIGITS.test_labels[:TEST],
)


# ------------------------------------------------------------------ what is expected


def expected_metrics(u, wrong):
    """Each metric by its definition; no two uncertainties are equal."""
    assert len(np.unique(u)) == len(u)
    n, errors, right = len(u), wrong.sum(), (~wrong).sum()
    falling = wrong[np.argsort(-u)]
    recall, precision = falling.cumsum() / errors, falling.cumsum() / np.arange(1, n + 1)
    steps = np.diff(recall, prepend=0.0)
    before = np.r_[1.0, precision[:-1]]
    kept = falling[::-1].cumsum()  # errors among the k least uncertain
    risk = kept / np.arange(1, n + 1)
    ideal = (np.sort(wrong).cumsum() / np.arange(1, n + 1)).mean()
    flagged = falling[: np.argmax(recall >= 0.95) + 1]
    return {
        "accuracy": right / n,
        "roc_auc": (u[wrong][:, None] > u[~wrong]).mean(),
        "pr_auc": (steps * precision).sum(),
        "pr_auc_trapezoid": (steps * (precision + before) / 2).sum(),
        "point_biserial": np.corrcoef(u, wrong)[0, 1],
        "aurc": risk.mean(),
        "augrc": (kept / n).mean(),
        "naurc": (risk.mean() - ideal) / (errors / n - ideal),
        "fpr95": (~flagged).sum() / right,
    }


def softmax(logits):
    e = np.exp(logits - logits.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def field_scores(queries, centers, sigma):
    """Uncertainties of the four methods of a field of all training logits."""
    d = queries.shape[1]

    def parts(rows):
        log_density, m1_squared, m2 = naive_moments(rows, centers, sigma)
        slope = m1_squared / (8 * sigma**2)
        return log_density, m2 / (4 * sigma**2) - slope - d / 4, slope

    def mean_mode(log_density, bend, slope, constant):
        psi, modes = np.sqrt(np.exp(log_density) * constant), []
        for p in (1, 2, 3, 4):
            h = np.eye(p + 1)[p]
            value, first, second = (hermite.hermval(psi, hermite.hermder(h, k)) for k in range(3))
            modes.append((first * psi * bend + second * psi**2 * slope) / value)
        return np.array(modes)

    inside, outside = parts(centers), parts(queries)
    scores = {"qipf_density": -outside[0], "qipf_potential": outside[1] - inside[1].min()}
    constants = {"qipf": 1.0, "qipf_normalized": (2 * np.pi * sigma**2) ** (-d / 2)}
    for name, constant in constants.items():
        lowest = mean_mode(*inside, constant).min(1, keepdims=True)
        scores[name] = (mean_mode(*outside, constant) - lowest).mean(0)
    return scores


def expected_scores(at, train, sigmas):
    """Uncertainties of all methods from outputs of the networks."""
    logits, p = at["logits"], softmax(at["logits"])
    largest = logits.max(1)
    unit, known = (f / np.linalg.norm(f, axis=1, keepdims=True) for f in (at["features"], train[1]))
    drawn = [softmax(member)[np.arange(len(p)), logits.argmax(1)] for member in at["members"]]
    fields = {name: field_scores(logits, train[0], sigmas[name])[name] for name in FIELDS}
    return {
        "softmax": np.delete(np.sort(p, 1), -1, 1).sum(1),
        "entropy": -(p * np.log(p)).sum(1),
        "max_logit": -largest,
        "energy": -largest - np.log(np.exp(logits - largest[:, None]).sum(1)),
        "knn": np.sort(np.linalg.norm(unit[:, None] - known, axis=2), 1)[:, 49],
        "ensemble": np.std(drawn, axis=0),
        **fields,
    }


# ------------------------------------------------------------------ the run


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("end_to_end")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(datasets.UNSEEN, "digits", ("svhn",))
        patch.setattr(datasets, "load", lambda *_: SMALL)
        for module in (datasets, scoring):
            patch.setattr(module, "load_unseen", lambda *_: UNSEEN)
        run(SUITE, folder, device="cpu")
    return folder


def labels_of(images):
    """Labels of images of scikit-learn's digits, found by their pixels."""
    bunch = load_digits()
    label_of = {image.tobytes(): k for image, k in zip(bunch.images, bunch.target, strict=True)}
    rows = np.round(images[:, 0] * 16).astype(bunch.images.dtype)
    return np.array([label_of[row.tobytes()] for row in rows])


def network_of(out, seed):
    """A network of the run, read from its checkpoint."""
    assert (out / "networks" / f"seed{seed}" / "tiny_mlp" / "network.pt").is_file()
    setting = Setting(replace(SUITE, seed=seed), out, "cpu")
    return NetworkBench(setting, "tiny_mlp", SMALL).network.eval()


def outputs(network, images):
    with torch.no_grad():
        features = network.body(torch.from_numpy(images))
        return network.head(features).double().numpy(), features.double().numpy()


@pytest.mark.slow
def test_every_number_of_a_run_follows_from_the_networks_outputs(out):
    network, members = network_of(out, 0), [network_of(out, seed) for seed in (1, 2)]
    images = SMALL.test_images.numpy().astype(np.float32) / 255
    labels = labels_of(images)
    train = outputs(network, SMALL.train_images.numpy().astype(np.float32) / 255)
    shown = {
        ("none", 0.0): images,
        ("brightness", 0.3): np.clip(images * np.float32(0.3), 0, 1),
        ("rotation", 90.0): np.rot90(images, axes=(2, 3)).copy(),
        ("svhn", 0.0): np.concatenate([images, UNSEEN.numpy()]),
    }
    layers = LayeredQIPF(network, random_state=0, max_centers=TRAIN, reduction="random")
    layers.fit([(SMALL.train_images / 255, SMALL.train_labels)])
    records = read_results(out)
    assert len(records) == len(shown) * len(SUITE.methods)
    sigmas = {r["method"]: r["fitted"]["bandwidth"] for r in records if r["method"] in FIELDS}
    for record in records:
        if record["method"] in FIELDS:  # the width is Silverman's, times a factor
            width = train[0].std(0).mean() * (4 / (12 * TRAIN)) ** (1 / 14)
            factor = record["fitted"]["bandwidth_factor"]
            assert np.log2(factor) * 2 == pytest.approx(round(np.log2(factor) * 2), abs=1e-12)
            assert record["fitted"]["bandwidth"] == pytest.approx(factor * width, rel=1e-6)
            assert record["fitted"]["centers"] == TRAIN
    for (corruption, level), pixels in shown.items():
        logits, features = outputs(network, pixels)
        at = {"logits": logits, "features": features}
        at["members"] = [outputs(member, pixels)[0] for member in members]
        wrong = np.arange(len(pixels)) >= TEST
        if corruption != "svhn":
            wrong = logits.argmax(1) != labels
            assert 0.02 < wrong.mean() < 0.95
        scores = expected_scores(at, train, sigmas)
        said = layers(torch.from_numpy(pixels))
        scores["qipf_plus"] = said.uncertainty.double().numpy()
        scores["qipf_plus_novelty"] = said.novelty.double().numpy()
        kept = ScoreStore(out, "tiny_mlp", corruption, 0).read()[level]
        np.testing.assert_array_equal(kept["wrong"], wrong)
        found = {r["method"]: r for r in records if r["corruption"] == corruption}
        assert set(found) == set(scores)
        for name, record in found.items():
            task = f"{name}, {corruption}"
            np.testing.assert_allclose(kept[name], scores[name], rtol=2e-4, err_msg=task)
            assert record["level"] == level
            if name == "qipf_plus" and corruption != "svhn":
                facts = {
                    "estimated_accuracy": 1 - said.p_error.mean(),
                    "mixture_accuracy": (said.probabilities.numpy().argmax(1) == labels).mean(),
                }
                for fact, value in facts.items():
                    assert record[fact] == pytest.approx(float(value), abs=1e-6), (task, fact)
            assert record["test_images"] == (40 if corruption == "svhn" else TEST)
            # rotated pixels differ by rounding, which may exchange two neighbours
            tolerance = 2e-4 if corruption == "rotation" or name == "knn" else 1e-7
            for metric, value in expected_metrics(scores[name], wrong).items():
                assert record[metric] == pytest.approx(value, abs=tolerance), (task, metric)
