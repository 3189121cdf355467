import errno
import os
import stat
from pathlib import Path

import pytest

from qipf.errors import QIPFError, QIPFFileError, QIPFInputError
from qipf.io import atomic as durable
from qipf.io.atomic import checked_name, checked_output, drafted, locked_file, published, replaced


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    target = tmp_path / "a" / "file"
    with replaced(target) as file:
        file.write(b"old")
    with pytest.raises(RuntimeError), replaced(target) as file:
        file.write(b"half")
        raise RuntimeError
    assert target.read_bytes() == b"old"
    assert [p.name for p in target.parent.iterdir()] == ["file"]


def test_a_place_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(QIPFError) as refused, replaced(tmp_path / "taken" / "file"):
        pass
    assert str(refused.value).startswith(f"Cannot write {tmp_path}/taken/file: ")


def test_drafts_lie_hidden_beside_the_file_until_one_is_taken(tmp_path):
    target = tmp_path / "file"
    drafts = []
    for content in (b"one", b"two"):
        with drafted(target) as file:
            file.write(content)
        drafts.append(Path(file.name))
    assert not target.exists()
    assert len(set(drafts)) == 2
    assert all(draft.parent == tmp_path and draft.name.startswith(".file.") for draft in drafts)
    published(drafts[1], target)
    assert target.read_bytes() == b"two"
    assert not drafts[1].exists()
    assert drafts[0].read_bytes() == b"one"
    with pytest.raises(RuntimeError), drafted(target) as file:
        raise RuntimeError
    assert not Path(file.name).exists()
    (tmp_path / "taken").mkdir()
    with pytest.raises(QIPFError) as refused:
        published(drafts[0], tmp_path / "taken")
    assert str(refused.value) == f"Cannot write {tmp_path}/taken: Is a directory."
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "taken"]


def test_what_cannot_be_looked_at_or_replaced_is_told_before_any_work(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, message in [
        (tmp_path / "pipe", f"{tmp_path}/pipe is a pipe or a device; name a file."),
        (Path(os.devnull), f"{os.devnull} is a pipe or a device; name a file."),
        (tmp_path / ("x" * 300), f"Cannot write {tmp_path}/{'x' * 300}: File name too long."),
    ]:
        with pytest.raises(QIPFInputError) as refused:
            checked_output(path)
        assert str(refused.value) == message
    # an input that cannot be looked at is not what is wrong with the output
    assert checked_output(tmp_path / "new", inputs=[tmp_path / ("x" * 300)]) == tmp_path / "new"


def test_the_name_is_on_the_disk_too(tmp_path, monkeypatch):
    synced = []

    def noted(handle, fsync=os.fsync):
        synced.append((stat.S_ISDIR(os.fstat(handle).st_mode), (tmp_path / "file").exists()))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    with replaced(tmp_path / "file") as file:
        file.write(b"whole")
    assert synced == [(False, False), (True, True)]  # the content, then the folder it is named in


@pytest.mark.parametrize(("code", "fatal"), [(errno.EINVAL, False), (errno.EIO, True)])
def test_a_folder_that_cannot_be_synced_is_no_error_but_a_failing_disk_is(
    tmp_path, monkeypatch, code, fatal
):
    def failing(handle, fsync=os.fsync):
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(code, os.strerror(code))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", failing)
    with drafted(tmp_path / "file") as file:
        file.write(b"whole")
    if fatal:
        with pytest.raises(QIPFError) as refused:
            published(Path(file.name), tmp_path / "file")
        assert str(refused.value) == f"Cannot write {tmp_path}/file: Input/output error."
    else:
        published(Path(file.name), tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"whole"


def test_a_locked_file_is_for_one_run(tmp_path):
    state = tmp_path / "state"
    for _ in range(2):  # and free again afterwards
        with locked_file(state):
            with pytest.raises(QIPFError) as refused, locked_file(state):
                pass
            assert str(refused.value) == (
                f"{state} is in use by another run (process {os.getpid()}). Wait until it has "
                "ended, or choose another file."
            )
            with locked_file(tmp_path / "another"):
                pass
            assert [path.name for path in tmp_path.iterdir()] == [".state.lock"]
        assert list(tmp_path.iterdir()) == []
    with pytest.raises(QIPFError) as refused, locked_file(tmp_path / "no" / "state"):
        pass
    assert str(refused.value) == f"Cannot write {tmp_path}/no/state: No such file or directory."


def test_a_lock_that_was_just_taken_away_is_not_held(tmp_path, monkeypatch):
    """Between the opening and the locking of its file, who had it may end and remove it."""
    state, lock = tmp_path / "state", tmp_path / ".state.lock"
    removed = []

    def late(handle, take=durable._lock):
        if not removed:
            removed.append(lock.unlink())
        return take(handle)

    monkeypatch.setattr("qipf.io.atomic._lock", late)
    with locked_file(state):
        assert lock.exists()
        with pytest.raises(QIPFError, match="is in use by another run"), locked_file(state):
            pass


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b"])
def test_a_name_that_no_file_can_have_is_told(name):
    for check in (checked_name, checked_output):
        with pytest.raises(QIPFFileError) as refused:
            check(name)
        assert str(refused.value) == (
            f"No file can have the name {name!r}: leave out its odd characters."
        )
    assert checked_name("é") == Path("é")
