"""Every type of file gives the same rows; bad files give one clear error."""

import gzip
import re
import zipfile

import numpy as np
import pytest

from qipf.errors import QIPFError, QIPFFileError, QIPFInputError
from qipf.io.logits import open_table, read_table
from qipf.io.logits import table as limits

LOGITS = np.array([[1.5, -2.0, 0.25], [0.0, 3.0, 1e-3], [-1.0, 0.5, 7.0], [4.0, 4.5, 5.0]])
LABELS = np.array([0, 1, 2, 2])
NAMES = ["a", "b", "c, d", 'e "f"']


def csv_file(path, header="id,logit_0,logit_1,logit_2,label"):
    quoted = ["a", "b", '"c, d"', '"e ""f"""']
    lines = [
        ",".join([name, *map(repr, row), str(label)])
        for name, row, label in zip(quoted, LOGITS.tolist(), LABELS, strict=True)
    ]
    path.write_text("\n".join([header, *lines, ""]))


def npz_file(path):
    np.savez(path, logits=LOGITS, labels=LABELS, id=np.array(NAMES), other=np.zeros((7, 2)))


def parquet_file(path):
    import pyarrow.parquet

    columns = {"id": NAMES, "label": LABELS} | {f"logit_{k}": LOGITS[:, k] for k in range(3)}
    pyarrow.parquet.write_table(pyarrow.table(columns), path)


@pytest.mark.parametrize(
    ("header", "prefix", "suffix", "labelled"),
    [
        ("0,1,2", "", "", False),  # DataFrame(logits).to_csv(index=False)
        (",0,1,2", "7,", "", False),  # .to_csv()
        ("0,1,2,label", "", ",1", True),
        ("0,1,2,3", "", ",1", True),
        ("id,0,1,2", "a,", "", False),
    ],
)
def test_the_header_that_pandas_writes_is_no_row(tmp_path, header, prefix, suffix, labelled):
    path = tmp_path / "t.csv"
    rows = [prefix + ",".join(map(repr, row)) + suffix for row in LOGITS.tolist()]
    path.write_text("\n".join([header, *rows, ""]))
    table = open_table(path, labels="3" if header.endswith("3") else "auto")
    assert (table.rows, table.columns, table.labelled) == (4, ("0", "1", "2"), labelled)
    (block,) = table.blocks()
    np.testing.assert_array_equal(block.logits, LOGITS)
    if labelled:
        assert block.labels.tolist() == [1, 1, 1, 1]


def test_numbers_that_are_no_names_are_a_row(tmp_path):
    for first in ("0,1,3", "0.0,1,2", "1,2,3", "0"):
        (tmp_path / "t.csv").write_text(f"{first}\n{first}\n")
        assert open_table(tmp_path / "t.csv").rows == 2


def test_one_logit_has_two_classes(tmp_path):
    for name, labels in (("good", [0, 1, 1]), ("bad", [0, 1, 2])):
        np.savez(tmp_path / f"{name}.npz", logits=LOGITS[:3, :1], labels=labels)
    assert read_table(tmp_path / "good.npz").labels.tolist() == [0, 1, 1]
    with pytest.raises(QIPFInputError, match=r"the label is '2', but 1 logit has classes 0\.\.1"):
        read_table(tmp_path / "bad.npz")


def test_the_columns_that_pandas_names_in_parquet(tmp_path):
    import pyarrow.parquet

    columns = {str(k): LOGITS[:, k] for k in range(3)} | {"label": LABELS}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    block = read_table(tmp_path / "t.parquet")
    np.testing.assert_array_equal(block.logits, LOGITS)
    assert block.labels.tolist() == LABELS.tolist()


@pytest.fixture
def one_row_blocks(monkeypatch):
    monkeypatch.setattr(limits, "ROWS_PER_BLOCK", 1)


@pytest.mark.parametrize(
    ("name", "make"),
    [("t.csv", csv_file), ("t.npz", npz_file), ("t.parquet", parquet_file), ("T.CSV", csv_file)],
)
@pytest.mark.parametrize("size", [1, 3, 100])
def test_every_kind_gives_the_same_rows(tmp_path, monkeypatch, name, make, size):
    monkeypatch.setattr(limits, "ROWS_PER_BLOCK", size)
    path = tmp_path / name
    make(path)
    table = open_table(path)
    assert (table.rows, table.columns, table.labelled) == (
        4,
        ("logit_0", "logit_1", "logit_2"),
        True,
    )
    blocks = list(table.blocks())
    assert [len(block.logits) for block in blocks] == ([size] * (4 // size) + [4 % size])[
        : -(-4 // size)
    ]
    np.testing.assert_array_equal(np.concatenate([b.logits for b in blocks]), LOGITS)
    np.testing.assert_array_equal(np.concatenate([b.labels for b in blocks]), LABELS)
    assert [list(block.others) for block in blocks] == [["id"]] * len(blocks)
    assert [str(v) for block in blocks for v in np.asarray(block.others["id"])] == NAMES
    whole = read_table(path, labels=None)
    np.testing.assert_array_equal(whole.logits, LOGITS)
    assert whole.labels is None


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int32, np.uint8, ">f4"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("save", [np.save, np.savez, np.savez_compressed])
def test_numpy_arrays_of_every_number(tmp_path, one_row_blocks, dtype, order, save):
    values = np.asarray(np.arange(12).reshape(4, 3), dtype, order=order)
    path = tmp_path / ("t.npy" if save is np.save else "t.npz")
    save(path, values) if save is np.save else save(path, logits=values)
    rows = read_table(path)
    assert rows.labels is None
    small = values.dtype.kind == "f" and values.dtype.itemsize <= 4
    assert rows.logits.dtype == (np.float32 if small else np.float64)
    np.testing.assert_array_equal(rows.logits, values)


def test_labels_from_a_file_of_their_own(tmp_path, one_row_blocks):
    np.save(tmp_path / "x.npy", LOGITS)
    np.save(tmp_path / "y.npy", LABELS)
    csv_file(tmp_path / "x.csv")
    for name in ("x.npy", "x.csv"):
        table = open_table(tmp_path / name, labels=str(tmp_path / "y.npy"))
        assert table.labelled
        np.testing.assert_array_equal(
            np.concatenate([block.labels for block in table.blocks()]), LABELS
        )
    np.save(tmp_path / "z.npy", LABELS[:3])
    with pytest.raises(QIPFInputError, match="has 3 labels"):
        read_table(tmp_path / "x.npy", labels=str(tmp_path / "z.npy"))


def test_columns_by_name_and_by_pattern(tmp_path):
    (tmp_path / "t.csv").write_text("out_10,x,out_9,dog,cat\n1,2,3,4,5\n")
    read = lambda columns: read_table(tmp_path / "t.csv", columns).logits.tolist()  # noqa: E731
    assert read("out_*") == [[3, 1]]  # by their numbers
    assert read("*g,*t") == [[4, 5]]
    assert read("dog, x ,dog") == [[4, 2]]
    assert read("*") == [[1, 2, 3, 4, 5]]  # as they stand: not all are numbered


def test_text_without_a_header_is_logits_in_order(tmp_path):
    (tmp_path / "t.csv").write_text("1,2\n3,4")
    table = open_table(tmp_path / "t.csv")
    assert (table.rows, table.columns) == (2, ("logit_0", "logit_1"))
    assert read_table(tmp_path / "t.csv").logits.tolist() == [[1, 2], [3, 4]]


def test_marks_quotes_and_empty_lines(tmp_path, one_row_blocks):
    (tmp_path / "t.csv").write_bytes(
        b'\xef\xbb\xbflogit_0,logit_1,note\r\n1,2,"two\r\nlines"\r\n\r\n\r\n3,4,x\r\n'
    )
    blocks = list(open_table(tmp_path / "t.csv").blocks())
    assert [block.logits.tolist() for block in blocks] == [[[1, 2]], [[3, 4]]]
    assert [block.others for block in blocks] == [{"note": ["two\r\nlines"]}, {"note": ["x"]}]


# ---------------------------------------------------------------------- rejections


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("", "is empty"),
        ("logit_0,logit_1\n", "has a header, but no rows"),
        ("logit_0,logit_1\n\n\n", "has a header, but no rows"),
        ("logit_0,logit_1\n1,2\n3\n", "line 3 has 1 instead of 2 fields"),
        ("logit_0,logit_1\n1,2\n3,4,5\n", "line 3 has 3 instead of 2 fields"),
        (
            'note,logit_0,logit_1\n"a\nb",1,2\nc,1,cat\n',
            "line 4: the column 'logit_1' holds 'cat', not a number",
        ),
        ("logit_0,logit_1\n1,\n", "line 2: the column 'logit_1' is empty. Drop the row, or"),
        ("logit_0,logit_1\n1,2\n1,nan\n", "line 3: logit_1 is nan. Drop rows with NaN or inf"),
        ("logit_0,logit_1\n-inf,2\n", "line 2: logit_0 is -inf"),
        ("logit_0,logit_1,label\n1,2,0\n1,2,2\n", "line 3: the label is '2.0'"),
        ("logit_0,logit_1,label\n1,2,cat\n", "line 2: the column 'label' holds 'cat'"),
        ("a,b\n1,2\n", "has no column 'logit*'. It has: a, b."),
        ("logit_0;logit_1\n1;2\n", "separates its columns by semicolons"),
        ("logit_0,logit_0\n1,2\n", "more than one column 'logit_0'"),
        ("logit_0,café\n1,2\n".encode("latin-1"), "is not a text file in UTF-8"),
        (gzip.compress(b"logit_0,logit_1\n1,2\n", mtime=0), "is compressed (gzip), not text"),
    ],
)
def test_bad_text_is_rejected_by_line(tmp_path, text, phrase):
    path = tmp_path / "t.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(QIPFInputError, match=re.escape(phrase)) as error:
        read_table(path)
    assert str(error.value).startswith(str(path))


@pytest.mark.parametrize(
    ("arrays", "phrase"),
    [
        ({"x": LOGITS}, "has no array 'logits'. It has: x."),
        ({"logits": LOGITS[0]}, "logits must have shape (predictions, logits), got (3,)"),
        ({"logits": LOGITS[:0]}, "logits has no rows"),
        ({"logits": LOGITS[:, :0]}, "must have shape (predictions, logits), got (4, 0)"),
        ({"logits": np.array([["a"]])}, "logits must hold numbers, got <U1"),
        ({"logits": LOGITS > 0}, "logits must hold numbers, got bool"),
        ({"logits": LOGITS, "labels": LABELS[:2]}, "labels must have shape (4,)"),
        ({"logits": LOGITS, "labels": LABELS + 1}, "row 2 of logits: the label is '3'"),
        ({"logits": LOGITS, "labels": np.array(NAMES)}, "row 0 of logits: the label is 'a'"),
        ({"logits": np.where(LOGITS == 7, np.nan, LOGITS)}, "row 2 of logits: logit_2 is nan"),
        ({"logits": np.array([[object()]], dtype=object)}, "logits must hold numbers, got object"),
    ],
)
def test_bad_arrays_are_rejected(tmp_path, one_row_blocks, arrays, phrase):
    np.savez(tmp_path / "t.npz", **arrays)
    with pytest.raises(QIPFInputError, match=re.escape(phrase)):
        read_table(tmp_path / "t.npz")


def test_damaged_files_are_rejected(tmp_path):
    for name in ("t.npz", "t.npy", "t.parquet"):
        (tmp_path / name).write_bytes(b"not what it says")
        with pytest.raises(QIPFFileError, match=rf"{re.escape(name)} cannot be read; it may be"):
            read_table(tmp_path / name)
    np.save(tmp_path / "t.npy", LOGITS)
    cut = (tmp_path / "t.npy").read_bytes()[:-1]
    (tmp_path / "t.npy").write_bytes(cut)
    with zipfile.ZipFile(tmp_path / "t.npz", "w") as archive:
        archive.writestr("logits.npy", cut)
    for name in ("t.npy", "t.npz"):
        with pytest.raises(QIPFFileError, match="declares 96 bytes of numbers and has 95"):
            read_table(tmp_path / name)


@pytest.mark.parametrize(
    ("columns", "phrase"),
    [
        ({"logit_0": ["a"], "logit_1": [1.0]}, "the column 'logit_0' holds string, not numbers"),
        ({"logit_0": [1.0, None], "logit_1": [1, 2]}, "row 1: logit_0 is null"),
        ({"logit_0": np.empty(0)}, "has no rows"),
    ],
)
def test_bad_parquet_columns_are_rejected(tmp_path, columns, phrase):
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    with pytest.raises(QIPFInputError, match=phrase):
        read_table(tmp_path / "t.parquet")


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        (("no.csv",), "There is no file"),
        (("t.txt",), "or .parquet is expected"),
        ((".",), "Cannot read"),
        (("t.csv", "logits_0"), "has no column 'logits_0'. Did you mean 'logit_0'?"),
        (("t.csv", None, "klass"), "has no column 'klass' for the labels. It has: id, logit_0"),
        (("t.csv", "l*", "label"), "the column 'label' is selected both as a logit and as"),
        (("t.npy", "a"), "is one array without names"),
        (("t.npz", None, "klass"), "has no array 'klass' for the labels. It has: logits."),
        (("t.csv.gz",), "Unpack it first."),
        (("x" * 300 + ".csv",), "File name too long"),
        (("folder.csv",), "is a folder"),
    ],
)
def test_wrong_names_are_rejected(tmp_path, arguments, phrase):
    csv_file(tmp_path / "t.csv")
    np.save(tmp_path / "t.npy", LOGITS)
    np.savez(tmp_path / "t.npz", logits=LOGITS)
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(QIPFError, match=re.escape(phrase)):
        read_table(tmp_path / arguments[0], *arguments[1:])
