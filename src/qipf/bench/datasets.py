"""The benchmark's images, in their publishers' own formats, verified before they are used.

====================  =======================================================================
``mnist``             MNIST: 60,000 train, 10,000 test, 28×28 grey
``kmnist``            Kuzushiji-MNIST, likewise
``kmnist10k``         8,000/2,000 split of Kuzushiji-MNIST's 10,000 official test images
``fashion_mnist``     Fashion-MNIST: 60,000 train, 10,000 test, 28×28 grey
``cifar10``           CIFAR-10: 50,000 train, 10,000 test, 32×32 colour
``digits``            scikit-learn's digits, shipped with it: 1,198 train, 599 test, 8×8 grey
====================  =======================================================================

All files are verified by a hash of their content, with one exception: for Kuzushiji-MNIST's
training labels only the hash of the archive is published. Of a copy on disk, length, IDX header
and range of values are verified.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor

from qipf.bench.downloads import Archive, DataFile, Publication, read
from qipf.errors import QIPFInputError, unknown_name

_DIGITS = tuple("0123456789")

CLASS_NAMES: dict[str, tuple[str, ...]] = {
    "mnist": _DIGITS,
    "digits": _DIGITS,
    "kmnist": ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
    "fashion_mnist": (
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
        "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
    ),
    "cifar10": (
        "airplane", "automobile", "bird", "cat", "deer",
        "dog", "frog", "horse", "ship", "truck",
    ),
}  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Labelled images in two parts; `note` says what a reader of its numbers must know."""

    name: str
    train_images: Tensor  # (N, C, H, W) uint8
    train_labels: Tensor  # (N,) int64
    test_images: Tensor  # (M, C, H, W) uint8
    test_labels: Tensor  # (M,) int64
    class_names: tuple[str, ...]
    note: str = ""

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.train_images.shape[1:]))
        parts = f"{len(self.train_labels)} train, {len(self.test_labels)} test"
        return f"Dataset({self.name!r}: {parts}, {shape}, {len(self.class_names)} classes)"


def idx_publication(
    name: str,
    mirrors: Sequence[str],
    digests: Sequence[str | None],
    archive_hashes: Sequence[str],
    counts: tuple[int, int],
) -> Publication:
    """The four gzipped IDX files of MNIST and similar datasets.

    `digests` are hashes of the contents, in the order training images, training labels, test
    images, test labels; `archive_hashes` of the gzipped files. An IDX file starts with 0, 0, the
    type 8 (unsigned bytes), the number of axes, and each axis as a big-endian 32-bit integer.
    """
    kinds = [("images-idx3-ubyte", (28, 28), 256), ("labels-idx1-ubyte", (), 10)]
    parts = zip(("train", "t10k"), counts, strict=True)
    archives = []
    for ((part, count), (kind, axes, limit)), digest, known_hash in zip(
        itertools.product(parts, kinds), digests, archive_hashes, strict=True
    ):
        shape = (count, *axes)
        header = bytes([0, 0, 8, len(shape)]) + np.asarray(shape, ">u4").tobytes()
        file = DataFile(f"{part}-{kind}", shape, header, digest, limit)
        urls = tuple(f"{mirror}/{file.name}.gz" for mirror in mirrors)
        archives.append(Archive(urls, known_hash, (file,)))
    return Publication(name, tuple(archives))


def cifar10_publication(
    urls: Sequence[str], known_hash: str, digests: Sequence[str | None], count: int
) -> Publication:
    """CIFAR-10's six binary batches: records of one label byte and three 32×32 planes."""
    names = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
    files = [
        DataFile(name, (count, 1 + 3 * 32 * 32), digest=digest)
        for name, digest in zip(names, digests, strict=True)
    ]
    archive = Archive(tuple(urls), known_hash, tuple(files))
    return Publication("cifar10", (archive,), "cifar-10-batches-bin")


#: Publications by name: what is read and verified, and from where it is downloaded.
PUBLICATIONS: dict[str, Publication] = {
    "mnist": idx_publication(
        "mnist",
        [
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            "https://storage.googleapis.com/cvdf-datasets/mnist",
            "http://yann.lecun.com/exdb/mnist",
        ],
        [
            "sha256:ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "sha256:65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "sha256:0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "sha256:ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ],
        [
            "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "md5:d53e105ee54ea40749a09fcbcd1e9432",
            "md5:9fb629c4189551a2d022fa330f9573f3",
            "md5:ec29112dd5afa0611ce80d1b7f02629c",
        ],
        (60_000, 10_000),
    ),
    "kmnist": idx_publication(
        "kmnist",
        [
            "https://codh.rois.ac.jp/kmnist/dataset/kmnist",
            "http://codh.rois.ac.jp/kmnist/dataset/kmnist",
        ],
        [
            "md5:92be26ec9822e900ac425d0a0aa84ced",
            None,
            "sha256:76fbd229ce87db80dd281af5e6670de4ad0e42fb30a7bd643972994c47c1f42e",
            "sha256:a11dc742be8e781a40a92f53d6a4957e7b7d36df2faa097659131ebfd8fd60c6",
        ],
        [
            "md5:bdb82020997e1d708af4cf47b453dcf7",
            "md5:e144d726b3acfaa3e44228e80efcd344",
            "md5:5c965bf0a639b31b8f53240b1b52f4d7",
            "md5:7320c461ea6c1c855c0b718fb2a4b134",
        ],
        (60_000, 10_000),
    ),
    "fashion_mnist": idx_publication(
        "fashion_mnist",
        [
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
        ],
        [
            "sha256:c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "sha256:bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "sha256:5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "sha256:0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ],
        [
            "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "md5:25c81989df183df01b3e8a0aad5dffbe",
            "md5:bef4ecab320f06d8554ea6380940ec79",
            "md5:bb300cfdad3c16e7a12a480ee83cd310",
        ],
        (60_000, 10_000),
    ),
    "cifar10": cifar10_publication(
        [
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "https://cave.cs.toronto.edu/kriz/cifar-10-binary.tar.gz",
            "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/"
            "cifar-10-binary.tar.gz",
        ],
        "md5:c32a1d4ab5d03f1284b67883e8d87530",
        [
            "sha256:cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
            "sha256:a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
            "sha256:bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
            "sha256:014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
            "sha256:755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            "sha256:8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
        ],
        10_000,
    ),
}

NAMES: tuple[str, ...] = (*PUBLICATIONS, "kmnist10k", "digits")


def load(name: str, root: str | os.PathLike[str] | None = None, download: bool = True) -> Dataset:
    """A dataset by name, from files under `root`; every file is verified on every load.

    `root` is the folder given here, else the one that the environment variable ``QIPF_DATA``
    names, else the user's cache. It is laid out as ``root/mnist/train-images-idx3-ubyte.gz``
    (also unpacked) and ``root/cifar10/cifar-10-batches-bin/data_batch_1.bin`` (also directly in
    ``root/cifar10``). Files it lacks are downloaded into it, unless `download` is false.

    >>> load("digits")
    Dataset('digits': 1198 train, 599 test, 1×8×8, 10 classes)
    """
    if name not in NAMES:
        raise unknown_name("dataset", name, NAMES)
    if name == "digits":
        return _digits()
    folder = data_root(root)
    if name == "cifar10":
        return _cifar10(folder, download)
    if name == "kmnist10k":
        return _kmnist10k(folder, download)
    arrays = read(PUBLICATIONS[name], folder, download=download)
    return Dataset(name, *_idx_part(arrays, "train"), *_idx_part(arrays, "t10k"), CLASS_NAMES[name])


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """The folder that datasets are read from: `root`, else ``QIPF_DATA``, else the user's cache."""
    given = root if root is not None else os.environ.get("QIPF_DATA")
    if given:
        return Path(given).expanduser()
    if root is not None:
        raise QIPFInputError("root must name a folder; got ''. Pass None for the user's cache.")
    try:
        import pooch
    except ImportError as error:
        raise QIPFInputError(
            "No data folder is named, and the user's cache is found with pooch, which is not "
            "installed. Pass root, set QIPF_DATA, or install qipf[bench]."
        ) from error
    return Path(pooch.os_cache("qipf"))


def _idx_part(arrays: dict[str, NDArray[np.uint8]], part: str) -> tuple[Tensor, Tensor]:
    images = arrays[f"{part}-images-idx3-ubyte"][:, None]
    return _tensors(images, arrays[f"{part}-labels-idx1-ubyte"])


def _tensors(images: NDArray[np.uint8], labels: NDArray) -> tuple[Tensor, Tensor]:
    # copies, because the arrays are views of immutable bytes
    return torch.from_numpy(images.copy()), torch.from_numpy(labels.astype(np.int64))


def _cifar10(root: Path, download: bool) -> Dataset:
    arrays = read(PUBLICATIONS["cifar10"], root, download=download)
    test = _cifar10_part(arrays.pop("test_batch.bin"))
    train = _cifar10_part(np.concatenate(list(arrays.values())))
    return Dataset("cifar10", *train, *test, CLASS_NAMES["cifar10"])


def _cifar10_part(records: NDArray[np.uint8]) -> tuple[Tensor, Tensor]:
    return _tensors(records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0])


def _kmnist10k(root: Path, download: bool) -> Dataset:
    names = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
    arrays = read(PUBLICATIONS["kmnist"], root, names, download)
    images, labels = _idx_part(arrays, "t10k")
    source = "K-MNIST's official test images, not its official training and test sets"
    return _split("kmnist10k", images, labels, len(labels) // 5, CLASS_NAMES["kmnist"], source)


def _digits() -> Dataset:
    bunch = load_digits()
    levels = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[:, None]  # 0..16 to 0..255
    images, labels = _tensors(levels, bunch.target)
    source = "scikit-learn's digits"
    return _split("digits", images, labels, len(labels) // 3, CLASS_NAMES["digits"], source)


def _split(
    name: str,
    images: Tensor,
    labels: Tensor,
    n_test: int,
    class_names: tuple[str, ...],
    source: str,
) -> Dataset:
    """A fixed split in which every class keeps its share of both parts."""
    parts = train_test_split(
        np.arange(len(labels)), test_size=n_test, stratify=labels.numpy(), random_state=0
    )
    train, test = (torch.from_numpy(np.sort(part)) for part in parts)
    note = f"a stratified {len(train):,}/{len(test):,} split of {source}"
    return Dataset(
        name, images[train], labels[train], images[test], labels[test], class_names, note
    )
