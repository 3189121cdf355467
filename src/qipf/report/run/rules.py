"""The section of a run's page that tells which predictions may be accepted."""

from __future__ import annotations

from collections.abc import Sequence

from qipf.bench.suites import CLEAN, CLEAN_LEVEL
from qipf.calibration.rule import AcceptRule
from qipf.errors import QIPFError
from qipf.report.charts import Choice
from qipf.report.page import Value, bullets, paragraph, table_html, views_html
from qipf.report.rule_words import SHIFT, share, why_nothing
from qipf.report.run.decisions import FEWEST, RISKS, Trial, halved_trial, halves, tried
from qipf.report.run.run import Run, Scores, level_text, of_one_seed
from qipf.report.table_formats import MISSING

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
        "does. That half is a sample too, and may lie above a limit that is kept. Each guarantee "
        "holds by itself, for a limit and a score chosen beforehand: whoever picks the nicest cell "
        "loses it."
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
    own = trials.get("qipf", [])
    told = [_refusal(trial.rule) for trial in own if not trial.rule.certified]
    sure = [trial.rule for trial in own if trial.rule.certified]
    if sure:
        usual = [rule for rule in sure if rule.max_risk == RISKS[1]]
        told += _under_shift(run, network, (usual or sure)[0])
    rules = _rules_table(own, network) + bullets(told) if own else ""
    return rules + _trials_table(trials, network)


def _rules_table(own: Sequence[Trial], network: str) -> str:
    """The three rules of qipf: what each promises, what it rests on, what it does."""
    rows: list[list[Value | str]] = [
        [_limit(trial.rule), *_promised(trial.rule), *_found(trial)] for trial in own
    ]
    header = [
        "limit", "accept up to", "held out", "accepted", "others accepted", "others wrong",
    ]  # fmt: skip
    caption = (
        f"{network}, by qipf: thresholds certified with {share(own[0].rule.confidence)} "
        "confidence; how many held-out predictions each rests on and accepts; how many of the "
        "others it accepts, and how much of that is wrong."
    )
    return table_html(header, rows, caption)


def _limit(rule: AcceptRule) -> str:
    assert rule.max_risk is not None
    return share(rule.max_risk)


def _promised(rule: AcceptRule) -> list[Value]:
    held_out = Value(f"{rule.held_out:,}", rule.held_out)
    if not rule.certified:
        return [Value(MISSING, note="nothing certified"), held_out, Value("0.0%", 0.0)]
    threshold = Value(f"{rule.threshold:.4g}", rule.threshold)
    return [threshold, held_out, Value(f"{rule.coverage:.1%}", rule.coverage)]


def _found(trial: Trial) -> list[Value]:
    if not trial.accepted:
        return [Value("0.0%", 0.0), Value(MISSING)]
    note = "above the limit" * (trial.risk > trial.rule.risk_bound)
    return [
        Value(f"{trial.coverage:.1%}", trial.coverage),
        Value(f"{trial.risk:.2%}", trial.risk, note=note),
    ]


def _refusal(rule: AcceptRule) -> str:
    return (
        f"At most {_limit(rule)} wrong: nothing can be certified, so every prediction is held "
        f"back. {why_nothing(rule)}"
    )


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


def _trials_table(trials: Trials, network: str) -> str:
    most = [max(trial.coverage for trial in each) for each in zip(*trials.values(), strict=True)]
    rows: list[list[Value | str]] = [
        [name, *(_cell(trial, best) for trial, best in zip(own, most, strict=True))]
        for name, own in trials.items()
    ]
    caption = (
        f"{network}, by every score: share of the other half that is accepted, by the limit on the "
        "error rate; below it, how much of that is wrong."
    )
    header = ["score", *(f"at most {share(risk)} wrong" for risk in RISKS)]
    return table_html(header, rows, caption)


def _cell(trial: Trial, most: float) -> Value:
    if not trial.rule.certified:
        return Value("nothing certified", 0.0)
    coverage, wrong = _found(trial)
    note = f"{wrong.text} wrong" + f": {wrong.note}" * bool(wrong.note)
    best = coverage.text == f"{most:.1%}"  # what reads the same is the same
    return Value(coverage.text, coverage.key, best, note if trial.accepted else "")
