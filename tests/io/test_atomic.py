"""Atomic writes, locks and checks of output paths."""

import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import qipf
from qipf.errors import QIPFError, QIPFFileError, QIPFInputError, QIPFTypeError
from qipf.io.atomic import (
    atomic_write,
    checked_name,
    checked_output,
    draft_file,
    locked_file,
    locked_folder,
    publish,
    remove_drafts,
)


def test_a_failed_write_keeps_the_old_file(tmp_path):
    target = tmp_path / "a" / "file"
    with atomic_write(target) as file:
        file.write(b"old")
    with pytest.raises(RuntimeError), atomic_write(target) as file:
        file.write(b"half")
        raise RuntimeError
    assert target.read_bytes() == b"old"
    assert [p.name for p in target.parent.iterdir()] == ["file"]
    with pytest.raises(QIPFError, match="Cannot write"), atomic_write(target / "below"):
        pass


def test_drafts_are_hidden_until_one_is_published(tmp_path):
    target = tmp_path / "file"
    drafts = []
    for content in (b"one", b"two"):
        with draft_file(target) as file:
            file.write(content)
        drafts.append(Path(file.name))
    assert not target.exists()
    assert len(set(drafts)) == 2
    assert all(draft.parent == tmp_path and draft.name.startswith(".file.") for draft in drafts)
    publish(drafts[1], target)
    assert target.read_bytes() == b"two"
    assert drafts[0].read_bytes() == b"one"
    with pytest.raises(RuntimeError), draft_file(target) as file:
        raise RuntimeError
    assert not Path(file.name).exists()
    (tmp_path / "taken").mkdir()
    with pytest.raises(QIPFError, match=r"Cannot write .*taken"):
        publish(drafts[0], tmp_path / "taken")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "taken"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666])
def test_a_replaced_file_passes_its_permissions_on_from_the_start(tmp_path, mode):
    target = tmp_path / "file"
    target.touch()
    target.chmod(mode)
    with atomic_write(target) as file:
        assert stat.S_IMODE(os.stat(file.name).st_mode) == mode
        file.write(b"new")
    assert stat.S_IMODE(target.stat().st_mode) == mode
    with atomic_write(tmp_path / "fresh"):
        pass
    (tmp_path / "plain").touch()  # what the umask leaves
    assert (tmp_path / "fresh").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_links_are_written_through(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    real, link = tmp_path / "a" / "file", tmp_path / "b" / "link"
    link.symlink_to(real)  # to nothing yet
    for content in (b"one", b"two"):
        with atomic_write(link) as file:
            file.write(content)
            assert Path(file.name).parent == real.parent  # one file system
        assert link.is_symlink()
        assert real.read_bytes() == content
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["file"]


def test_a_full_disk_says_what_is_intact(tmp_path):
    with pytest.raises(QIPFError) as refused, atomic_write(tmp_path / "file"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert str(refused.value) == (
        f"Cannot write {tmp_path}/file: No space left on device. Files that were complete before "
        "are intact: free some space, and run the same command again."
    )
    assert list(tmp_path.iterdir()) == []


def test_unsuitable_output_paths_are_rejected(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, phrase in [
        (tmp_path / "pipe", "is a pipe or a device"),
        (Path(os.devnull), "is a pipe or a device"),
        (tmp_path / ("x" * 300), "File name too long"),
        (tmp_path, "is a folder"),
        (tmp_path / "no" / "file", "There is no folder"),
    ]:
        with pytest.raises(QIPFInputError, match=phrase):
            checked_output(path)
    (tmp_path / "input").touch()
    with pytest.raises(QIPFInputError, match="is an input"):
        checked_output(tmp_path / "input", inputs=[tmp_path / "input"])
    # an input that cannot be examined is reported when it is read
    assert checked_output(tmp_path / "new", inputs=[tmp_path / ("x" * 300)]) == tmp_path / "new"


def test_content_is_synced_before_the_folder(tmp_path, monkeypatch):
    synced = []

    def recorded(handle, fsync=os.fsync):
        synced.append((stat.S_ISDIR(os.fstat(handle).st_mode), (tmp_path / "file").exists()))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", recorded)
    with atomic_write(tmp_path / "file") as file:
        file.write(b"whole")
    assert synced == [(False, False), (True, True)]


@pytest.mark.parametrize(("code", "fatal"), [(errno.EINVAL, False), (errno.EIO, True)])
def test_only_disk_errors_of_a_folder_sync_are_raised(tmp_path, monkeypatch, code, fatal):
    def failing(handle, fsync=os.fsync):
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(code, os.strerror(code))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", failing)
    with draft_file(tmp_path / "file") as file:
        file.write(b"whole")
    if fatal:
        with pytest.raises(QIPFError, match="Input/output error"):
            publish(Path(file.name), tmp_path / "file")
    else:
        publish(Path(file.name), tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"whole"


@pytest.mark.parametrize("locked", [locked_file, locked_folder])
def test_a_lock_has_one_holder(tmp_path, locked):
    for _ in range(2):  # the second time after a release
        with locked(tmp_path / "a"):
            with (
                pytest.raises(QIPFError, match="a is in use by another run"),
                locked(tmp_path / "a"),
            ):
                pass
            with locked(tmp_path / "another"):
                pass
    (tmp_path / "file").touch()
    with pytest.raises(QIPFError, match="Cannot write"), locked_folder(tmp_path / "file"):
        pass


@pytest.mark.slow
def test_a_killed_process_releases_its_lock(tmp_path):
    program = (
        "import sys; from pathlib import Path; from qipf.io.atomic import locked_file\n"
        "with locked_file(Path(sys.argv[1])): print('locked', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "state")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(QIPFError, match="in use"), locked_file(tmp_path / "state"):
            pass
        other.send_signal(signal.SIGKILL)
        other.wait()
    with locked_file(tmp_path / "state"):
        pass


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b"])
def test_names_that_no_file_can_have_are_rejected(name):
    for check in (checked_name, checked_output):
        with pytest.raises(QIPFFileError, match="No file can have the name"):
            check(name)
    assert checked_name("é") == Path("é")


def test_drafts_that_killed_processes_left_are_removed(tmp_path):
    target, other = tmp_path / "kept.state", tmp_path / "other.state"
    target.write_bytes(b"kept")
    left = [tmp_path / f".kept.state.{name}.tmp" for name in ("12-0a1b2c3d", "7")]
    own = [tmp_path / ".other.state.12-0a1b2c3d.tmp", tmp_path / ".kept.state.lock"]
    for file in (*left, *own):
        file.touch()
    remove_drafts([target])
    assert sorted(tmp_path.iterdir()) == sorted([target, *own])
    (tmp_path / "link").symlink_to(other)
    remove_drafts([tmp_path / "link", tmp_path / "none" / "x"])
    assert own[0] not in tmp_path.iterdir()


@pytest.mark.parametrize("path", [None, 3, ["a"], b"a"])
def test_a_path_of_another_type_is_rejected_wherever_one_is_taken(path):
    field = qipf.QIPF(bandwidth=1.0).fit([[0.0, 1.0], [1.0, 0.0]]).calibrate([[0.5, 0.5]])
    monitor = qipf.ShiftMonitor(field)
    for take in (
        checked_output,
        field.save,
        lambda path: qipf.save(field, path),
        qipf.load,
        monitor.save,
        lambda path: qipf.ShiftMonitor.load(path, field),
        lambda path: qipf.report(field, ([[0.5, 0.5]],), path),
    ):
        with pytest.raises(QIPFTypeError, match="must be a string or a pathlib.Path, got "):
            take(path)
