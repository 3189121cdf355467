"""The section of a run's page that tells which predictions may be accepted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qipf.bench.suites import CLEAN, CLEAN_LEVEL
from qipf.errors import QIPFError
from qipf.report.charts import Choice
from qipf.report.decisions import FEWEST, RISKS, Trial, halved_trial, halves, tried
from qipf.report.page import Value, bullets, paragraph, table_html, views_html
from qipf.report.rule_words import SHIFT, grounds, promise, share, why_nothing
from qipf.report.runs import Run, Scores, level_text, of_one_seed
from qipf.rule import AcceptRule

#: What stands in place of these sections where the run kept no scores.
NOT_KEPT = (
    "The run kept no uncertainties of clean images (--no-keep-scores), or of too few, which "
    "this is made of."
)

Trials = dict[str, list[Trial]]  # method -> one for each of RISKS


def halvable(run: Run, network: str) -> Scores | None:
    """A network's clean scores, where there are enough to be halved."""
    clean = run.clean_scores(network)
    enough = clean and min(map(len, clean.values())) >= FEWEST
    return clean if enough else None


def rules_html(run: Run) -> str:
    """Certified thresholds from half of the clean images, and what they do on the other half."""
    views: dict[tuple[str, ...], str] = {}
    for network in run.networks:
        if halvable(run, network) is not None:
            views[network,] = _network_html(run, network)
    if not views:
        return paragraph(NOT_KEPT)
    limits = ", ".join(map(share, RISKS))
    intro = (
        "Which predictions can be accepted unseen? A random half of the clean test predictions "
        f"sets a threshold for each of three limits on the error rate among the accepted, {limits}"
        ", with an exact guarantee (qipf.accept_rule); the other half shows what the threshold "
        "does. Each guarantee holds by itself for a limit and a score chosen beforehand: whoever "
        "picks the nicest cell loses it."
    )
    networks = {key[0]: key[0] for key in views}
    return (
        paragraph(intro + of_one_seed(run))
        + views_html(views, [Choice("Network", networks)])
        + paragraph(SHIFT, style="note")
    )


def _network_html(run: Run, network: str) -> str:
    scores, wrong = run.scores(network, CLEAN)[CLEAN_LEVEL]
    trials: Trials = {
        name: [halved_trial(scores[name], wrong, risk) for risk in RISKS]
        for name in run.methods
        if name in scores
    }
    told = [_in_words(trial) for trial in trials.get("qipf", [])]
    sure = [trial.rule for trial in trials.get("qipf", []) if trial.rule.certified]
    if sure:
        told += _under_shift(run, network, sure[min(1, len(sure) - 1)])
    words = paragraph(f"By qipf, on {network}:") + bullets(told) if told else ""
    return words + _trials_table(trials, network)


def _in_words(trial: Trial) -> str:
    rule = trial.rule
    assert rule.max_risk is not None
    wanted = f"At most {share(rule.max_risk)} wrong"
    if not rule.certified:
        return (
            f"{wanted}: nothing can be certified, so every prediction is held back. "
            f"{why_nothing(rule)}"
        )
    kept = f"Of the {trial.count:,} others it accepts {share(trial.coverage)}"
    if trial.accepted:
        above = ": more than promised" if trial.risk > rule.risk_bound else ""
        kept += f"; {share(trial.risk)} of these are wrong{above}"
    return f"{wanted}: {promise(rule)} {grounds(rule)} {kept}."


def _under_shift(run: Run, network: str, rule: AcceptRule) -> list[str]:
    """What becomes of a rule under the corruption that hurts it most."""
    worst: tuple[Trial, str] | None = None
    for corruption in run.corruptions(network):
        try:
            kept = run.scores(network, corruption)
        except QIPFError:
            continue  # not measured yet
        for level, (scores, wrong) in kept.items():
            other = halves(len(wrong)).other
            trial = tried(rule, scores["qipf"][other], wrong[other]) if "qipf" in scores else None
            if trial and trial.accepted and (worst is None or trial.risk > worst[0].risk):
                worst = trial, f"{corruption}, {level_text(corruption, level)}"
    if worst is None:
        return []
    trial, where = worst
    return [
        f"When the images are spoilt: of what the {share(rule.risk_bound)} rule still accepts, up "
        f"to {share(trial.risk)} is wrong ({where}, where it accepts {share(trial.coverage)})."
    ]


def _trials_table(trials: Mapping[str, Sequence[Trial]], network: str) -> str:
    most = [
        max(trial.coverage for trial in column) for column in zip(*trials.values(), strict=True)
    ]
    rows: list[list[Value | str]] = [
        [name, *(_cell(trial, best) for trial, best in zip(own, most, strict=True))]
        for name, own in trials.items()
    ]
    caption = (
        f"{network}: share of the other half that is accepted, by the limit on the error rate; "
        "below it, how much of that is wrong."
    )
    header = ["score", *(f"at most {share(risk)} wrong" for risk in RISKS)]
    return table_html(header, rows, caption)


def _cell(trial: Trial, most: float) -> Value:
    if not trial.rule.certified:
        return Value("nothing certified", 0.0)
    if not trial.accepted:
        return Value("0%", 0.0, note="none accepted")
    above = trial.risk > trial.rule.risk_bound
    note = f"{trial.risk:.2%} wrong" + (": above the limit" if above else "")
    return Value(f"{trial.coverage:.1%}", trial.coverage, trial.coverage == most, note)
