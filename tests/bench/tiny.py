"""A suite that takes a moment, and its results without what a clock decided."""

import json
from pathlib import Path

from qipf.bench.results import TIMINGS, read_results, task_of
from qipf.bench.suites import BenchNetwork, Suite

TINY = Suite(
    "tiny",
    (BenchNetwork("tiny_mlp", "digits", "mlp", {"epochs": 2}),),
    corruptions={"rotation": (30, 90), "brightness": (0.4,)},
    methods=("entropy", "qipf", "mc_dropout", "mc_dropout_entropy", "ensemble"),
    options={"mc_dropout": {"passes": 3}, "ensemble": {"networks": 2}},
)

TASKS = len(list(TINY.tasks()))


def without_timings(out):
    """The lines of a run, ordered by task, without the timings; the file must be whole."""
    content = Path(out, "results.jsonl").read_text(encoding="utf-8")
    assert content.endswith("\n")
    records = read_results(out)
    assert len(records) == content.count("\n")
    for record in records:
        for name in TIMINGS:
            del record[name]
    return [json.dumps(record) for record in sorted(records, key=task_of)]
