from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from qipf.bench.text import UNKNOWN, Vocabulary, words_of

TRAINING = ["book a flight to rome", "book a table", "what's the weather in rome", "play it again"]
VOCABULARY = Vocabulary.of(TRAINING, length=10)


def test_frequent_words_are_tokens_and_others_are_cut_from_the_left():
    assert VOCABULARY.pieces_of("Book a  FLIGHT") == ["book", "a", "fligh", "##t"]
    assert VOCABULARY.pieces_of("") == []
    assert words_of("it's 10pm!") == ["it", "'", "s", "10", "pm", "!"]


@given(st.sampled_from(TRAINING))
def test_every_training_sentence_can_be_spelled(sentence):
    pieces = VOCABULARY.pieces_of(sentence)
    assert UNKNOWN not in pieces
    assert "".join(p.removeprefix("##") for p in pieces) == "".join(words_of(sentence))


@given(st.text(max_size=60))
def test_any_text_becomes_tokens_in_range(text):
    tokens = VOCABULARY.encode([text])
    assert tokens.shape == (1, 10)
    assert tokens.dtype == torch.int64
    assert 0 <= int(tokens.min()) <= int(tokens.max()) < len(VOCABULARY)
    used = min(10, len(VOCABULARY.pieces_of(text)))
    assert bool((tokens[0, :used] > 0).all())  # padding only at the end
    assert not tokens[0, used:].any()


def test_unknown_characters_and_long_texts():
    assert VOCABULARY.pieces_of("ж") == [UNKNOWN]
    assert VOCABULARY.encode(["book " * 50]).tolist() == [[VOCABULARY.pieces.index("book")] * 10]
    assert VOCABULARY.encode([]).shape == (0, 10)


def test_the_vocabulary_does_not_depend_on_the_order_of_sentences():
    assert Vocabulary.of(TRAINING[::-1], length=10) == VOCABULARY
    assert len(set(VOCABULARY.pieces)) == len(VOCABULARY)
    assert len(Vocabulary.of(TRAINING, pieces=3)) < len(VOCABULARY)
