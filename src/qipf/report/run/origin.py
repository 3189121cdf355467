"""How a run's numbers were made: command, versions, seeds, settings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from qipf.bench.suites import SUITES, base_name
from qipf.report.page import code, facts, paragraph, subheading
from qipf.report.run.run import Run
from qipf.report.tables import Summary


def origin_html(run: Run, summary: Summary) -> str:
    """What one needs to make the run again."""
    folder = run.folder.resolve().name
    commands = [*commands_of(run, folder), f"qipf report runs/{folder} -o report.html"]
    general = {
        "results": f"{len(run.records):,} (network, corruption, level, method)",
        "seeds": ", ".join(map(str, run.seeds)),
        "devices": _joined(record["device"] for record in run.records),
        "versions": _joined(_versions(record["versions"]) for record in run.records),
    }
    blocks = [code("\n".join(commands)), facts(general)]
    for line in summary.networks:
        own = [record for record in run.records if record["network"] == line.network]
        recipe = own[0]["parameters"]["recipe"]
        told = {
            "network": own[0]["parameters"]["network"],
            "data": own[0].get("dataset_note") or line.dataset,
            "training": _options(recipe),
        }
        told |= {
            f"options of {method}": _options(options) for method, options in _chosen(own).items()
        }
        fitted = next((r["fitted"] for r in own if "bandwidth" in r.get("fitted", {})), None)
        if fitted:
            told["field"] = _options(fitted)
        blocks += [subheading(line.network), facts(told)]
    note = (
        "A prediction counts as wrong where the plain network's most likely class is not the label."
    )
    return "".join([*blocks, paragraph(note, style="note")])


def commands_of(run: Run, folder: str) -> list[str]:
    """The commands that make such results: of a suite that comes with qipf, or of one's own."""
    made = sorted({(int(r["seed"]), str(r.get("suite", "YOURS"))) for r in run.records})
    commands = []
    for seed, suite in made:
        if suite not in SUITES:  # a user's own, which only Python code can run
            commands.append(f'qipf.bench.runner.run({suite}, "runs/{folder}", seed={seed})')
            continue
        own = f" --seed {seed}" if seed != SUITES[suite].seed else ""
        commands.append(f"qipf bench run --suite {suite}{own} --out runs/{folder}")
    return commands


def _chosen(records: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Options of the methods that have any; a sampler's two scores share theirs."""
    options = {base_name(r["method"]): r["parameters"]["options"] for r in records}
    return {method: given for method, given in options.items() if given}


def _options(options: dict[str, Any]) -> str:
    return ", ".join(f"{name} {_value(value)}" for name, value in options.items())


def _value(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "default"}[value]
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _versions(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _joined(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(texts))
