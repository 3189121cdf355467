"""Corruptions of sentences: typing errors, and words dropped, swapped or taken from elsewhere.

A corruption's level is a rate between 0 and 1. What is random is drawn from a fixed seed, so that
the same sentences are always corrupted alike.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qipf.bench.corruptions.registry import CORRUPTIONS, Corruption
from qipf.bench.text import words_of
from qipf.errors import QIPFInputError

#: Seed of everything random here.
SEED = 0

Words = list[str]
Random = np.random.Generator
Change = Callable[[Words, float, Random, Words], Words]


def _register(name: str, levels: Sequence[float]) -> Callable[[Change], Change]:
    """Register a change of one sentence's words; its last argument are the words of all."""

    def registered(change: Change) -> Change:
        def apply(sentences: Sequence[str], rate: Any) -> list[str]:
            if not 0 <= rate <= 1:
                raise QIPFInputError(f"{name} level must be a rate from 0 to 1; got {rate!r}.")
            random = np.random.default_rng([SEED, *name.encode()])
            texts = [words_of(sentence) for sentence in sentences]
            pool = [word for words in texts for word in words]
            changed = (change(words, rate, random, pool) for words in texts)
            return [" ".join(word for word in words if word) for words in changed]

        CORRUPTIONS[name] = Corruption(name, apply, tuple(map(float, levels)), "rate", "text")
        return change

    return registered


@_register("typing", (0.03, 0.06, 0.1, 0.15, 0.2))
def typing_errors(words: Words, rate: float, random: Random, pool: Words) -> Words:
    """Each letter, with probability `rate`, dropped, doubled, exchanged, or swapped."""
    return [_mistyped(word, rate, random) for word in words]


def _mistyped(word: str, rate: float, random: Random) -> str:
    letters, i = list(word), 0
    while i < len(letters):
        if random.random() < rate:
            kind = random.integers(4)
            if kind == 0:
                letters[i] = ""
            elif kind == 1:
                letters[i] *= 2
            elif kind == 2 or i + 1 == len(letters):
                letters[i] = chr(ord("a") + int(random.integers(26)))
            else:
                letters[i], letters[i + 1] = letters[i + 1], letters[i]
                i += 1
        i += 1
    return "".join(letters)


@_register("dropped_words", (0.1, 0.2, 0.3, 0.4, 0.5))
def dropped_words(words: Words, rate: float, random: Random, pool: Words) -> Words:
    """Each word left out with probability `rate`; one word at least is left."""
    kept = [word for word in words if random.random() >= rate]
    return kept or words[:1]


@_register("swapped_words", (0.2, 0.4, 0.6, 0.8, 1))
def swapped_words(words: Words, rate: float, random: Random, pool: Words) -> Words:
    """A share `rate` of the words in each other's places."""
    count = round(rate * len(words))
    if count < 2:
        return words
    places = np.sort(random.permutation(len(words))[:count])
    moved = list(words)
    for place, source in zip(places, np.roll(places, int(random.integers(1, count))), strict=True):
        moved[place] = words[source]
    return moved


@_register("other_words", (0.1, 0.2, 0.3, 0.45, 0.6))
def other_words(words: Words, rate: float, random: Random, pool: Words) -> Words:
    """Each word, with probability `rate`, exchanged for a word of any sentence."""
    drawn = random.random(len(words)) < rate
    others = random.integers(len(pool), size=len(words))
    return [pool[k] if new else word for word, new, k in zip(words, drawn, others, strict=True)]
