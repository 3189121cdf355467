from __future__ import annotations

import pytest

from qipf.bench.corruptions import CORRUPTIONS, corrupt
from qipf.bench.text import words_of
from qipf.errors import QIPFInputError

OF_TEXT = [name for name, each in CORRUPTIONS.items() if each.kind == "text"]
SENTENCES = [f"please book flight number {i} from paris to rome for two people" for i in range(200)]


def test_there_are_four():
    assert OF_TEXT == ["typing", "dropped_words", "swapped_words", "other_words"]


@pytest.mark.parametrize("name", OF_TEXT)
def test_the_same_sentences_are_corrupted_alike_and_none_is_empty(name):
    for level in (*CORRUPTIONS[name].levels, 1.0):
        found = corrupt(SENTENCES, name, level)
        assert found == corrupt(SENTENCES, name, level)
        assert len(found) == len(SENTENCES)
        if name != "typing":
            assert all(found)
    assert corrupt(SENTENCES, name, 0.0) == SENTENCES


@pytest.mark.parametrize("name", OF_TEXT)
def test_a_higher_rate_changes_more_words(name):
    def same(level: float) -> float:
        pairs = zip(SENTENCES, corrupt(SENTENCES, name, level), strict=True)
        return sum(len(set(words_of(a)) & set(words_of(b))) for a, b in pairs) / len(SENTENCES)

    if name == "swapped_words":  # the words stay, their order does not
        kept = [
            sum(a == b for s, t in zip(SENTENCES, corrupt(SENTENCES, name, r), strict=True)
                for a, b in zip(s.split(), t.split(), strict=True))
            for r in (0.2, 0.6, 1.0)
        ]  # fmt: skip
        assert kept == sorted(kept, reverse=True)
        assert all(sorted(a.split()) == sorted(b.split()) for a, b in zip(
            SENTENCES, corrupt(SENTENCES, name, 1.0), strict=True))  # fmt: skip
        return
    shares = [same(level) for level in CORRUPTIONS[name].levels]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > shares[-1] + 1


def test_rates_are_those_asked_for():
    words = sum(len(s.split()) for s in SENTENCES)
    left = sum(len(s.split()) for s in corrupt(SENTENCES, "dropped_words", 0.3))
    assert left / words == pytest.approx(0.7, abs=0.03)
    letters = sum(len(s) for s in SENTENCES)
    wrong = sum(a != b for s, t in zip(SENTENCES, corrupt(SENTENCES, "typing", 0.1), strict=True)
                for a, b in zip(s.split(), t.split(), strict=False))  # fmt: skip
    assert 0 < wrong < letters
    only = corrupt(["a b c d", "x"], "other_words", 1.0)
    assert set(" ".join(only).split()) <= {"a", "b", "c", "d", "x"}


@pytest.mark.parametrize("rate", [-0.1, 1.5, float("nan")])
def test_rates_outside_are_refused(rate):
    with pytest.raises(QIPFInputError, match="typing level must be a rate from 0 to 1"):
        corrupt(["hello"], "typing", rate)
