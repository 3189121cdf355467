"""The benchmark's images and texts, in their publishers' own formats, verified before use.

====================  =======================================================================
``mnist``             MNIST: 60,000 train, 10,000 test, 28×28 grey
``kmnist``            Kuzushiji-MNIST, likewise
``kmnist10k``         8,000/2,000 split of Kuzushiji-MNIST's 10,000 official test images
``fashion_mnist``     Fashion-MNIST: 60,000 train, 10,000 test, 28×28 grey
``cifar10``           CIFAR-10: 50,000 train, 10,000 test, 32×32 colour
``digits``            scikit-learn's digits, shipped with it: 1,198 train, 599 test, 8×8 grey
``clinc150``          CLINC150: 15,000 train, 4,500 test sentences of 150 intents
====================  =======================================================================

Out-of-distribution data (`load_unseen`): the test images of ``mnist``, ``kmnist`` and
``fashion_mnist``; ``tiny_imagenet`` and ``svhn``, samples that are not downloaded but read from a
folder; ``out_of_scope``, 1,000 sentences of CLINC150 with none of its intents.

All files are verified by a hash of their content, with one exception: for Kuzushiji-MNIST's
training labels only the hash of the archive is published. Of a copy on disk, length, IDX header
and range of values are verified.
"""

import itertools
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor
from torch.nn import functional

from qipf.bench.downloads import Archive, DataFile, Publication, read
from qipf.bench.text import Vocabulary
from qipf.errors import QIPFInputError, missing_extra, unknown_name

#: Mirrors, hashes of contents and archives, numbers of examples and class names, by dataset.
_ABOUT = json.loads(resources.files("qipf.bench").joinpath("publications.json").read_text("utf-8"))

CLASS_NAMES: dict[str, tuple[str, ...]] = {
    "digits": tuple("0123456789"),
    **{name: tuple(about["class_names"]) for name, about in _ABOUT.items()},
}


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

    @property
    def dimensions(self) -> tuple[int, int]:
        """What a network is built for: channels and size."""
        return self.train_images.shape[1], self.train_images.shape[2]

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.train_images.shape[1:]))
        parts = f"{len(self.train_labels)} train, {len(self.test_labels)} test"
        return f"Dataset({self.name!r}: {parts}, {shape}, {len(self.class_names)} classes)"


@dataclass(frozen=True, eq=False, repr=False)
class TextDataset(Dataset):
    """Labelled sentences; in place of images their tokens, (N, length) int64."""

    vocabulary: Vocabulary = field(default_factory=lambda: Vocabulary(()))
    test_sentences: tuple[str, ...] = ()

    @property
    def dimensions(self) -> tuple[int, int]:
        """Number of word pieces, and tokens of a text."""
        return len(self.vocabulary), self.vocabulary.length


def idx_publication(
    name: str,
    mirrors: Sequence[str],
    digests: Sequence[str | None],
    archive_hashes: Sequence[str],
    counts: Sequence[int],
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
    name: str,
    mirrors: Sequence[str],
    digests: Sequence[str | None],
    archive_hashes: Sequence[str],
    counts: Sequence[int],
) -> Publication:
    """CIFAR-10's six binary batches: records of one label byte and three 32×32 planes."""
    names = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
    files = [
        DataFile(batch, (counts[0], 1 + 3 * 32 * 32), digest=digest)
        for batch, digest in zip(names, digests, strict=True)
    ]
    archive = Archive(tuple(mirrors), archive_hashes[0], tuple(files))
    return Publication(name, (archive,), "cifar-10-batches-bin")


#: Publications by name: what is read and verified, and from where it is downloaded.
PUBLICATIONS: dict[str, Publication] = {
    name: (cifar10_publication if name == "cifar10" else idx_publication)(
        name, about["mirrors"], about["contents"], about["archives"], about["counts"]
    )
    for name, about in _ABOUT.items()
}

NAMES: tuple[str, ...] = (*PUBLICATIONS, "kmnist10k", "digits", "clinc150")

#: Datasets of texts.
TEXTS = ("clinc150",)

#: What each dataset's networks are shown as out-of-distribution inputs.
UNSEEN: dict[str, tuple[str, ...]] = {
    "cifar10": ("tiny_imagenet", "svhn", "mnist", "fashion_mnist"),
    "mnist": ("kmnist", "fashion_mnist"),
    "clinc150": ("out_of_scope",),
}

#: All of them.
UNSEEN_SETS: tuple[str, ...] = tuple(sorted({name for sets in UNSEEN.values() for name in sets}))


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
    if name == "clinc150":
        return _clinc150(folder)
    arrays = read(PUBLICATIONS[name], folder, download=download)
    return Dataset(name, *_idx_part(arrays, "train"), *_idx_part(arrays, "t10k"), CLASS_NAMES[name])


def load_unseen(
    name: str, known: Dataset, root: str | os.PathLike[str] | None = None, download: bool = True
) -> Tensor:  # (n, …) shaped as the inputs of `known`
    """Inputs of another distribution than `known`, for its networks.

    Images get its channels (grey ones are repeated) and its size (bilinear); the sentences of
    ``out_of_scope`` get its tokens.
    """
    choices = UNSEEN.get(known.name, ())
    if name not in choices:
        raise unknown_name(f"out-of-distribution set for {known.name}", name, choices)
    folder = data_root(root)
    if isinstance(known, TextDataset):
        return known.vocabulary.encode(text for text, _ in _clinc150_part(folder, "oos_test"))
    if name in PUBLICATIONS:
        names = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
        images, _ = _idx_part(read(PUBLICATIONS[name], folder, names, download), "t10k")
    else:
        images = _sample(folder / name / "images.npy", name)
    channels, size = known.dimensions
    if images.shape[-1] != size:
        wide = functional.interpolate(images.float(), size=(size, size), mode="bilinear")
        images = wide.round().to(torch.uint8)
    return images.expand(-1, channels, -1, -1).contiguous()


def _sample(path: Path, name: str) -> Tensor:  # (n, 3, H, W) uint8
    """Images of an ``.npy`` file, (n, H, W, 3) bytes."""
    remedy = f"Put 32×32 images of {name} there, as bytes of shape (n, 32, 32, 3), with numpy.save."
    try:
        images = np.load(path, allow_pickle=False)
    except FileNotFoundError as error:
        raise QIPFInputError(f"{name} lacks {path}. {remedy}") from error
    except (ValueError, EOFError, OSError) as error:
        raise QIPFInputError(f"{path} is not an array of images ({error}). {remedy}") from error
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1:] != (32, 32, 3):
        found = f"{images.dtype} of shape {images.shape}"
        raise QIPFInputError(f"{path} holds {found}. {remedy}")
    return torch.from_numpy(np.moveaxis(images, 3, 1).copy())


def _clinc150(root: Path) -> Dataset:
    train, test = (_clinc150_part(root, part) for part in ("train", "test"))
    intents = tuple(sorted({intent for _, intent in train}))
    places = {intent: place for place, intent in enumerate(intents)}
    vocabulary = Vocabulary.of(text for text, _ in train)

    def tensors(rows: list[tuple[str, str]]) -> tuple[Tensor, Tensor]:
        labels = torch.tensor([places[intent] for _, intent in rows], dtype=torch.int64)
        return vocabulary.encode(text for text, _ in rows), labels

    sentences = tuple(text for text, _ in test)
    return TextDataset(
        "clinc150", *tensors(train), *tensors(test), intents, "", vocabulary, sentences
    )


def _clinc150_part(root: Path, part: str) -> list[tuple[str, str]]:
    """Sentences and their intents: ``train``, ``val``, ``test``, or the same after ``oos_``."""
    path = root / "clinc150" / "data_full.json"
    remedy = f"Get it from https://github.com/clinc/oos-eval and put it into {path.parent}."
    if not path.is_file():
        raise QIPFInputError(f"clinc150 lacks data_full.json. {remedy}")
    try:
        return [
            (str(text), str(intent)) for text, intent in json.loads(path.read_text("utf-8"))[part]
        ]
    except (ValueError, KeyError, TypeError) as error:
        flaw = f"{type(error).__name__}: {error}"
        raise QIPFInputError(
            f"{path} is not CLINC150's data_full.json ({flaw}). {remedy}"
        ) from error


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
        raise missing_extra(
            "No data folder is named (root, QIPF_DATA), and the user's cache is found with pooch",
            "bench",
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
