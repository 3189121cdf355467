"""Lines as they come: from files that grow, from pipes, overlong, unfinished, cut."""

import fcntl
import gzip
import lzma
import os
import threading
from pathlib import Path

import pytest

from qipf import QIPFInputError
from qipf.monitor import lines as module
from qipf.monitor.lines import TOO_LONG, LineSource


def texts(source, start=0):
    return [text for lines in source.lines(start) for text in lines.texts]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "stream.csv"


@pytest.fixture
def stdin():
    """What is written to the pipe that is given comes from standard input."""
    kept, (reading, writing) = os.dup(0), os.pipe()
    os.dup2(reading, 0)
    yield writing
    os.dup2(kept, 0)
    for descriptor in (kept, reading):
        os.close(descriptor)


def test_every_line_has_the_place_it_ends_at(path):
    path.write_bytes(b"a\r\n\nccc\nlast")
    with LineSource(path) as source:
        found = list(source.lines())
    assert [(lines.texts, lines.ends) for lines in found] == [
        ([b"a\r", b"", b"ccc"], [3, 4, 8]),
        ([b"last"], [12]),
    ]
    with LineSource(path) as source:
        assert texts(source, start=4) == [b"ccc", b"last"]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_lines_do_not_depend_on_how_much_is_read_at_once(path, monkeypatch, size):
    path.write_bytes(b"one\ntwo\n\nthree\n")
    monkeypatch.setattr(module, "CHUNK", size)
    with LineSource(path) as source:
        assert texts(source) == [b"one", b"two", b"", b"three"]
    with LineSource(path) as source:
        ends = [end for lines in source.lines() for end in lines.ends]
    assert ends == [4, 8, 9, 15]


@pytest.mark.parametrize("size", [4, 7, 13, 16, 64, 1000])
@pytest.mark.parametrize("length", [10, 11, 19, 20, 21])
def test_how_long_a_line_may_be_does_not_depend_on_reads(path, monkeypatch, size, length):
    monkeypatch.setattr(module, "CHUNK", size)
    monkeypatch.setattr(module, "LONGEST_LINE", 10)
    path.write_bytes(b"a\n" + b"x" * length + b"\n" + b"y" * length)
    with LineSource(path) as source:
        long = [text is TOO_LONG for text in texts(source)]
    assert long == [False, length > 10, length > 10]


@pytest.mark.parametrize("size", [4, 16, 64, 1000])
def test_a_line_too_long_is_not_held(path, monkeypatch, size):
    monkeypatch.setattr(module, "CHUNK", size)
    monkeypatch.setattr(module, "LONGEST_LINE", 10)
    path.write_bytes(b"a\n" + b"x" * 200 + b"\nb\n" + b"y" * 200)
    with LineSource(path) as source:
        found = list(source.lines())
    assert [end for lines in found for end in lines.ends] == [2, 203, 205, 405]
    kinds = [text for lines in found for text in lines.texts]
    assert kinds == [b"a", TOO_LONG, b"b", TOO_LONG]


def test_a_last_line_without_its_end_can_be_left(path):
    path.write_bytes(b"a\nb")
    with LineSource(path) as source:
        assert [lines.texts for lines in source.lines(whole=True)] == [[b"a"]]
        assert source.unfinished
        assert texts(source) == [b"a", b"b"]
        assert not source.unfinished
    path.write_bytes(b"a\nb\n")
    with LineSource(path) as source:
        assert [lines.texts for lines in source.lines(whole=True)] == [[b"a", b"b"]]
        assert not source.unfinished


def test_a_growing_file_is_followed_until_a_stop(path, monkeypatch):
    monkeypatch.setattr(module, "PAUSE", 0.001)
    path.write_bytes(b"a\nb")
    heard, wanted = [], threading.Event()

    def grow():
        for part in (b"b\n", b"c\nunfin", b"ished"):
            with open(path, "ab") as file:
                file.write(part)

    with LineSource(path, follow=True, stopping=wanted.is_set) as source:
        for lines in source.lines():
            heard += lines.texts
            if heard == [b"a"]:
                grow()
            if heard == [b"a", b"bb", b"c"]:
                wanted.set()
    assert heard == [b"a", b"bb", b"c"]  # what has no end is left for later


def test_a_file_that_became_shorter_is_told(path, monkeypatch):
    monkeypatch.setattr(module, "PAUSE", 0.001)
    path.write_bytes(b"a\nb\n")
    with (
        LineSource(path, follow=True) as source,
        pytest.raises(QIPFInputError) as caught,
    ):
        for _ in source.lines():
            path.write_bytes(b"a\n")
    assert str(caught.value) == (
        f"{path} became shorter than what was read of it: it was cut or written anew. Read the new "
        "one with --new-input."
    )


@pytest.mark.parametrize("replaced", [True, False])
def test_a_file_that_lost_its_name_is_read_out_then_told(path, monkeypatch, replaced):
    monkeypatch.setattr(module, "PAUSE", 0.001)
    path.write_bytes(b"a\n")
    heard, looks = [], module.LineSource._moved

    def looked(source):
        found = looks(source)
        if found and heard == [b"a"]:  # its writer has not noticed yet
            with open(path.with_suffix(".1"), "ab") as file:
                file.write(b"late\n")
        return found

    monkeypatch.setattr(module.LineSource, "_moved", looked)
    with (
        LineSource(path, follow=True) as source,
        pytest.raises(QIPFInputError) as caught,
    ):
        for lines in source.lines():
            heard += lines.texts
            if heard == [b"a"]:
                path.rename(path.with_suffix(".1"))
                if replaced:
                    path.write_bytes(b"new\n")
    assert heard == [b"a", b"late"]
    assert str(caught.value) == (
        f"{path} is no longer the file that was read: that one was moved away or removed. Read the "
        "new one with --new-input."
    )


def test_standard_input_is_read_to_its_end(stdin):
    os.write(stdin, b"a\nb\nc")
    os.close(stdin)
    with LineSource(None) as source:
        assert source.name == "standard input"
        assert texts(source) == [b"a", b"b", b"c"]


@pytest.mark.skipif(not hasattr(fcntl, "F_GETPIPE_SZ"), reason="only Linux tells a pipe's size")
def test_a_pipe_is_made_to_hold_a_piece(stdin):
    with LineSource(None):
        assert fcntl.fcntl(0, fcntl.F_GETPIPE_SZ) >= module.CHUNK
    os.close(stdin)


def test_a_closed_standard_input_is_told(stdin, monkeypatch):
    os.close(stdin)
    message = (
        "Standard input is closed. Name a file, or pipe lines into it: COMMAND | qipf monitor "
        "field.qipf."
    )
    kept = os.dup(0)
    os.close(0)
    try:
        with pytest.raises(QIPFInputError) as caught:
            LineSource(None)
    finally:
        os.dup2(kept, 0)
        os.close(kept)
    assert str(caught.value) == message
    monkeypatch.setattr("sys.stdin", None)  # closed at the start; 0 may be another file's number
    with pytest.raises(QIPFInputError) as caught:
        LineSource(None)
    assert str(caught.value) == message


def test_what_cannot_be_read_is_told(tmp_path):
    kept = os.dup(0)
    folder = os.open(tmp_path, os.O_RDONLY)
    os.dup2(folder, 0)
    try:
        with LineSource(None) as source, pytest.raises(QIPFInputError) as caught:
            texts(source)
    finally:
        os.dup2(kept, 0)
        os.close(kept)
        os.close(folder)
    assert str(caught.value) == "Cannot read standard input: Is a directory."


def test_a_stop_is_heard_while_nothing_comes(stdin, monkeypatch):
    monkeypatch.setattr(module, "PAUSE", 0.001)
    asked = iter([False, False, False])
    with LineSource(None, stopping=lambda: next(asked, True)) as source:
        assert texts(source) == []
    os.close(stdin)


def test_the_tail_tells_files_apart(path):
    path.write_bytes(b"x" * 5000 + b"a\nb\n")
    with LineSource(path) as source:
        before = source.tail(5002)
        assert before != source.tail(5001)
    path.write_bytes(b"x" * 5000 + b"a\nc\n")
    with LineSource(path) as source:
        assert source.tail(5002) == before
    path.write_bytes(b"x" * 4999 + b"ya\nc\n")
    with LineSource(path) as source:
        assert source.tail(5002) != before
        assert source.tail(5005) == ""  # it does not reach there


def test_a_file_that_is_not_there_is_told(path):
    with pytest.raises(QIPFInputError) as caught:
        LineSource(path)
    assert str(caught.value) == f"Cannot read {path}: No such file or directory."


def test_what_is_no_file_is_told(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reading, writing = os.pipe()
    substituted = Path(f"/dev/fd/{reading}")  # as <(command) gives it
    before = len(os.listdir("/dev/fd"))
    for each in (fifo, substituted, Path(os.devnull)):
        with pytest.raises(QIPFInputError) as caught:
            LineSource(each)
        assert str(caught.value) == (
            f"{each} is a pipe or a device, not a file whose place can be kept. Feed it to "
            "standard input: qipf monitor field.qipf < PIPE, or COMMAND | qipf monitor field.qipf."
        )
    with pytest.raises(QIPFInputError) as caught:
        LineSource(tmp_path)
    assert str(caught.value) == f"{tmp_path} is a folder. Name a file in it."
    packed, other, array = tmp_path / "a.csv", tmp_path / "b.csv", tmp_path / "a.npy"
    packed.write_bytes(gzip.compress(b"1,2"))
    other.write_bytes(lzma.compress(b"1,2"))
    array.write_bytes(b"\x93NUMPY\x01")
    for each, message in [
        (
            packed,
            "compressed (gzip), not lines of text. Unpack it into standard input: zcat FILE | qipf "
            "monitor field.qipf.",
        ),
        (
            other,
            "compressed (xz), not lines of text. Unpack it into standard input: xzcat FILE | qipf "
            "monitor field.qipf.",
        ),
        (array, "an .npy file, not lines of text. Judge it with qipf score."),
    ]:
        with pytest.raises(QIPFInputError) as caught:
            LineSource(each)
        assert str(caught.value) == f"{each} is {message}"
    assert len(os.listdir("/dev/fd")) == before
    for descriptor in (reading, writing):
        os.close(descriptor)
