import gzip
import hashlib
import io
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from qipf.bench.downloads import Archive, DataFile, Publication, fetch_http, read
from qipf.errors import QIPFError, QIPFInputError

HEADER = b"\x00\x01"
CONTENT = HEADER + bytes(range(12))
SHA256 = hashlib.sha256(CONTENT).hexdigest()
FILE = DataFile("grid", (3, 4), HEADER, f"sha256:{SHA256}")
URLS = ("https://one.test/grid.gz", "https://two.test/grid.gz")
TOY = Publication("toy", (Archive(URLS, (FILE,)),), ("inner", ""))
EXPECTED = f"14 bytes of content, sha256 {SHA256}"
REMEDY = "Put a faithful copy in its place, or delete it and allow the download (download=True)."


class Server:
    """Stands in for the network: serves bytes, or raises what is to be raised."""

    def __init__(self, **answers: bytes | BaseException) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def __call__(self, url: str, target: Path) -> None:
        host = url.split("/")[2].removesuffix(".test")
        self.asked.append(host)
        answer = self.answers[host]
        if isinstance(answer, BaseException):
            target.write_bytes(gzip.compress(CONTENT)[:9])  # what an interruption leaves behind
            raise answer
        target.write_bytes(answer)


def refuse(url: str, target: Path) -> None:
    raise AssertionError(f"{url} was asked for although nothing was missing")


def entries(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def tar_gz(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return stream.getvalue()


@pytest.mark.parametrize("folder", ["toy/inner", "toy"])
@pytest.mark.parametrize("packed", [False, True])
def test_files_are_found_in_every_layout(tmp_path: Path, folder: str, packed: bool) -> None:
    home = tmp_path / folder
    home.mkdir(parents=True)
    path = home / ("grid.gz" if packed else "grid")
    path.write_bytes(gzip.compress(CONTENT) if packed else CONTENT)
    arrays = read(TOY, tmp_path, fetch=refuse)
    np.testing.assert_array_equal(arrays["grid"], np.arange(12, dtype=np.uint8).reshape(3, 4))


def test_names_restrict_what_is_read_and_downloaded(tmp_path: Path) -> None:
    other = Archive(("https://three.test/other.gz",), (DataFile("other", (2,)),))
    both = Publication("toy", (*TOY.archives, other))
    server = Server(one=gzip.compress(CONTENT))
    assert list(read(both, tmp_path, ["grid"], fetch=server)) == ["grid"]
    assert server.asked == ["one"]


def test_missing_files_are_listed_with_their_place(tmp_path: Path) -> None:
    with pytest.raises(QIPFInputError) as caught:
        read(TOY, tmp_path, download=False, fetch=refuse)
    assert str(caught.value) == (
        f"toy lacks 1 of its files in {tmp_path}/toy/inner:\n"
        f"  grid (or grid.gz): {EXPECTED}\n"
        "Put them there, allow the download (download=True), or set QIPF_DATA to the folder that "
        "holds toy/."
    )
    assert entries(tmp_path) == []


WRONG_HASH = HEADER + bytes(12)
BAD_CONTENT = {
    "empty": (b"", "0 bytes"),
    "short": (CONTENT[:-1], "13 bytes"),
    "long": (CONTENT + b"\x00" * 9, "more bytes"),
    "wrong header": (b"\x00\x02" + CONTENT[2:], "the leading bytes 0002, not 0001"),
    "wrong hash": (WRONG_HASH, f"sha256 {hashlib.sha256(WRONG_HASH).hexdigest()}"),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("case", BAD_CONTENT)
def test_a_wrong_file_is_named_and_left_alone(tmp_path: Path, case: str, packed: bool) -> None:
    content, found = BAD_CONTENT[case]
    path = tmp_path / "toy" / ("grid.gz" if packed else "grid")
    path.parent.mkdir()
    stored = gzip.compress(content) if packed else content
    path.write_bytes(stored)
    with pytest.raises(QIPFInputError) as caught:
        read(TOY, tmp_path, fetch=refuse)
    assert str(caught.value) == (
        f"{path} is not the published toy file: expected {EXPECTED}; got {found}. {REMEDY}"
    )
    assert path.read_bytes() == stored


@pytest.mark.parametrize(
    ("stored", "reason"),
    [
        (
            gzip.compress(CONTENT)[:-10],
            "Compressed file ended before the end-of-stream marker was reached",
        ),
        (b"<html>moved</html>", "Not a gzipped file (b'<h')"),
    ],
    ids=["truncated", "not gzip"],
)
def test_a_broken_gzip_is_named(tmp_path: Path, stored: bytes, reason: str) -> None:
    path = tmp_path / "toy" / "grid.gz"
    path.parent.mkdir()
    path.write_bytes(stored)
    with pytest.raises(QIPFInputError) as caught:
        read(TOY, tmp_path, fetch=refuse)
    assert str(caught.value) == (
        f"{path} is not the published toy file: expected {EXPECTED}; "
        f"got something unreadable ({reason}). {REMEDY}"
    )


@pytest.mark.parametrize("cut", range(len(gzip.compress(CONTENT))))
def test_no_truncation_of_a_gzip_passes(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "toy" / "grid.gz"
    path.parent.mkdir()
    path.write_bytes(gzip.compress(CONTENT)[:cut])
    with pytest.raises(QIPFInputError, match="is not the published toy file"):
        read(TOY, tmp_path, fetch=refuse)


def test_without_a_hash_length_header_and_range_still_count() -> None:
    file = DataFile("labels", (3,), HEADER, limit=10)
    assert file.expected == "5 bytes of content, no published hash"
    assert file.flaw(HEADER + bytes([0, 9, 3])) is None
    assert file.flaw(HEADER + bytes([0, 10, 3])) == "a value of 10, not below 10"
    assert file.flaw(HEADER) == "2 bytes"
    assert file.flaw(b"\x00\x00" + bytes(3)) == "the leading bytes 0000, not 0001"


def test_md5_serves_where_only_it_is_published() -> None:
    file = DataFile("grid", (3, 4), HEADER, f"md5:{hashlib.md5(CONTENT).hexdigest()}")
    assert file.flaw(CONTENT) is None
    assert file.flaw(WRONG_HASH) == f"md5 {hashlib.md5(WRONG_HASH).hexdigest()}"


def test_a_download_is_kept_once_and_read_again(tmp_path: Path) -> None:
    server = Server(one=gzip.compress(CONTENT))
    first = read(TOY, tmp_path, fetch=server)
    again = read(TOY, tmp_path, fetch=refuse)
    np.testing.assert_array_equal(first["grid"], again["grid"])
    assert server.asked == ["one"]
    assert entries(tmp_path) == ["toy/inner/grid"]
    assert list((tmp_path / "toy" / "inner").iterdir()) == [tmp_path / "toy" / "inner" / "grid"]


BAD_ANSWERS = {
    "refused": OSError("403 Forbidden"),
    "truncated": gzip.compress(CONTENT)[:-10],
    "a web page": b"<html>sign in</html>",
    "wrong hash": gzip.compress(WRONG_HASH),
    "too long": gzip.compress(CONTENT + b"\x00"),
}


@pytest.mark.parametrize("case", BAD_ANSWERS)
def test_an_unfaithful_address_gives_way_to_the_next(tmp_path: Path, case: str) -> None:
    server = Server(one=BAD_ANSWERS[case], two=gzip.compress(CONTENT))
    arrays = read(TOY, tmp_path, fetch=server)
    np.testing.assert_array_equal(arrays["grid"], np.arange(12).reshape(3, 4))
    assert server.asked == ["one", "two"]
    assert entries(tmp_path) == ["toy/inner/grid"]


@pytest.mark.parametrize("case", BAD_ANSWERS)
def test_nothing_unfaithful_is_ever_kept(tmp_path: Path, case: str) -> None:
    server = Server(one=BAD_ANSWERS[case], two=BAD_ANSWERS[case])
    with pytest.raises(QIPFError, match="No address gave a faithful copy"):
        read(TOY, tmp_path, fetch=server)
    assert not (tmp_path / "toy" / "inner").exists()


def test_failed_downloads_tell_every_attempt(tmp_path: Path) -> None:
    server = Server(one=OSError("403 Forbidden"), two=gzip.compress(WRONG_HASH))
    with pytest.raises(QIPFError) as caught:
        read(TOY, tmp_path, fetch=server)
    wrong = hashlib.sha256(WRONG_HASH).hexdigest()
    assert str(caught.value) == (
        f"No address gave a faithful copy of\n  grid: {EXPECTED}\nTried:\n"
        "  https://one.test/grid.gz: 403 Forbidden\n"
        f"  https://two.test/grid.gz: expected {EXPECTED}; got sha256 {wrong}\n"
        f"Get the files elsewhere and put them (plain, or each gzipped) in {tmp_path}/toy/inner."
    )


def test_an_interrupted_download_leaves_nothing(tmp_path: Path) -> None:
    server = Server(one=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        read(TOY, tmp_path, fetch=server)
    assert list((tmp_path / "toy" / "inner").iterdir()) == []
    read(TOY, tmp_path, fetch=Server(one=gzip.compress(CONTENT)))
    assert entries(tmp_path) == ["toy/inner/grid"]


def test_what_a_killed_download_left_is_never_read(tmp_path: Path) -> None:
    # kill -9 runs no clean-up: the temporary folder stays, and so do its half-written files
    left = tmp_path / "toy" / "inner" / ".partial-killed"
    left.mkdir(parents=True)
    (left / "grid").write_bytes(CONTENT[:5])
    arrays = read(TOY, tmp_path, fetch=Server(one=gzip.compress(CONTENT)))
    np.testing.assert_array_equal(arrays["grid"], np.arange(12).reshape(3, 4))


TAR_FILES = (
    DataFile("a.bin", (4,), digest=f"sha256:{hashlib.sha256(b'aaaa').hexdigest()}"),
    DataFile("b.bin", (2,), digest=f"sha256:{hashlib.sha256(b'bb').hexdigest()}"),
)
TARRED = Publication("toy", (Archive(("https://one.test/toy.tar.gz",), TAR_FILES),), ("inner", ""))


def test_a_tar_brings_all_its_files_and_nothing_else(tmp_path: Path) -> None:
    answer = tar_gz({"x/readme": b"hello", "x/b.bin": b"bb", "../a.bin": b"aaaa"})
    arrays = read(TARRED, tmp_path, fetch=Server(one=answer))
    assert {name: bytes(array) for name, array in arrays.items()} == {
        "a.bin": b"aaaa",
        "b.bin": b"bb",
    }
    assert entries(tmp_path) == ["toy/inner/a.bin", "toy/inner/b.bin"]


def test_a_tar_fills_gaps_without_touching_what_is_there(tmp_path: Path) -> None:
    mine = tmp_path / "toy" / "a.bin"
    mine.parent.mkdir()
    mine.write_bytes(b"aaaa")
    server = Server(one=tar_gz({"x/a.bin": b"wrong", "x/b.bin": b"bb"}))
    read(TARRED, tmp_path, fetch=server)
    assert entries(tmp_path) == ["toy/a.bin", "toy/inner/b.bin"]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (tar_gz({"x/a.bin": b"aaaa"}), "b.bin is not in the archive"),
        (tar_gz({"x/a.bin": b"aaaa", "x/b.bin": b"bbb"}), "got more bytes"),
        (tar_gz({"x/a.bin": b"aaaa", "x/b.bin": b"bb"})[:-20], "ended before the end"),
    ],
    ids=["absent", "wrong", "truncated"],
)
def test_a_tar_is_kept_whole_or_not_at_all(tmp_path: Path, answer: bytes, reason: str) -> None:
    with pytest.raises(QIPFError, match=reason):
        read(TARRED, tmp_path, fetch=Server(one=answer))
    assert entries(tmp_path) == []


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "file"
    root.write_text("")
    with pytest.raises(QIPFInputError) as caught:
        read(TOY, root, fetch=refuse)
    assert str(caught.value) == (
        f"root must be a folder; {root} is a file. Name the folder it is in."
    )


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "toy").write_text("in the way")
    with pytest.raises(QIPFError) as caught:
        read(TOY, tmp_path, fetch=refuse)
    message = str(caught.value)
    assert message.startswith(f"Cannot download into {tmp_path}/toy/inner: ")
    assert message.endswith(
        ". Pass another root, or set QIPF_DATA to a folder that can be written to."
    )


def test_pooch_downloads_behind_our_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = pytest.importorskip("requests")
    body = gzip.compress(CONTENT)

    def get(url: str, **options: object) -> object:
        response = requests.Response()
        response.status_code = 200 if url == URLS[1] else 404
        response.url, response.reason = url, "Not Found"
        response.raw = io.BytesIO(body)
        response.headers["content-length"] = str(len(body))
        return response

    monkeypatch.setattr(requests, "get", get)
    arrays = read(TOY, tmp_path, fetch=fetch_http)  # the first address answers 404
    np.testing.assert_array_equal(arrays["grid"], np.arange(12).reshape(3, 4))


def test_without_pooch_the_way_out_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(QIPFError) as caught:
        read(TOY, tmp_path)
    assert str(caught.value) == (
        "Downloading needs pooch, which is not installed. Install qipf[bench], "
        "or put the files in place yourself and name their folder in QIPF_DATA."
    )
    assert entries(tmp_path) == []
