"""Simulations of what rests on two scores: rules with a limit of the novelty, monitors of both."""

import math
from typing import NamedTuple

import numpy as np
from guarantee_populations import ABOVE, Array
from scipy.special import expit

import qipf
from qipf.calibration.accuracy import AccuracyEstimator
from qipf.monitor.martingale import Martingale
from qipf.monitor.online_p_values import OnlinePValues

#: Predictions of a population of pairs.
SIZE = 20_000

#: Sizes of held-out sets, risks, confidences and least p-values of the novelty.
LIMITED = ((60, 0.1, 0.9, 0.1), (600, 0.05, 0.95, 0.05))

#: Held-out predictions and length of long streams.
LONG = (200, 3000)


class Pairs(NamedTuple):
    """Uncertainties, novelties, and the probability that each prediction is wrong."""

    uncertainty: Array  # (SIZE,)
    novelty: Array  # (SIZE,)
    rates: Array  # (SIZE,)


def pairs(risk: float, share: float) -> dict[str, Pairs]:
    """Populations whose error rate keeps close to `risk`, or does so below the novelty's limit."""
    rng = np.random.default_rng(0)
    places = (np.arange(SIZE) + 0.5) / SIZE
    other, above = rng.permutation(places), np.full(SIZE, risk * (1 + ABOVE))
    below = above / (1 - share)  # all errors of the population, on what is not novel
    few = np.ceil(3 * other)
    return {
        "independent": Pairs(places, other, above),
        "novel as uncertain": Pairs(places, places, above),
        "novel as certain": Pairs(places, -places, above),
        "novel ones are right": Pairs(places, other, np.where(other < 1 - share, above, 0.0)),
        "novel ones are wrong": Pairs(places, other, np.where(other < 1 - share, above, 1.0)),
        "errors below the limit": Pairs(places, other, np.where(other < 1 - share, below, 0.0)),
        "errors at the limit": Pairs(
            places, other, ((other > 1 - share - risk) & (other < 1 - share)).astype(float)
        ),
        "waves of the novelty": Pairs(places, other, above * (1 + np.cos(40 * np.pi * other))),
        "rising with both": Pairs(places, other, risk * (0.2 + 1.2 * places + 1.2 * other)),
        "certain novel errors": Pairs(
            places, other, np.where((other > 1 - share) & (places < 0.5), 1.0, above)
        ),
        "three novelties": Pairs(places, few, above),
        "three of both": Pairs(few, rng.permutation(few), above),
        "one novelty but for few": Pairs(places, (other > 0.97).astype(float), above),
    }


def limited(population: Pairs, numbers: tuple[float, ...], rng: np.random.Generator) -> bool:
    """Whether a rule of held-out predictions accepts more errors than it promises."""
    count, risk, confidence, least = numbers
    chosen = rng.integers(SIZE, size=int(count))
    wrong = rng.random(int(count)) < population.rates[chosen]
    uncertainty, novelty = population.uncertainty[chosen], population.novelty[chosen]
    rule = qipf.accept_rule(
        uncertainty, wrong, risk, confidence, novelty=novelty, min_novelty_p=least
    )
    assert rule.max_novelty is not None
    accepted = population.uncertainty <= rule.threshold
    accepted &= population.novelty <= rule.max_novelty
    errors = population.rates[accepted].sum()
    return bool(errors > risk * (1 + ABOVE / 2) * accepted.sum())


#: Log-odds of errors: their bias and scale against the truth, and what the novelty follows.
ODDS = {
    "calibrated": (0.0, 1.0, "nothing"),
    "too low": (1.5, 1.0, "nothing"),
    "too high": (-1.5, 1.0, "nothing"),
    "too steep": (0.0, 0.5, "odds"),
    "too flat": (0.0, 2.0, "odds"),
    "without information": (0.0, 0.0, "nothing"),
    "novel ones are wrong": (0.0, 1.0, "errors"),
    "novel ones are right": (0.0, 1.0, "not errors"),
    "few errors": (-3.0, 1.0, "odds"),
    "many errors": (3.0, 1.0, "odds"),
}


def draw_odds(name: str, count: int, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """Log-odds that a model gives, errors, and novelties."""
    bias, scale, follows = ODDS[name]
    odds = rng.normal(-2.5, 1.5, count)
    wrong = rng.random(count) < expit(bias + scale * odds - (0 if scale else 2.0))
    novelty = rng.normal(size=count)
    if follows == "odds":
        novelty += odds
    elif follows != "nothing":
        novelty += 2.0 * (wrong if follows == "errors" else ~wrong)
    return odds, wrong, novelty


def misses(name: str, sizes: tuple[int, int], rng: np.random.Generator) -> tuple[bool, bool]:
    """Whether the interval misses the accuracy, and whether the window is called unreliable."""
    odds, wrong, novelty = draw_odds(name, sizes[0], rng)
    estimator = AccuracyEstimator(odds, wrong, "log_odds", novelty)
    odds, wrong, novelty = draw_odds(name, sizes[1], rng)
    found = estimator.estimate(odds, 0.95, novelty)
    return not found.low <= 1 - wrong.mean() <= found.high, found.reliable is False


def both(name: str, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Uncertainties and novelties of an exchangeable stream."""
    first, second = rng.normal(size=(2, count))
    return {
        "independent": (first, second),
        "equal": (first, first),
        "opposite": (first, -first),
        "novelty of few values": (first, np.floor(2 * second + first)),
    }[name]


STREAMS = ("independent", "equal", "opposite", "novelty of few values")


def peaks(name: str, seed: int, rng: np.random.Generator) -> tuple[float, float]:
    """Largest log evidence of a monitor of the novelty, and of one of both scores.

    By what a `ShiftMonitor` consists of: a verdict takes longer.
    """
    found = []
    for scores in both(name, sum(LONG), rng):
        martingale = Martingale()
        online = OnlinePValues(qipf.Calibration(scores[: LONG[0]]), seed)
        martingale.add(*online.add(scores[LONG[0] :]), math.inf)
        found.append(martingale.peak)
    return found[1], max(found) - math.log(2)
