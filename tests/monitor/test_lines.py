"""Lines as they arrive: from growing files and pipes, too long, unfinished, truncated."""

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


@pytest.mark.parametrize("size", [4, 13, 1000])
@pytest.mark.parametrize("length", [10, 11, 21])
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


def test_a_position_before_an_unfinished_line_is_known_by_what_was_read(path, monkeypatch):
    """Not by what has replaced it since, however long the unfinished line is."""
    for name, value in (("CHUNK", 4), ("TAIL", 8), ("LONGEST_LINE", 10)):
        monkeypatch.setattr(module, name, value)
    path.write_bytes(b"abc\n123456789")
    with LineSource(path) as source:
        expected = source.tail(4)
        assert [lines.ends for lines in source.lines(whole=True)] == [[4]]
        path.write_bytes(b"xyz\n123456789")
        assert source.tail(4) == expected


def test_a_growing_file_is_followed_until_a_stop(path, monkeypatch):
    monkeypatch.setattr(module, "PAUSE", 0.001)
    path.write_bytes(b"a\nb")
    found, wanted = [], threading.Event()

    def grow():
        for part in (b"b\n", b"c\nunfin", b"ished"):
            with open(path, "ab") as file:
                file.write(part)

    with LineSource(path, follow=True, stopping=wanted.is_set) as source:
        for lines in source.lines():
            found += lines.texts
            if found == [b"a"]:
                grow()
            if found == [b"a", b"bb", b"c"]:
                wanted.set()
    assert found == [b"a", b"bb", b"c"]  # what has no end is left for later


@pytest.mark.parametrize("content", [b"", b"c\n", b"c\nd\ne\nf\n"])
def test_a_rewritten_file_ends_its_lines(path, monkeypatch, content):
    """Also if it has grown past the position again before anybody looks."""
    monkeypatch.setattr(module, "PAUSE", 0.001)
    path.write_bytes(b"a\nb\nunfinished")
    with LineSource(path, follow=True) as source:
        found = []
        for lines in source.lines():
            found += lines.texts
            path.write_bytes(content)
        assert (found, source.replaced) == ([b"a", b"b"], "rewritten")
        source._follow = False
        assert texts(source) == content.split()
        assert source.replaced == ""


def test_a_file_rewritten_during_one_reading_is_rejected(path, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 4)
    path.write_bytes(b"a\nb\nc\nd\n")
    with (
        LineSource(path) as source,
        pytest.raises(QIPFInputError, match="was truncated or rewritten while it was read"),
    ):
        for _ in source.lines():
            path.write_bytes(b"e\nf\ng\nh\n")


def test_the_tail_is_of_what_was_read(path):
    path.write_bytes(b"a\nb\n")
    with LineSource(path) as source:
        before = source.tail(4)
        assert texts(source) == [b"a", b"b"]
        path.write_bytes(b"c\nd\ne\n")
        assert source.tail(4) == before
    with LineSource(path) as source:
        assert source.tail(4) != before


def test_a_moved_file_is_read_to_its_end_until_the_new_one_has_lines(path, monkeypatch):
    old, found, looks = path.with_suffix(".1"), [], []
    path.write_bytes(b"a\n")

    def look(source):
        """Between two reads: its writer writes to the old file, then opens the new one."""
        looks.append(plain(source))
        if len(looks) == 1:
            path.rename(old)
        if len(looks) == 2:
            path.write_bytes(b"")
        if len(looks) == 3:
            with open(old, "ab") as file:
                file.write(b"late\nlast")
            path.write_bytes(b"new\n")
        return looks[-1]

    plain = module.LineSource._has_successor
    monkeypatch.setattr(module.LineSource, "_has_successor", look)
    monkeypatch.setattr(module, "PAUSE", 0)
    with LineSource(path, follow=True) as source:
        for lines in source.lines(whole=True):
            found += lines.texts
        assert (found, source.replaced) == ([b"a", b"late", b"last"], "moved")
        source._follow = False
        assert texts(source) == [b"new"]
    assert looks == [False, False, False, True, True]


def test_a_copy_in_the_place_of_a_file_is_read_on(path, monkeypatch):
    monkeypatch.setattr(module, "PAUSE", 0)
    path.write_bytes(b"a\nb\n")
    found, wanted = [], threading.Event()
    with LineSource(path, follow=True, stopping=wanted.is_set) as source:
        for lines in source.lines():
            found += lines.texts
            if found == [b"a", b"b"]:
                path.with_suffix(".new").write_bytes(b"a\nb\nc\n")
                path.with_suffix(".new").replace(path)
            else:
                wanted.set()
    assert found == [b"a", b"b", b"c"]


def test_standard_input_is_read_to_its_end(stdin):
    os.write(stdin, b"a\nb\nc")
    os.close(stdin)
    with LineSource(None) as source:
        assert source.name == "standard input"
        assert texts(source) == [b"a", b"b", b"c"]


def test_a_closed_standard_input_is_rejected(stdin, monkeypatch):
    os.close(stdin)
    kept = os.dup(0)
    os.close(0)
    try:
        with pytest.raises(QIPFInputError, match="Standard input is closed"):
            LineSource(None)
    finally:
        os.dup2(kept, 0)
        os.close(kept)
    monkeypatch.setattr("sys.stdin", None)  # closed at the start; 0 may be another file's number
    with pytest.raises(QIPFInputError, match="Standard input is closed"):
        LineSource(None)


def test_an_unreadable_input_is_rejected(tmp_path):
    kept = os.dup(0)
    folder = os.open(tmp_path, os.O_RDONLY)
    os.dup2(folder, 0)
    try:
        with LineSource(None) as source, pytest.raises(QIPFInputError, match="Is a directory"):
            texts(source)
    finally:
        os.dup2(kept, 0)
        os.close(kept)
        os.close(folder)


def test_it_stops_while_nothing_arrives(stdin, monkeypatch):
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


def test_inputs_that_are_not_text_files_are_rejected(tmp_path):
    fifo, packed, other, array = (tmp_path / name for name in ("fifo", "a.csv", "b.csv", "a.npy"))
    os.mkfifo(fifo)
    packed.write_bytes(gzip.compress(b"1,2", mtime=0))
    other.write_bytes(lzma.compress(b"1,2"))
    array.write_bytes(b"\x93NUMPY\x01")
    reading, writing = os.pipe()
    before = len(os.listdir("/dev/fd"))
    for path, message in [
        (tmp_path / "no.csv", "No such file or directory"),
        (fifo, "is a pipe or a device"),
        (Path(f"/dev/fd/{reading}"), "is a pipe or a device"),  # as <(command) gives it
        (Path(os.devnull), "is a pipe or a device"),
        (tmp_path, "is a folder"),
        (packed, "compressed .gzip.* zcat FILE | qipf monitor"),
        (other, "compressed .xz.* xzcat FILE"),
        (array, "an .npy file.* qipf score"),
    ]:
        with pytest.raises(QIPFInputError, match=message):
            LineSource(path)
    assert len(os.listdir("/dev/fd")) == before
    for descriptor in (reading, writing):
        os.close(descriptor)


def test_a_megabyte_is_read_and_held_at_once_and_four_kilobytes_recognise_a_file():
    assert (module.CHUNK, module.LONGEST_LINE, module.TAIL) == (2**20, 2**20, 4096)
