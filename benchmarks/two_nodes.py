"""A folder of shards scored on a Ray cluster of two nodes, one of which is killed on the way.

    python benchmarks/two_nodes.py                           # about a minute on two idle cores
    python benchmarks/two_nodes.py --shards 8 --rows 5000    # to see that it works

Two nodes (raylets) of one CPU each run on this machine. When a quarter of the shards is done and
both nodes are busy, the processes of the second node are killed (SIGKILL). The run must finish on
the first, and every output file must equal that of a local run, byte for byte. Writes
results/two-nodes.md.
"""

import argparse
import hashlib
import platform
import tempfile
import time
from collections.abc import Generator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from clusters import logits

import qipf
from qipf.ray import on_ray
from qipf.ray.connection import OBJECT_STORE, ray
from qipf.scoring import score_shards
from qipf.scoring.shard_plan import Shard
from qipf.scoring.shards import Draft, Progress

DIMENSION, CENTERS = 10, 2000


def write_shards(folder: Path, count: int, rows: int) -> None:
    """Parquet files with an id and ten logits per row."""
    folder.mkdir()
    for number in range(count):
        values = logits(rows, DIMENSION, 1 + number).numpy()
        columns = {f"logit_{k}": values[:, k] for k in range(DIMENSION)}
        table = pa.table({"id": np.arange(rows) + number * rows, **columns})
        pq.write_table(table, folder / f"part-{number:03}.parquet")


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file, by name."""
    files = sorted(folder.glob("*.parquet"))
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


class Killing:
    """Runs shards on the cluster, and kills the second node once `after` of them are done."""

    def __init__(self, cluster: object, node: object, after: int) -> None:
        self.cluster, self.node, self.after = cluster, node, after
        self.busy_at_kill, self.done_at_kill = 0, 0

    def __call__(
        self, field: qipf.QIPF, shards: Sequence[Shard], progress: Progress
    ) -> Generator[tuple[Shard, Draft], None, None]:
        """As `on_ray`."""
        for done, found in enumerate(on_ray()(field, shards, progress), 1):
            if done >= self.after and not self.done_at_kill:
                free = ray().available_resources().get("CPU", 0)
                self.busy_at_kill, self.done_at_kill = 2 - int(free), done
                self.cluster.remove_node(self.node, allow_graceful=False)  # type: ignore[attr-defined]
            yield found


def main() -> None:
    """Score locally and on the cluster, compare, write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shards", type=int, default=24)
    parser.add_argument("--rows", type=int, default=50_000, help="per shard")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results")
    options = parser.parse_args()
    ray()  # without usage statistics
    from ray.cluster_utils import Cluster

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_shards(folder / "shards", options.shards, options.rows)
        field = qipf.QIPF(bandwidth="silverman").fit(logits(CENTERS, DIMENSION, 0).numpy())
        score_shards(field, folder / "shards", folder / "local")
        size = {"num_cpus": 1, "object_store_memory": OBJECT_STORE, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=size)
        try:
            node = cluster.add_node(num_cpus=1, object_store_memory=OBJECT_STORE)
            cluster.wait_for_nodes()
            ray().init(address=cluster.address, log_to_driver=False)
            nodes = sum(each["Alive"] for each in ray().nodes())
            run = Killing(cluster, node, max(1, options.shards // 4))
            started = time.perf_counter()
            found = score_shards(field, folder / "shards", folder / "scored", run=run)
            seconds = time.perf_counter() - started
            left = sum(each["Alive"] for each in ray().nodes())
        finally:
            ray().shutdown()
            cluster.shutdown()
        local, scored = digests(folder / "local"), digests(folder / "scored")
    equal = local == scored and len(scored) == options.shards
    text = f"""# Two nodes, one of them killed

`python benchmarks/two_nodes.py --shards {options.shards} --rows {options.rows}`: Ray
{ray().__version__}, two nodes of one CPU on one machine, Python {platform.python_version()}.

| | |
| --- | --- |
| shards, rows of each | {options.shards}, {options.rows:,} |
| nodes at the start, at the end | {nodes}, {left} |
| shards done when the second node was killed | {run.done_at_kill} |
| CPUs busy at that moment | {run.busy_at_kill} |
| rows scored | {found.total.rows:,} |
| seconds | {seconds:.0f} |

{"Every file equals that of a local run, byte for byte." if equal else "THE FILES DIFFER."}
"""
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "two-nodes.md").write_text(text)
    print(text, end="")
    if not equal or nodes != 2 or left != 1 or run.busy_at_kill != 2:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
