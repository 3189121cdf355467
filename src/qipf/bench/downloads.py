"""Published data files: found on disk or downloaded, and always verified before use.

A file is identified by its content after decompression (length, header and hash), so that any
faithful copy on disk is accepted, plain or gzipped. Downloads are made by pooch, which verifies
the archive's hash before the archive gets its name.
"""

import gzip
import hashlib
import math
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qipf.errors import QIPFError, QIPFInputError, missing_extra
from qipf.progress import progress_bar


@dataclass(frozen=True)
class DataFile:
    """One published file of bytes: `header`, then an array of `shape`.

    `digest` is ``"sha256:…"`` or ``"md5:…"`` of the whole content. Without one, only length,
    header and range are verified: every byte after the header must be below `limit`.
    """

    name: str
    shape: tuple[int, ...]
    header: bytes = b""
    digest: str | None = None
    limit: int = 256

    @property
    def size(self) -> int:
        """Bytes of the content."""
        return len(self.header) + math.prod(self.shape)

    @property
    def expected(self) -> str:
        """Size and hash of the content, for error messages."""
        known = self.digest.replace(":", " ") if self.digest else "no published hash"
        return f"{self.size:,} bytes of content, {known}"

    def flaw(self, content: bytes) -> str | None:
        """How `content` differs from the published file; None if it does not."""
        if len(content) != self.size:
            # reading stops one byte past the expected end
            return "more bytes" if len(content) > self.size else f"{len(content):,} bytes"
        if self.digest is not None:
            algorithm, _, published = self.digest.partition(":")
            found = hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()
            return None if found == published else f"{algorithm} {found}"
        if not content.startswith(self.header):
            return f"the leading bytes {content[: len(self.header)].hex()}, not {self.header.hex()}"
        largest = int(self.array(content).max(initial=0))
        return None if largest < self.limit else f"a value of {largest}, not below {self.limit}"

    def array(self, content: bytes) -> NDArray[np.uint8]:  # self.shape
        """The array that follows the header."""
        return np.frombuffer(content, np.uint8, offset=len(self.header)).reshape(self.shape)


@dataclass(frozen=True)
class Archive:
    """One download: a gzipped file, or a ``.tar.gz`` of several, with the hash of the archive."""

    urls: tuple[str, ...]
    known_hash: str
    files: tuple[DataFile, ...]


@dataclass(frozen=True)
class Publication:
    """The files of one dataset, in ``ROOT/name`` or in the folder that its archive unpacks to."""

    name: str
    archives: tuple[Archive, ...]
    folder: str = ""

    def find(self, root: Path, file: DataFile) -> Path | None:
        """The first copy of `file` under `root`, plain or gzipped."""
        folders = dict.fromkeys([root / self.name / self.folder, root / self.name])
        copies = [folder / (file.name + end) for end in ("", ".gz") for folder in folders]
        return next((copy for copy in copies if copy.exists()), None)


def read(
    publication: Publication, root: Path, names: Iterable[str] | None = None, download: bool = True
) -> dict[str, NDArray[np.uint8]]:
    """The verified arrays of a publication's files by name (all of them, or only `names`).

    Missing files are downloaded into `root` if `download`. A file that is there but differs from
    the published one raises an error and is not changed.
    """
    if root.exists() and not root.is_dir():
        raise QIPFInputError(f"root must be a folder; {root} is a file. Name the folder it is in.")
    arrays = {}
    for archive in publication.archives:
        files = [file for file in archive.files if names is None or file.name in names]
        missing = [file for file in files if publication.find(root, file) is None]
        if missing and download:
            _download(archive, root / publication.name)
        for file in files:
            arrays[file.name] = _verified(publication, root, file)
    return arrays


def _verified(publication: Publication, root: Path, file: DataFile) -> NDArray[np.uint8]:
    path = publication.find(root, file)
    if path is None:
        raise QIPFInputError(
            f"{publication.name} lacks {file.name} (or {file.name}.gz, {file.expected}) in "
            f"{root / publication.name}. Put it there, allow the download (download=True), or set "
            f"QIPF_DATA to the folder that holds {publication.name}/."
        )
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
            content = stream.read(file.size + 1)  # a wrong file of any size costs no memory
        flaw = file.flaw(content)
    except (OSError, EOFError, zlib.error) as error:
        flaw = f"something unreadable ({error})"
    if flaw is not None:
        raise QIPFInputError(
            f"{path} is not the published {publication.name} file: expected {file.expected}; "
            f"got {flaw}. Replace it, or delete it and allow the download (download=True)."
        )
    return file.array(content)


def _download(archive: Archive, folder: Path) -> None:
    """Retrieve an archive from the first address that serves it, and unpack it if it is a tar."""
    try:
        import pooch
    except ImportError as error:
        raise missing_extra(
            "Put the files in place and name their folder in QIPF_DATA; downloading them needs "
            "pooch",
            "bench",
        ) from error
    pooch.get_logger().setLevel("WARNING")
    processor = pooch.Untar(extract_dir=".") if archive.urls[0].endswith(".tar.gz") else None
    failures = []
    for url in archive.urls:
        name = url.rsplit("/", 1)[-1]
        # a bar without a total has no truth value, which pooch asks for before it sets the total
        with progress_bar(f"Downloading {name}", total=1, unit="B") as bar:
            downloader = pooch.HTTPDownloader(progressbar=bar, chunk_size=1 << 16)
            try:
                pooch.retrieve(url, archive.known_hash, name, folder, processor, downloader)
                return
            except (OSError, ValueError) as error:  # no connection; another hash
                failures.append(f"\n  {url}: {error}")
    raise QIPFError(
        f"Cannot download {name} into {folder}:{''.join(failures)}\n"
        "Get it elsewhere and put its files into that folder, or set QIPF_DATA to a folder that "
        "has them."
    )
