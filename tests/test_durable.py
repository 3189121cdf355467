import pytest

from qipf.durable import replaced
from qipf.errors import QIPFError


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
