"""A long stream through `qipf monitor`, killed at random and resumed, and once undisturbed.

    python benchmarks/soak.py                                   # 10⁸ lines; an hour or two
    python benchmarks/soak.py --lines 2000000 --mean-life 8     # to see that it works

A file of lines with two logits, one in 5,000 of them bad, the last twentieth shifted. One run is
killed (SIGKILL) after random times and started again with the same state until it reaches the end;
one, at the same time, is left alone. Compared are the saved states, byte for byte, and all verdicts
that were printed, by their numbers: a verdict that is missing, or printed twice with different
content, is a failure; so is a run without a kill, and memory that grows by more than a tenth after
the first hundredth of the stream. The resident memory of the process is read ten times a second.
Writes results/soak.md.
"""

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

import qipf
from qipf.errors import QIPFScoreWarning
from qipf.progress import progress

#: Lines that are made at a time, each from a seed of its own.
CHUNK = 1_000_000

#: Lines per verdict: five times the default, because every verdict waits for the disk.
WINDOW = 5000

#: Largest resident memory after the first hundredth of the stream, as a multiple of that in it.
MOST_GROWTH = 1.1

#: One in so many lines is bad, and the share of lines before the shift.
ONE_BAD_IN, BEFORE_SHIFT = 5000, 0.95

#: Texts of -9.99 to +9.99, five bytes each: lines have one length and are made by NumPy alone.
_TEXTS = np.array([list(f"{k / 100:+.2f}".encode()) for k in range(-999, 1000)], np.uint8)


def chunks(lines: int, seed: int) -> Iterator[bytes]:
    """The stream, in chunks of whole lines."""
    for start in range(0, lines, CHUNK):
        count = min(CHUNK, lines - start)
        rng = np.random.default_rng([seed, start])
        logits = class_logits(count, rng)
        logits[start + np.arange(count) >= BEFORE_SHIFT * lines] *= 0.7
        places = (100 * logits).round().astype(int).clip(-999, 999) + 999
        text = np.full((count, 12), ord(","), np.uint8)
        text[:, :5], text[:, 6:11], text[:, 11] = _TEXTS[places[:, 0]], _TEXTS[places[:, 1]], 10
        text[rng.random(count) < 1 / ONE_BAD_IN, 6:11] = list(b"oops!")
        yield text.tobytes()


def class_logits(count: int, rng: np.random.Generator) -> np.ndarray:  # (count, 2)
    """Logits of two classes."""
    return rng.choice([-1.5, 1.5], count)[:, None] * [1, -1] + rng.normal(size=(count, 2))


def make_model(path: Path, seed: int) -> None:
    """A small field, calibrated with labels."""
    rng = np.random.default_rng(seed)
    rows = class_logits(1500, rng)
    labels = rng.random(1500) < 1 / (1 + np.exp(rows[:, 0] - rows[:, 1]))
    with warnings.catch_warnings(category=QIPFScoreWarning, action="ignore"):
        model = qipf.QIPF(max_centers=200, fallback=False).fit(rows[:500], labels[:500])
        model.calibrate(rows[500:], labels[500:]).accept_rule(max_risk=0.1)
    model.save(path)


@dataclass
class Run:
    """What one run printed and used."""

    lines: int  # of the stream
    verdicts: dict[int, bytes] = field(default_factory=dict)  # digest by number
    repeated: int = 0  # verdicts that were printed again after a kill,
    contradictions: int = 0  # with another content
    kills: int = 0
    seconds: float = 0.0
    first_mib: float = 0.0  # resident memory after the first hundredth of the stream
    peak_mib: float = 0.0  # after that
    tenths: dict[int, float] = field(default_factory=dict)  # largest by tenth of the stream
    seen: int = 0
    last: str = ""

    def take(self, text: str) -> None:
        """Keep the digest of a printed verdict."""
        number = int(text.split('"number": ', 1)[1].split(",", 1)[0])
        self.seen = int(text.split('"lines": ', 1)[1].split(",", 1)[0])
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        self.repeated += number in self.verdicts
        self.contradictions += self.verdicts.setdefault(number, digest) != digest
        self.last = text

    def weigh(self, mib: float) -> None:
        """Note the resident memory at the present place in the stream."""
        if not self.seen:
            return
        tenth = min(9, 10 * self.seen // self.lines)
        self.tenths[tenth] = max(mib, self.tenths.get(tenth, 0.0))
        if self.seen * 100 <= self.lines:
            self.first_mib = max(mib, self.first_mib)
        else:
            self.peak_mib = max(mib, self.peak_mib)


def monitored(model: Path, stream: Path, state: Path, lines: int, lives: Iterator[float]) -> Run:
    """Run `qipf monitor` to the end of the stream; each process is killed after its life."""
    run, started = Run(lines), time.perf_counter()
    while True:
        command = [sys.executable, "-c", "from qipf.cli import main; main()", "monitor"]
        command += [
            str(model),
            str(stream),
            "--state",
            str(state),
            "--json",
            "--window",
            str(WINDOW),
        ]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        killer = threading.Timer(next(lives), process.kill)
        killer.daemon = True
        killer.start()
        weigher = threading.Thread(target=_weigh, args=(process, run), daemon=True)
        weigher.start()
        assert process.stdout is not None
        for text in process.stdout:
            if text.endswith("\n"):  # killed in the middle of a line otherwise
                run.take(text)
        code = process.wait()
        killer.cancel()
        weigher.join()
        if code == 0:
            run.seconds = time.perf_counter() - started
            return run
        if code != -9:
            raise RuntimeError(f"qipf monitor ended with exit code {code}.")
        run.kills += 1


def _weigh(process: "subprocess.Popen[str]", run: Run) -> None:
    while process.poll() is None:
        try:
            pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            return
        run.weigh(pages * os.sysconf("SC_PAGE_SIZE") / 2**20)
        time.sleep(0.1)


def page(lines: int, seed: int, mean_life: float, killed: Run, whole: Run, equal: bool) -> str:
    """The result as Markdown."""
    same, last = killed.verdicts == whole.verdicts, json.loads(whole.last)
    alarm = "There was no alarm."
    if last["alarm"]:
        alarm = (
            f"The alarm came at prediction {last['alarm_at']:,}, by the {last['score']}, with the "
            f"change point {last['change_point']:,}."
        )
    memory = " | ".join(f"{whole.tenths.get(k, float('nan')):.0f}" for k in range(10))
    return f"""# Soak: a long stream through `qipf monitor`

`python benchmarks/soak.py --lines {lines} --mean-life {mean_life:g} --seed {seed}`, on
{platform.machine()}, Python {platform.python_version()}, both runs at the same time on shared
cores: times are indicative.

| | killed at random | undisturbed |
| --- | --- | --- |
| lines | {lines:,} | {lines:,} |
| kills (SIGKILL) | {killed.kills} | {whole.kills} |
| verdicts, by number | {len(killed.verdicts):,} | {len(whole.verdicts):,} |
| printed again after a kill | {killed.repeated} | {whole.repeated} |
| printed again with other content | {killed.contradictions} | {whole.contradictions} |
| seconds | {killed.seconds:,.0f} | {whole.seconds:,.0f} |
| lines per second | {lines / killed.seconds:,.0f} | {lines / whole.seconds:,.0f} |
| resident memory, first hundredth (MiB) | {killed.first_mib:.0f} | {whole.first_mib:.0f} |
| resident memory, largest after that (MiB) | {killed.peak_mib:.0f} | {whole.peak_mib:.0f} |

The final states are {"equal, byte for byte" if equal else "DIFFERENT"}. The verdicts are
{"equal, each of them" if same else "DIFFERENT"}. Bad lines: {last["bad_lines"]:,}.
The logits change after {int(BEFORE_SHIFT * lines):,} lines, bad ones included.
{alarm}

Largest resident memory of the undisturbed run in each tenth of the stream (MiB):

| {" | ".join(str(k + 1) for k in range(10))} |
|{" --- |" * 10}
| {memory} |
"""


def failures(killed: Run, whole: Run, equal: bool) -> list[str]:
    """What a sound monitor would not do, or what was not tried."""
    found = {
        "The final states differ.": not equal,
        "The verdicts differ.": killed.verdicts != whole.verdicts,
        "A verdict was printed again with other content.": killed.contradictions
        + whole.contradictions,
        "A verdict is missing.": sorted(whole.verdicts) != list(range(1, len(whole.verdicts) + 1)),
        "Nothing was killed: take a smaller --mean-life or more --lines.": not killed.kills,
        "Memory was not measured: take more --lines.": not (killed.first_mib and whole.first_mib),
    }
    for name, run in (("killed", killed), ("undisturbed", whole)):
        text = f"Memory of the {name} run grew from {run.first_mib:.0f} to {run.peak_mib:.0f} MiB."
        found[text] = run.peak_mib > MOST_GROWTH * run.first_mib
    return [text for text, failed in found.items() if failed]


def main() -> None:
    """Make the stream, monitor it twice, compare, write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lines", type=int, default=100_000_000)
    parser.add_argument("--mean-life", type=float, default=40.0, help="seconds between kills")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="for the stream (1.2 GB) and the states")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        model, stream = folder / "model.qipf", folder / "stream.csv"
        make_model(model, options.seed)
        with open(stream, "wb") as file:
            total = -(-options.lines // CHUNK)
            for chunk in progress(chunks(options.lines, options.seed), "writing", total):
                file.write(chunk)
        rng = np.random.default_rng(options.seed)
        # at least three seconds: a process takes about that long to start
        lives = (3 + float(rng.exponential(options.mean_life)) for _ in iter(int, 1))
        endless = (threading.TIMEOUT_MAX for _ in iter(int, 1))
        killed_state, state = folder / "killed.state", folder / "undisturbed.state"
        with ThreadPoolExecutor() as pool:
            run = partial(pool.submit, monitored, model, stream)
            first = run(killed_state, options.lines, lives)
            second = run(state, options.lines, endless)
            killed, whole = first.result(), second.result()
        equal = killed_state.read_bytes() == state.read_bytes()
    text = page(options.lines, options.seed, options.mean_life, killed, whole, equal)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "soak.md").write_text(text)
    print(text, end="")
    failed = failures(killed, whole, equal)
    if failed:
        raise SystemExit("\n".join(failed))


if __name__ == "__main__":
    main()
