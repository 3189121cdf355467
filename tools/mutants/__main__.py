"""Mutation testing of the scientific core: changes that a test must notice, one at a time.

``make mutants``, or ``python tools/mutants`` with ``--package field --seed 1``. A seeded sample
of single changes (another comparison, sign, factor or constant, a statement left out), and all of
`named.py`, are each tried against the doctests of their module and the tests beside it.
The outcomes go to ``results/mutants.csv``, which keeps the reason of each that stays.

mutmut mutates neither constants of modules and classes nor decorated functions, where bandwidth
factors, recipes and most public methods are; cosmic-ray starts Python for every mutant, which
takes longer here than the tests. So this forks after the libraries are imported: a mutant costs
the import of `qipf` and its tests up to the first failure.
"""

import argparse
import csv
import hashlib
import os
import sys
from collections import Counter

from changes import SOURCE, Mutant, mutants_of
from named import NAMED
from trials import ROOT, forked, outcome, preload, run_tests, tests_of

sys.path[:0] = [str(ROOT), str(ROOT / "src")]
TABLE = ROOT / "results" / "mutants.csv"

#: Mutants that are drawn from each package, and its files.
SAMPLE = {
    "field": (90, "field/*.py field/engines/[abfr]*.py"),
    "calibration": (50, "calibration/*.py"),
    "monitor": (40, "monitor/m*.py monitor/online_p_values.py monitor/two_sample.py"),
    "metrics": (20, "metrics/*.py"),
    "bench": (55, "bench/methods/*.py bench/scoring.py bench/learning.py"),
    "layered": (65, "layered/*.py"),
}
NOT_SCIENCE = {"__init__.py", "state.py", "plotting.py"}  # imports, files, figures


def sample(package: str, seed: int) -> list[Mutant]:
    """The package's share of all changes, by hash, so that edits elsewhere leave them the same."""
    count, patterns = SAMPLE[package]
    paths = {path for p in patterns.split() for path in SOURCE.glob(p)}
    everything = [
        m for p in sorted(paths) if p.name not in NOT_SCIENCE for m in mutants_of(package, p)
    ]
    first = {mutant.key(): mutant for mutant in reversed(everything)}  # equal lines count once

    def rank(mutant: Mutant) -> bytes:
        return hashlib.sha256("\0".join((str(seed), *mutant.key()[1:])).encode()).digest()

    chosen = sorted(first.values(), key=rank)[:count]
    return sorted(chosen, key=lambda mutant: (mutant.file, mutant.start))


def named() -> list[Mutant]:
    """The changes of `named.py`, each found by its text."""
    found = []
    for file, before, after in NAMED:
        source = (SOURCE / file).read_text(encoding="utf-8")
        if source.count(before) != 1:
            sys.exit(f"{file} holds {before!r} {source.count(before)} times; once is needed.")
        start = len(source[: source.index(before)].encode())
        line = source[: source.index(before)].count("\n") + 1
        code, end = source.splitlines()[line - 1].strip(), start + len(before.encode())
        mutation = f"{' '.join(before.split())} → {' '.join(after.split())}"
        found.append(Mutant("named", file, line, code, mutation, start, end, after))
    return found


def read_table() -> dict[tuple[str, ...], dict[str, str]]:
    """The rows of the table by package, file, code and mutation."""
    if not TABLE.exists():
        return {}
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {(row["package"], row["file"], row["code"], row["mutation"]): row for row in rows}


def main() -> None:
    """Try the mutants and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--package", nargs="*", default=[*SAMPLE, "named"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--survivors", action="store_true", help="only those that survived before")
    options = parser.parse_args()
    os.chdir(ROOT)
    os.environ |= {"SCIPY_ARRAY_API": "1", "OMP_NUM_THREADS": "1"}
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    known = read_table()
    wanted = [
        mutant
        for package in options.package
        for mutant in (named() if package == "named" else sample(package, options.seed))
    ]
    table = {key: row for key, row in known.items() if key[0] not in options.package}
    noticed_by = {}
    if options.survivors:
        noticed_by = {key: row["noticed by"] for key, row in known.items() if row["noticed by"]}
    tried = [mutant for mutant in wanted if mutant.key() not in noticed_by]
    tests = list(dict.fromkeys(test for mutant in tried for test in tests_of(mutant.file)))
    if tests:
        preload(tests)
        whole = forked(lambda: run_tests(tests), limited=False)
        if whole["failed"]:
            sys.exit(f"{whole['failed']} fails without a change.")
    for number, mutant in enumerate(wanted, 1):
        noticed = noticed_by.get(mutant.key()) or outcome(mutant)
        reason = "" if noticed else known.get(mutant.key(), {}).get("reason", "")
        kind = "equivalent" if reason.startswith("equivalent") else "survived"
        table[mutant.key()] = {
            "package": mutant.package,
            "file": mutant.file,
            "line": str(mutant.line),
            "code": mutant.code,
            "mutation": mutant.mutation,
            "outcome": "killed" if noticed else kind,
            "noticed by": noticed,
            "reason": reason,
        }
        print(f"{number}/{len(wanted)} {mutant.file}:{mutant.line} {mutant.mutation}", end=": ")
        print(noticed or "SURVIVED", flush=True)
    order = [*SAMPLE, "named"]
    rows = sorted(
        table.values(), key=lambda r: (order.index(r["package"]), r["file"], int(r["line"]))
    )
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    for package in order:
        found = Counter(row["outcome"] for row in rows if row["package"] == package)
        print(package, dict(found))


if __name__ == "__main__":
    main()
