"""Mutation testing of the scientific core: changes that a test must notice, one at a time.

``make mutants``, or ``python tools/mutants`` with ``--package field --seed 1 --sample 60``. A
seeded sample of single changes (another comparison, sign, factor or constant, a statement left
out), and all of `named.py`, are each tried against the doctests of their module and the tests
beside it.
The outcomes go to ``results/mutants.csv``, which keeps the reason of each that stays and the rows
of other seeds whose code is still there, and in short to ``results/mutants.md``. Ends with an error
if a survivor has no reason, or if more than 5 % survive.

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
from trials import (
    BYTES,
    CPU_SECONDS,
    ROOT,
    WALL_SECONDS,
    forked,
    outcome,
    preload,
    run_tests,
    tests_of,
)

sys.path[:0] = [str(ROOT), str(ROOT / "src")]
TABLE = ROOT / "results" / "mutants.csv"

#: Columns of the table, and those that identify a row.
COLUMNS = ("seed", "package", "file", "line", "code", "mutation", "outcome", "noticed by", "reason")
KEY = ("seed", "package", "file", "code", "mutation")
OUTCOMES = ("killed", "equivalent", "survived")

#: Largest share of survivors, each with a reason, that is not an error.
MOST_SURVIVORS = 0.05

#: Mutants that are drawn from each package, and its files.
SAMPLE = {
    "field": (90, "field/*.py field/engines/[abfr]*.py"),
    "calibration": (50, "calibration/*.py"),
    "monitor": (40, "monitor/*.py"),
    "metrics": (20, "metrics/*.py"),
    "bench": (55, "bench/methods/*.py bench/scoring.py bench/learning.py"),
    "layered": (65, "layered/*.py"),
}

#: Imports, figures, and files but for those of the monitor, whose states are part of its promise.
NOT_SCIENCE = {"__init__.py", "plotting.py", "field/state.py", "calibration/state.py"}
NOT_SCIENCE |= {"layered/state.py"}

#: Code for GPUs: not run here, or loaded anew in Triton's interpreter, without the change.
NOT_SCIENCE |= {"layered/evidence_kernels.py", "layered/fused_evidence.py", "layered/replays.py"}

ORDER = [*SAMPLE, "named"]


def all_of(package: str) -> list[Mutant]:
    """All changes of the package; equal lines of a file count once."""
    paths = {path for p in SAMPLE[package][1].split() for path in SOURCE.glob(p)}
    left = sorted(p for p in paths if not {p.name, f"{package}/{p.name}"} & NOT_SCIENCE)
    everything = [mutant for path in left for mutant in mutants_of(package, path)]
    return list({mutant.key(): mutant for mutant in reversed(everything)}.values())


def sample(package: str, seed: int, share: float = 1.0) -> list[Mutant]:
    """The package's share of all changes, by hash, so that edits elsewhere leave them the same."""

    def rank(mutant: Mutant) -> bytes:
        return hashlib.sha256("\0".join((str(seed), *mutant.key()[1:])).encode()).digest()

    chosen = sorted(all_of(package), key=rank)[: round(share * SAMPLE[package][0])]
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
    """The rows of the table by seed, package, file, code and mutation."""
    if not TABLE.exists():
        return {}
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {tuple(row[name] for name in KEY): row for row in rows}


def write_table(rows: list[dict[str, str]]) -> None:
    """Write the table, sorted by seed, package, file and line."""
    rows.sort(
        key=lambda r: (r["seed"], ORDER.index(r["package"]), r["file"], int(r["line"]), r["code"])
    )
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def page(rows: list[dict[str, str]]) -> str:
    """What was drawn, from where, within which limits, and what became of it, as Markdown."""
    groups = Counter((row["seed"], row["package"]) for row in rows)
    found = Counter((row["seed"], row["package"], row["outcome"]) for row in rows)
    lines = [
        f"| {seed or '-'} | {package} | {count} | "
        + " | ".join(str(found[seed, package, kind]) for kind in OUTCOMES)
        + " |"
        for (seed, package), count in groups.items()
    ]
    for seed in dict.fromkeys(row["seed"] for row in rows):
        of_seed = Counter(row["outcome"] for row in rows if row["seed"] == seed)
        counts = [of_seed.total(), *(of_seed[kind] for kind in OUTCOMES)]
        lines.append(f"| {seed or '-'} | all | {' | '.join(map(str, counts))} |")
    scope = "\n".join(f"- {package}: `{files}`" for package, (_, files) in SAMPLE.items())
    return f"""# Mutants

`make mutants` (seed 0), `python tools/mutants --seed S --sample N` (others): single changes of the
scientific core, drawn by hash from all changes of the files below (model files, figures and code
for GPUs are left out), and those of `tools/mutants/named.py`, which no test noticed once. Each is
tried against the doctests of its module and the tests beside it. [mutants.csv](mutants.csv) has
every one of them, with the test that notices it or the reason why it may stay; an equivalent one
changes nothing that can be told.
The command ends with an error if a survivor has no reason, or if the survivors are more than
{MOST_SURVIVORS:.0%} of a seed's mutants. Rows of other seeds stay while their code does.

A change that makes the tests take more than {CPU_SECONDS} s of CPU time, {WALL_SECONDS} s in all or
{BYTES / 2**30:.0f} GiB counts as noticed. Without a change the tests of a module must take less
than a third of the CPU limit; otherwise the command ends.

{scope}

| seed | package | mutants | {" | ".join(OUTCOMES)} |
| --- | --- |{" --- |" * (1 + len(OUTCOMES))}
{chr(10).join(lines)}
"""


def complaints(rows: list[dict[str, str]]) -> list[str]:
    """Why the rows of one seed are not good enough."""
    found = [row for row in rows if row["outcome"] == "survived"]
    said = [
        f"{row['file']}:{row['line']} {row['mutation']} survived without a reason."
        for row in found
        if not row["reason"]
    ]
    if len(found) > MOST_SURVIVORS * len(rows):
        said.append(f"{len(found)} of {len(rows)} survived, more than {MOST_SURVIVORS:.0%}.")
    return said


def main() -> None:
    """Try the mutants and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--package", nargs="*", default=ORDER)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sample", type=int, help="about so many in all, instead of 320")
    parser.add_argument("--survivors", action="store_true", help="only those that survived before")
    options = parser.parse_args()
    os.chdir(ROOT)
    os.environ |= {"SCIPY_ARRAY_API": "1", "OMP_NUM_THREADS": "1"}
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    known = read_table()
    share = 1.0 if options.sample is None else options.sample / sum(n for n, _ in SAMPLE.values())
    wanted: dict[tuple[str, ...], Mutant] = {}
    for package in options.package:
        drawn = named() if package == "named" else sample(package, options.seed, share)
        seed = "" if package == "named" else str(options.seed)
        wanted |= {(seed, *mutant.key()): mutant for mutant in drawn}
    replaced = {(key[0], key[1]) for key in wanted}
    present = {m.key(): m.line for m in [*named(), *(m for p in SAMPLE for m in all_of(p))]}
    table = {
        key: row | {"line": str(present[key[1:]])}
        for key, row in known.items()
        if (key[0], key[1]) not in replaced and key[1:] in present
    }
    noticed_by = {}
    if options.survivors:
        noticed_by = {key: row["noticed by"] for key, row in known.items() if row["noticed by"]}
    tried = {
        mutant.file: tests_of(mutant.file) for k, mutant in wanted.items() if k not in noticed_by
    }
    if tried:
        tests = list(dict.fromkeys(test for listed in tried.values() for test in listed))
        preload(tests)
        whole = forked(lambda: run_tests(tests), limited=False)
        if whole["failed"]:
            sys.exit(f"{whole['failed']} fails without a change.")
        for file, listed in tried.items():
            seconds = sum(whole["seconds"].get(test, 0.0) for test in listed)
            if seconds > CPU_SECONDS / 3:
                sys.exit(f"The tests of {file} take {seconds:.0f} s without a change.")
    for number, (key, mutant) in enumerate(wanted.items(), 1):
        noticed = noticed_by.get(key) or outcome(mutant)
        reason = "" if noticed else known.get(key, {}).get("reason", "")
        kind = "equivalent" if reason.startswith("equivalent") else "survived"
        values = (*key[:3], str(mutant.line), *key[3:], "killed" if noticed else kind)
        table[key] = dict(zip(COLUMNS, (*values, noticed, reason), strict=True))
        print(f"{number}/{len(wanted)} {mutant.file}:{mutant.line} {mutant.mutation}", end=": ")
        print(noticed or "SURVIVED", flush=True)
    rows = list(table.values())
    write_table(rows)
    TABLE.with_suffix(".md").write_text(page(rows), encoding="utf-8")
    said = [
        text
        for seed in {key[0] for key in wanted}
        for text in complaints([row for row in rows if row["seed"] == seed])
    ]
    if said:
        sys.exit("\n".join(said))


if __name__ == "__main__":
    main()
