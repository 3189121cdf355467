"""Folders of Parquet shards with columns of many types, and what is in them."""

from datetime import datetime, timezone

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from qipf import QIPF
from qipf.scoring import score_shards
from tests.conftest import make_logits

LOGITS = [f"logit_{k}" for k in range(10)]


def rich_table(rows, seed=0, dimension=10):
    """Logits among text, numbers, times, lists, structs, dictionaries and what is missing."""
    logits = make_logits(rows, seed=seed, dimension=dimension).numpy()
    columns = {
        "id": pa.array([f"{seed}-{k}" if k % 7 else None for k in range(rows)]),
        **{f"logit_{k}": logits[:, k] for k in range(dimension // 2)},
        "count": pa.array([k if k % 5 else None for k in range(rows)], pa.int16()),
        "kind": pa.array([["cat", "dog", None][k % 3] for k in range(rows)]).dictionary_encode(),
        "when": pa.array(
            [datetime(2024, 1, 1 + k % 28, tzinfo=timezone.utc) for k in range(rows)],
            pa.timestamp("ms", tz="UTC"),
        ),
        "boxes": pa.array([[float(j) for j in range(k % 4)] or None for k in range(rows)]),
        "nested": pa.array(
            [{"a": k, "b": [{"c": str(k)}]} if k % 6 else None for k in range(rows)]
        ),
        **{f"logit_{k}": logits[:, k] for k in range(dimension // 2, dimension)},
        "nothing": pa.nulls(rows),
        "blob": pa.array([bytes([k % 256]) * (k % 9) for k in range(rows)], pa.large_binary()),
    }
    schema = pa.table(columns).schema.with_metadata({"source": "a test"})
    return pa.table(columns, schema=schema)


def write_shards(folder, count, rows, **options):
    """`count` shards in folders as Hive has them."""
    for number in range(count):
        path = folder / f"day={1 + number % 3}" / f"part-{number:03}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(
            rich_table(rows + number, seed=number), path, **{"row_group_size": 700, **options}
        )


def contents(folder):
    """The bytes of every shard, by its path."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*.parquet"))
        if not path.name.startswith(".")
    }


def drafts(folder):
    """Unpublished drafts."""
    return list(folder.rglob(".*.tmp"))


#: The logits of `named_like_results`.
TAKEN = "uncertainty,mode_2"


def named_like_results():
    """A table whose logits have the names of results, and a field for it."""
    logits = make_logits(40, dimension=2).numpy()
    rows = {"id": np.arange(40), "uncertainty": logits[:, 0], "mode_2": logits[:, 1]}
    return pa.table(rows), QIPF(orders=(1, 2)).fit(logits)


def logits_in(path):
    table = pq.read_table(path, partitioning=None)
    return np.stack([table[f"logit_{k}"].to_numpy() for k in range(10)], axis=1)


def rescored(folder, field, **options):
    return score_shards(field, folder / "in", folder / "out", **options)
