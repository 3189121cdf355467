"""Publishers' data files: found on disk or downloaded, and believed only once verified.

A file is known by its *content*: its exact length, its leading bytes and a hash, all taken after
decompression, so that any faithful copy serves, however it was packed. Downloads go to a
temporary folder beside their destination, are verified there, and are moved into place whole:
whatever stops a download, a file that bears its final name is complete.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import math
import os
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qipf.errors import QIPFError, QIPFInputError
from qipf.progress import progress_bar

Fetch = Callable[[str, Path], None]

_BROKEN_ARCHIVE = (OSError, EOFError, zlib.error, tarfile.TarError)


@dataclass(frozen=True)
class DataFile:
    """One published file of bytes: `header`, then an array of `shape`.

    `digest` is ``"sha256:…"`` or ``"md5:…"`` of the whole content; without one, length, header
    and value range are all that can be verified. Every byte after the header lies below `limit`.
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
        """What the content must be, in words."""
        known = self.digest.replace(":", " ") if self.digest else "no published hash"
        return f"{self.size:,} bytes of content, {known}"

    def flaw(self, content: bytes) -> str | None:
        """What is wrong with `content`, or None if it is the published file."""
        if len(content) > self.size:
            return "more bytes"  # reading stops one byte past the end: how many is not known
        if len(content) < self.size:
            return f"{len(content):,} bytes"
        if not content.startswith(self.header):
            return f"the leading bytes {content[: len(self.header)].hex()}, not {self.header.hex()}"
        if self.digest is not None:
            algorithm, _, published = self.digest.partition(":")
            found = hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()
            return None if found == published else f"{algorithm} {found}"
        largest = int(self.array(content).max(initial=0))
        return None if largest < self.limit else f"a value of {largest}, not below {self.limit}"

    def array(self, content: bytes) -> NDArray[np.uint8]:  # self.shape
        """The array that follows the header."""
        return np.frombuffer(content, np.uint8, offset=len(self.header)).reshape(self.shape)


@dataclass(frozen=True)
class Archive:
    """What one download brings: a gzipped file, or a gzipped tar (``.tar.gz``) of several."""

    urls: tuple[str, ...]
    files: tuple[DataFile, ...]

    def unpack(self, path: Path, file: DataFile) -> bytes:
        """The content of `file`, read from the archive that was downloaded to `path`."""
        if not self.urls[0].endswith(".tar.gz"):
            return _bounded_read(path, file, compressed=True)
        with tarfile.open(path, "r:gz") as tar:
            for member in tar:
                # members are read, never extracted: no path inside the archive is trusted
                stream = tar.extractfile(member) if Path(member.name).name == file.name else None
                if stream is not None:
                    return stream.read(file.size + 1)
        raise tarfile.TarError(f"{file.name} is not in the archive")


@dataclass(frozen=True)
class Publication:
    """The files of one publisher, kept under ``ROOT/name`` in any of `folders`, first preferred."""

    name: str
    archives: tuple[Archive, ...]
    folders: tuple[str, ...] = ("",)

    def home(self, root: Path) -> Path:
        """Where a download is kept, and where the user is told to put files."""
        return root / self.name / self.folders[0]

    def find(self, root: Path, file: DataFile) -> Path | None:
        """The first copy of `file` under `root`, plain or gzipped."""
        folders = [root / self.name / folder for folder in self.folders]
        copies = [folder / (file.name + end) for end in ("", ".gz") for folder in folders]
        return next((copy for copy in copies if copy.exists()), None)


def fetch_http(url: str, target: Path) -> None:
    """Download `url` to `target` with pooch, behind a progress bar."""
    try:
        import pooch
    except ImportError as error:
        raise QIPFError(
            "Downloading needs pooch, which is not installed. Install qipf[bench], "
            "or put the files in place yourself and name their folder in QIPF_DATA."
        ) from error
    # a bar without a total has no truth value, which pooch asks for before it sets the total
    with progress_bar(f"Downloading {url.rsplit('/', 1)[-1]}", total=1, unit="B") as bar:
        pooch.HTTPDownloader(progressbar=bar, chunk_size=1 << 16)(url, str(target), None)


def read(
    publication: Publication,
    root: Path,
    names: Iterable[str] | None = None,
    download: bool = True,
    fetch: Fetch = fetch_http,
) -> dict[str, NDArray[np.uint8]]:
    """The verified arrays of a publication's files by name (all of them, or only `names`).

    Files that `root` lacks are downloaded into it if `download`; a file that is there but not
    what its publisher published is an error and stays untouched.
    """
    if root.exists() and not root.is_dir():
        raise QIPFInputError(f"root must be a folder; {root} is a file. Name the folder it is in.")
    wanted = [
        (archive, [file for file in archive.files if names is None or file.name in names])
        for archive in publication.archives
    ]
    lacking = [
        (archive, [file for file in files if publication.find(root, file) is None])
        for archive, files in wanted
    ]
    lacking = [(archive, files) for archive, files in lacking if files]
    if lacking and not download:
        raise _missing(publication, root, [file for _, files in lacking for file in files])
    for archive, files in lacking:
        _download(archive, files, publication.home(root), fetch)
    return {file.name: _verified(publication, root, file) for _, files in wanted for file in files}


def _missing(publication: Publication, root: Path, files: Sequence[DataFile]) -> QIPFInputError:
    lines = "".join(f"\n  {file.name} (or {file.name}.gz): {file.expected}" for file in files)
    return QIPFInputError(
        f"{publication.name} lacks {len(files)} of its files in {publication.home(root)}:{lines}\n"
        "Put them there, allow the download (download=True), or set QIPF_DATA to the folder that "
        f"holds {publication.name}/."
    )


def _verified(publication: Publication, root: Path, file: DataFile) -> NDArray[np.uint8]:
    path = publication.find(root, file)
    if path is None:
        raise _missing(publication, root, [file])
    try:
        content = _bounded_read(path, file, compressed=path.suffix == ".gz")
        flaw = file.flaw(content)
    except _BROKEN_ARCHIVE as error:
        flaw = f"something unreadable ({error})"
    if flaw is not None:
        raise QIPFInputError(
            f"{path} is not the published {publication.name} file: expected {file.expected}; "
            f"got {flaw}. Put a faithful copy in its place, or delete it and allow the download "
            "(download=True)."
        )
    return file.array(content)


def _bounded_read(path: Path, file: DataFile, compressed: bool) -> bytes:
    """At most one byte more than expected, so that a bomb or a wrong file costs no memory."""
    with gzip.open(path, "rb") if compressed else path.open("rb") as stream:
        return stream.read(file.size + 1)


def _download(archive: Archive, files: Sequence[DataFile], home: Path, fetch: Fetch) -> None:
    """Bring `files` into `home` from the first address that serves them faithfully."""
    failures = []
    try:
        home.mkdir(parents=True, exist_ok=True)
        partial = tempfile.TemporaryDirectory(prefix=".partial-", dir=home)
    except OSError as error:
        raise QIPFError(
            f"Cannot download into {home}: {error}. "
            "Pass another root, or set QIPF_DATA to a folder that can be written to."
        ) from error
    with partial as name:
        for url in archive.urls:
            try:
                fetch(url, Path(name, "archive"))
                _keep_verified(archive, files, Path(name), home)
                return
            except _BROKEN_ARCHIVE as error:
                failures.append(f"\n  {url}: {error}")
    with contextlib.suppress(OSError):
        home.rmdir()  # made for nothing, unless it holds other files
    lines = "".join(f"\n  {file.name}: {file.expected}" for file in files)
    raise QIPFError(
        f"No address gave a faithful copy of{lines}\nTried:{''.join(failures)}\n"
        f"Get the files elsewhere and put them (plain, or each gzipped) in {home}."
    )


def _keep_verified(archive: Archive, files: Sequence[DataFile], partial: Path, home: Path) -> None:
    for file in files:
        content = archive.unpack(partial / "archive", file)
        flaw = file.flaw(content)
        if flaw is not None:
            raise OSError(f"expected {file.expected}; got {flaw}")
        with (partial / file.name).open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())  # on the disk before it gets its name
    for file in files:
        os.replace(partial / file.name, home / file.name)
