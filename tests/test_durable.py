import os
from pathlib import Path

import pytest

from qipf.durable import checked_output, drafted, published, replaced
from qipf.errors import QIPFError, QIPFInputError


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
