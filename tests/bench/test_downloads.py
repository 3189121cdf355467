import gzip
import hashlib
import io
import sys
import tarfile

import numpy as np
import pytest
import requests

from qipf.bench.downloads import Archive, DataFile, Publication, read
from qipf.errors import QIPFError, QIPFInputError

HEADER = b"\x00\x01"
CONTENT = HEADER + bytes(range(12))
PACKED = gzip.compress(CONTENT, mtime=0)
GRID = np.arange(12, dtype=np.uint8).reshape(3, 4)


def sha256(content):
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


FILE = DataFile("grid", (3, 4), HEADER, sha256(CONTENT))
URLS = ("https://one.test/grid.gz", "https://two.test/grid.gz")
TOY = Publication("toy", (Archive(URLS, sha256(PACKED), (FILE,)),), "inner")


@pytest.fixture(autouse=True)
def server(monkeypatch):
    """Stands in for the network: bytes, a status code or an error for each host; none at first."""
    answers, asked = {}, []

    def get(url, **_):
        host = url.split("/")[2].removesuffix(".test")
        asked.append(host)
        answer = answers.get(host, requests.ConnectionError("no network"))
        if isinstance(answer, BaseException):
            raise answer
        response = requests.Response()
        response.url, response.reason = url, "Not Found"
        response.status_code = answer if isinstance(answer, int) else 200
        response.raw = io.BytesIO(b"" if isinstance(answer, int) else answer)
        return response

    monkeypatch.setattr(requests, "get", get)
    get.answers, get.asked = answers, asked
    return get


def entries(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def put(root, name, content):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("folder", ["toy/inner", "toy"])
@pytest.mark.parametrize("packed", [False, True])
def test_files_on_disk_are_used_in_every_layout(tmp_path, server, folder, packed):
    put(tmp_path, f"{folder}/grid{'.gz' * packed}", PACKED if packed else CONTENT)
    np.testing.assert_array_equal(read(TOY, tmp_path)["grid"], GRID)
    assert server.asked == []


def test_names_restrict_what_is_read_and_downloaded(tmp_path, server):
    other = Archive(("https://three.test/other.gz",), "md5:0", (DataFile("other", (2,)),))
    server.answers["one"] = PACKED
    both = Publication("toy", (*TOY.archives, other))
    assert list(read(both, tmp_path, ["grid"])) == ["grid"]
    assert server.asked == ["one"]


def test_missing_files_are_named_with_their_folder(tmp_path, server):
    with pytest.raises(QIPFInputError, match=r"toy lacks grid \(or grid.gz, 14 bytes") as caught:
        read(TOY, tmp_path, download=False)
    assert f"in {tmp_path}/toy." in str(caught.value)
    assert server.asked == entries(tmp_path) == []


WRONG_HASH = HEADER + bytes(12)
BAD_CONTENT = {
    "empty": (b"", "0 bytes"),
    "short": (CONTENT[:-1], "13 bytes"),
    "long": (CONTENT + b"\x00" * 9, "more bytes"),
    "wrong hash": (WRONG_HASH, hashlib.sha256(WRONG_HASH).hexdigest()),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("case", BAD_CONTENT)
def test_a_wrong_file_is_named_and_not_changed(tmp_path, case, packed):
    content, found = BAD_CONTENT[case]
    stored = gzip.compress(content, mtime=0) if packed else content
    path = put(tmp_path, f"toy/grid{'.gz' * packed}", stored)
    with pytest.raises(QIPFInputError, match="is not the published toy file") as caught:
        read(TOY, tmp_path)
    assert str(path) in str(caught.value)
    assert found in str(caught.value)
    assert path.read_bytes() == stored


@pytest.mark.parametrize("stored", [*(PACKED[:cut] for cut in range(len(PACKED))), b"<html>"])
def test_a_truncated_or_broken_gzip_is_an_error(tmp_path, stored):
    put(tmp_path, "toy/grid.gz", stored)
    with pytest.raises(QIPFInputError, match="is not the published toy file"):
        read(TOY, tmp_path)


def test_without_a_hash_length_header_and_range_are_verified():
    file = DataFile("labels", (3,), HEADER, limit=10)
    assert file.flaw(HEADER + bytes([0, 9, 3])) is None
    assert file.flaw(HEADER + bytes([0, 10, 3])) == "a value of 10, not below 10"
    assert file.flaw(HEADER) == "2 bytes"
    assert file.flaw(b"\x00\x00" + bytes(3)) == "the leading bytes 0000, not 0001"


def test_md5_is_accepted_as_a_hash():
    file = DataFile("grid", (3, 4), HEADER, f"md5:{hashlib.md5(CONTENT).hexdigest()}")
    assert file.flaw(CONTENT) is None
    assert file.flaw(WRONG_HASH) == f"md5 {hashlib.md5(WRONG_HASH).hexdigest()}"


def test_a_download_is_kept_and_read_again(tmp_path, server):
    server.answers["one"] = PACKED
    for _ in range(2):
        np.testing.assert_array_equal(read(TOY, tmp_path)["grid"], GRID)
    assert server.asked == ["one"]
    assert entries(tmp_path) == ["toy/grid.gz"]


BAD_ANSWERS = {
    "status": 404,
    "offline": requests.ConnectionError("no network"),
    "truncated": PACKED[:-10],
    "wrong hash": gzip.compress(WRONG_HASH, mtime=0),
}


@pytest.mark.parametrize("case", BAD_ANSWERS)
def test_after_a_bad_answer_the_next_address_is_used(tmp_path, server, case):
    server.answers.update(one=BAD_ANSWERS[case], two=PACKED)
    np.testing.assert_array_equal(read(TOY, tmp_path)["grid"], GRID)
    assert server.asked == ["one", "two"]
    assert entries(tmp_path) == ["toy/grid.gz"]


@pytest.mark.parametrize("case", BAD_ANSWERS)
def test_nothing_is_kept_of_failed_downloads(tmp_path, server, case):
    server.answers.update(one=BAD_ANSWERS[case], two=BAD_ANSWERS[case])
    with pytest.raises(QIPFError, match="Cannot download grid.gz") as caught:
        read(TOY, tmp_path)
    assert all(url in str(caught.value) for url in URLS)
    assert entries(tmp_path) == []


def test_an_interrupted_download_leaves_nothing(tmp_path, server):
    server.answers["one"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        read(TOY, tmp_path)
    assert entries(tmp_path) == []


def tarred(members):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def test_a_tar_is_unpacked_into_its_folder(tmp_path, server):
    packed = tarred({"inner/a.bin": b"aaaa", "inner/b.bin": b"bb"})
    files = (DataFile("a.bin", (4,)), DataFile("b.bin", (2,), digest=sha256(b"bb")))
    archive = Archive(("https://one.test/toy.tar.gz",), sha256(packed), files)
    server.answers["one"] = packed
    arrays = read(Publication("toy", (archive,), "inner"), tmp_path)
    assert {name: bytes(array) for name, array in arrays.items()} == {
        "a.bin": b"aaaa",
        "b.bin": b"bb",
    }
    assert entries(tmp_path) == ["toy/inner/a.bin", "toy/inner/b.bin", "toy/toy.tar.gz"]


def test_a_root_that_is_a_file_is_an_error(tmp_path):
    with pytest.raises(QIPFInputError, match="root must be a folder"):
        read(TOY, put(tmp_path, "file", b""))


def test_a_folder_that_cannot_be_made_is_named(tmp_path, server):
    put(tmp_path, "toy", b"in the way")
    server.answers["one"] = PACKED
    with pytest.raises(QIPFError, match=f"Cannot download grid.gz into {tmp_path}/toy"):
        read(TOY, tmp_path)


def test_without_pooch_the_error_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(QIPFError, match=r"pip install 'qipf\[bench\]'"):
        read(TOY, tmp_path)
    assert entries(tmp_path) == []
