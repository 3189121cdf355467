"""Sound files of logits of every kind, and random damage to them, the same for the same seed."""

import io
import zipfile

import numpy as np
import pyarrow
import pyarrow.parquet

LOGITS = np.random.default_rng(0).normal(size=(40, 3)).round(2)
LABELS = np.arange(40) % 3
NOTES = [f"note {k}" for k in range(40)]

#: Texts and numbers in headers, and what is written over them.
ODD_HEADERS = {
    b"(40, 3)": (
        b"(-4, 3)",
        b"(True,)",
        b"(9**9,)",
        b"(4.0,3)",
        b"(40,-3)",
        b"(10**9,",
        b"('a',3)",
    ),
    b"False": (b"True ", b"None ", b"'yes'", b"Fals("),
    b"'<f8'": (b"'<f4'", b"'|O8'", b"'<q8'", b"'V99'", b"'<c9'", b"[[[[["),
    b"logit_1": (b"logit_0", b"note\0\0\0", b"\xff\xfe\xfd\xfc\xfb\xfa\xf9"),
    b"logits": (b"labels", b"note\xff\xfe", b"\xff" * 6),
}


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def zipped(members, method=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), data, method)
    return file.getvalue()


def parquet(compression="snappy", dictionary=True):
    columns = {"note": NOTES, **{f"logit_{k}": LOGITS[:, k] for k in range(3)}, "label": LABELS}
    file = io.BytesIO()
    pyarrow.parquet.write_table(
        pyarrow.table(columns), file, compression=compression, use_dictionary=dictionary
    )
    return file.getvalue()


def text():
    rows = zip(NOTES, *LOGITS.T.tolist(), LABELS, strict=True)
    lines = ["note,logit_0,logit_1,logit_2,label", *(",".join(map(str, row)) for row in rows)]
    return "\n".join(lines).encode()


def sound_files():
    """The bytes of sound files, by name."""
    members = {"logits": npy(LOGITS), "labels": npy(LABELS), "note": npy(np.array(NOTES))}
    return {
        "logits.npy": npy(LOGITS),
        "fortran.npy": npy(np.asfortranarray(LOGITS)),
        "stored.npz": zipped(members),
        "deflated.npz": zipped(members, zipfile.ZIP_DEFLATED),
        "bzip2.npz": zipped(members, zipfile.ZIP_BZIP2),
        "lzma.npz": zipped(members, zipfile.ZIP_LZMA),
        "snappy.parquet": parquet(),
        "plain.parquet": parquet("none", dictionary=False),
        "zstd.parquet": parquet("zstd"),
        "text.csv": text(),
    }


def damaged(data, random):
    """The bytes with one kind of damage."""
    changed, kind = bytearray(data), random.integers(6)
    place = int(random.integers(len(data)))
    if kind == 0:
        return data[:place]
    if kind == 1:
        for _ in range(random.integers(1, 8)):
            changed[random.integers(len(data))] ^= 1 << int(random.integers(8))
    elif kind == 2:
        changed[place : place + int(random.integers(20))] = random.bytes(int(random.integers(20)))
    elif kind == 3:
        changed[place : place + 8] = (1 << int(random.integers(64))).to_bytes(8, "little")
    elif kind == 4:
        begin, end = sorted(random.integers(len(data), size=2).tolist())
        return data[:place] + data[begin:end] + data[place:]
    else:  # all copies of a header's text, or one
        found = [old for old in ODD_HEADERS if old in data]
        if not found:
            return data[place:]
        old = found[random.integers(len(found))]
        new = ODD_HEADERS[old][random.integers(len(ODD_HEADERS[old]))]
        return data.replace(old, new, -1 if random.random() < 0.5 else 1)
    return bytes(changed)
