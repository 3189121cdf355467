import dataclasses
import gzip
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from qipf.bench import datasets
from qipf.bench.datasets import (
    Dataset,
    TextDataset,
    cifar10_publication,
    data_root,
    idx_publication,
    load,
    load_unseen,
)
from qipf.errors import QIPFError, QIPFInputError

N_TRAIN, N_TEST, N_BATCH = 30, 50, 4
URLS = ["https://none.test"]
PARTS = {"train": N_TRAIN, "t10k": N_TEST}
PUBLISHED = dict(datasets.PUBLICATIONS)
BATCHES = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]


@pytest.fixture(autouse=True)
def small_publications(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real layouts with few images, and no address to download from."""
    for name in ("mnist", "kmnist", "fashion_mnist"):
        small = idx_publication(name, URLS, [None] * 4, ["md5:0"] * 4, (N_TRAIN, N_TEST))
        monkeypatch.setitem(datasets.PUBLICATIONS, name, small)
    small = cifar10_publication("cifar10", URLS, [None] * 6, ["md5:0"], [N_BATCH])
    monkeypatch.setitem(datasets.PUBLICATIONS, "cifar10", small)
    monkeypatch.delenv("QIPF_DATA", raising=False)


def idx_bytes(array: NDArray[np.uint8]) -> bytes:
    magic = 0x0800 + array.ndim
    return b"".join(n.to_bytes(4, "big") for n in (magic, *array.shape)) + array.tobytes()


def write_idx(root: Path, name: str, parts: dict[str, int]) -> dict[str, NDArray[np.uint8]]:
    rng = np.random.default_rng(0)
    folder = root / name
    folder.mkdir(parents=True)
    written = {}
    for part, count in parts.items():
        written[f"{part} images"] = rng.integers(0, 256, (count, 28, 28), np.uint8)
        written[f"{part} labels"] = np.arange(count, dtype=np.uint8) % 10
        for kind, axes in (("images", 3), ("labels", 1)):
            packed = gzip.compress(idx_bytes(written[f"{part} {kind}"]), mtime=0)
            (folder / f"{part}-{kind}-idx{axes}-ubyte.gz").write_bytes(packed)
    return written


@pytest.mark.parametrize("name", ["mnist", "kmnist", "fashion_mnist"])
def test_idx_sets_come_back_as_written(tmp_path: Path, name: str) -> None:
    written = write_idx(tmp_path, name, PARTS)
    data = load(name, tmp_path, download=False)
    assert (data.name, data.note) == (name, "")
    assert data.train_images.shape == (N_TRAIN, 1, 28, 28)
    assert data.test_images.shape == (N_TEST, 1, 28, 28)
    assert {data.train_images.dtype, data.test_images.dtype} == {torch.uint8}
    assert {data.train_labels.dtype, data.test_labels.dtype} == {torch.int64}
    np.testing.assert_array_equal(data.train_images[:, 0], written["train images"])
    np.testing.assert_array_equal(data.train_labels, written["train labels"])
    np.testing.assert_array_equal(data.test_images[:, 0], written["t10k images"])
    np.testing.assert_array_equal(data.test_labels, written["t10k labels"])
    assert len(set(data.class_names)) == 10


def test_labels_where_images_belong_are_refused(tmp_path: Path) -> None:
    write_idx(tmp_path, "mnist", PARTS)
    folder = tmp_path / "mnist"
    labels = folder / "t10k-labels-idx1-ubyte.gz"
    labels.write_bytes(
        gzip.compress(b"\x00\x00\x08\x03" + gzip.decompress(labels.read_bytes())[4:])
    )
    with pytest.raises(QIPFInputError) as caught:
        load("mnist", tmp_path, download=False)
    assert str(caught.value).startswith(f"{labels} is not the published mnist file")
    assert "got the leading bytes 0000080300000032, not 0000080100000032" in str(caught.value)


@pytest.mark.parametrize("folder", ["cifar10/cifar-10-batches-bin", "cifar10"])
def test_cifar10_records_are_label_then_planes(tmp_path: Path, folder: str) -> None:
    rng = np.random.default_rng(1)
    planes = rng.integers(0, 256, (6, N_BATCH, 3, 32, 32), np.uint8)
    labels = rng.integers(0, 10, (6, N_BATCH), np.uint8)
    home = tmp_path / folder
    home.mkdir(parents=True)
    for name, images_b, labels_b in zip(BATCHES, planes, labels, strict=True):
        records = [bytes([y]) + x.tobytes() for x, y in zip(images_b, labels_b, strict=True)]
        (home / name).write_bytes(b"".join(records))
    data = load("cifar10", tmp_path, download=False)
    np.testing.assert_array_equal(data.train_images, planes[:5].reshape(-1, 3, 32, 32))
    np.testing.assert_array_equal(data.train_labels, labels[:5].reshape(-1))
    np.testing.assert_array_equal(data.test_images, planes[5])
    np.testing.assert_array_equal(data.test_labels, labels[5])
    assert data.class_names[3] == "cat"


def test_kmnist10k_needs_only_the_test_files_and_says_so(tmp_path: Path) -> None:
    written = write_idx(tmp_path, "kmnist", {"t10k": N_TEST})
    data = load("kmnist10k", tmp_path, download=False)
    assert data.name == "kmnist10k"
    assert data.note == (
        "a stratified 40/10 split of K-MNIST's official test images, "
        "not its official training and test sets"
    )
    assert data.train_labels.bincount().tolist() == [4] * 10
    assert data.test_labels.bincount().tolist() == [1] * 10
    # every image is in exactly one part, beside its own label
    pairs = zip(written["t10k images"], written["t10k labels"], strict=True)
    original = sorted((x.tobytes(), int(y)) for x, y in pairs)
    images = torch.cat([data.train_images, data.test_images]).numpy()
    labels = torch.cat([data.train_labels, data.test_labels]).tolist()
    assert sorted((x.tobytes(), y) for x, y in zip(images, labels, strict=True)) == original
    again = load("kmnist10k", tmp_path, download=False)
    assert torch.equal(again.test_images, data.test_images)


def test_digits_are_scaled_and_split_for_good() -> None:
    data = load("digits")
    bunch = load_digits()
    images = torch.cat([data.train_images, data.test_images])
    assert (len(data.train_images), len(data.test_images)) == (1198, 599)
    assert images.unique().tolist() == [round(v * 255 / 16) for v in range(17)]
    original = np.rint(bunch.images * 255 / 16).astype(np.uint8)
    assert sorted(x.tobytes() for x in images.numpy()) == sorted(x.tobytes() for x in original)
    shares = data.test_labels.bincount() / data.train_labels.bincount()
    assert (shares - 0.5).abs().max() < 0.01
    # the split belongs to every number ever measured on it: it may not move
    assert data.test_labels[:12].tolist() == [1, 4, 0, 1, 4, 5, 8, 5, 6, 5, 9, 9]
    assert int(data.test_images.sum()) == 2982055


def test_every_published_file_has_its_length_and_hash() -> None:
    files = {
        f"{publication.name}/{file.name}": file
        for publication in PUBLISHED.values()
        for archive in publication.archives
        for file in archive.files
    }
    assert len(files) == 4 + 4 + 4 + 6
    unhashed = [name for name, file in files.items() if file.digest is None]
    assert unhashed == ["kmnist/train-labels-idx1-ubyte"]
    digests = [file.digest for file in files.values() if file.digest is not None]
    assert len(set(digests)) == len(digests)
    for digest in digests:
        algorithm, _, value = digest.partition(":")
        assert len(bytes.fromhex(value)) == {"sha256": 32, "md5": 16}[algorithm]
    assert files["mnist/train-images-idx3-ubyte"].size == 47_040_016
    assert files["kmnist/t10k-labels-idx1-ubyte"].size == 10_008
    assert files["cifar10/test_batch.bin"].size == 30_730_000


def test_a_dataset_is_frozen_and_prints_short() -> None:
    data = load("digits")
    assert repr(data) == "Dataset('digits': 1198 train, 599 test, 1×8×8, 10 classes)"
    with pytest.raises(dataclasses.FrozenInstanceError):
        data.name = "other"  # type: ignore[misc]
    assert isinstance(data, Dataset)


def test_root_then_environment_then_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pooch = pytest.importorskip("pooch")
    assert data_root() == Path(pooch.os_cache("qipf"))
    monkeypatch.setenv("QIPF_DATA", str(tmp_path / "env"))
    assert data_root() == tmp_path / "env"
    assert data_root(tmp_path / "given") == tmp_path / "given"
    assert data_root("~/data") == Path.home() / "data"
    monkeypatch.setenv("QIPF_DATA", "")
    assert data_root() == Path(pooch.os_cache("qipf"))
    write_idx(tmp_path / "env", "mnist", PARTS)
    monkeypatch.setenv("QIPF_DATA", str(tmp_path / "env"))
    assert len(load("mnist", download=False).train_labels) == N_TRAIN


def test_bad_names_and_roots_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(QIPFInputError, match="Did you mean 'cifar10'"):
        load("cifar")
    with pytest.raises(QIPFInputError, match="root must name a folder"):
        load("mnist", "")
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(QIPFError, match="cache is found with pooch: pip install"):
        load("mnist")


def write_clinc150(root: Path) -> None:
    content = {
        "train": [[f"book flight {i}", "fly"] for i in range(4)] + [["what is it", "ask"]] * 3,
        "val": [["hello", "ask"]],
        "test": [["book a flight", "fly"], ["what?", "ask"]],
        "oos_test": [["sing me a song", "oos"]] * 3,
    }
    (root / "clinc150").mkdir()
    (root / "clinc150" / "data_full.json").write_text(json.dumps(content), "utf-8")


def test_clinc150_is_sentences_and_their_tokens(tmp_path: Path) -> None:
    write_clinc150(tmp_path)
    data = load("clinc150", tmp_path)
    assert isinstance(data, TextDataset)
    assert data.class_names == ("ask", "fly")
    assert data.train_labels.tolist() == [1, 1, 1, 1, 0, 0, 0]
    assert data.test_labels.tolist() == [1, 0]
    assert data.test_sentences == ("book a flight", "what?")
    assert torch.equal(data.test_images, data.vocabulary.encode(data.test_sentences))
    assert data.dimensions == (len(data.vocabulary), data.test_images.shape[1])
    unseen = load_unseen("out_of_scope", data, tmp_path)
    assert torch.equal(unseen, data.vocabulary.encode(["sing me a song"] * 3))


def test_clinc150_that_is_absent_or_broken_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(QIPFInputError, match=r"clinc150 lacks data_full\.json\. Get it from"):
        load("clinc150", tmp_path)
    (tmp_path / "clinc150").mkdir()
    for content in ("{", "{}", '{"train": [1]}'):
        (tmp_path / "clinc150" / "data_full.json").write_text(content, "utf-8")
        with pytest.raises(QIPFInputError, match=r"is not CLINC150's data_full\.json"):
            load("clinc150", tmp_path)


def cifar10() -> Dataset:
    images, labels = torch.zeros(1, 3, 32, 32, dtype=torch.uint8), torch.zeros(1).long()
    return Dataset("cifar10", images, labels, images, labels, ("a", "b"))


def test_unseen_images_get_channels_and_size_of_the_known(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), np.uint8)
    (tmp_path / "svhn").mkdir()
    np.save(tmp_path / "svhn" / "images.npy", pixels)
    found = load_unseen("svhn", cifar10(), tmp_path)
    assert found.dtype == torch.uint8
    assert np.array_equal(found.numpy().transpose(0, 2, 3, 1), pixels)
    digits = write_idx(tmp_path, "mnist", {"t10k": N_TEST})["t10k images"]
    found = load_unseen("mnist", cifar10(), tmp_path, download=False)
    assert found.shape == (N_TEST, 3, 32, 32)
    assert torch.equal(found[:, 0], found[:, 2])
    assert float(found.float().mean()) == pytest.approx(digits.mean(), abs=2)
    grey = load("mnist", write_all(tmp_path), download=False)
    same = load_unseen("kmnist", grey, tmp_path, download=False)
    assert same.shape == (N_TEST, 1, 28, 28)


def write_all(root: Path) -> Path:
    shutil.rmtree(root / "mnist")
    write_idx(root, "mnist", PARTS)
    write_idx(root, "kmnist", {"t10k": N_TEST})
    return root


def test_unseen_sets_that_are_absent_or_broken_are_told_of(tmp_path: Path) -> None:
    with pytest.raises(QIPFInputError, match=r"svhn lacks .*images\.npy\. Put 32×32 images"):
        load_unseen("svhn", cifar10(), tmp_path)
    (tmp_path / "svhn").mkdir()
    path = tmp_path / "svhn" / "images.npy"
    path.write_bytes(b"nothing")
    with pytest.raises(QIPFInputError, match="is not an array of images"):
        load_unseen("svhn", cifar10(), tmp_path)
    np.save(path, np.zeros((2, 3, 32, 32), np.uint8))
    with pytest.raises(QIPFInputError, match=r"holds uint8 of shape \(2, 3, 32, 32\)"):
        load_unseen("svhn", cifar10(), tmp_path)
    with pytest.raises(QIPFInputError, match="Unknown out-of-distribution set for cifar10 'svnh'"):
        load_unseen("svnh", cifar10(), tmp_path)
