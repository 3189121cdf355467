"""A small tokenizer for the benchmark's texts.

Word pieces are learned from the training sentences: frequent words are tokens, and other words are
cut, from the left, into the longest known pieces. The pieces of a word after the first begin with
``##``.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

#: Tokens 0 and 1: padding, and a character that no training sentence has.
PADDING, UNKNOWN = "<pad>", "<unk>"

#: A word, a number, or a single other character.
_WORD = re.compile(r"[^\W\d_]+|\d+|[^\w\s]|_")

#: Longest piece of a word that is not a word itself.
LONGEST = 5


@dataclass(frozen=True)
class Vocabulary:
    """Pieces by token, and how many tokens a text has; longer texts are cut off.

    >>> vocabulary = Vocabulary.of(["book a flight", "book a room"], length=6, frequent=2)
    >>> vocabulary.pieces_of("book!")
    ['book', '<unk>']
    >>> vocabulary.encode(["book a"]).tolist()[0][2:]
    [0, 0, 0, 0]
    """

    pieces: tuple[str, ...]
    length: int = 24

    @classmethod
    def of(
        cls, sentences: Iterable[str], length: int = 24, frequent: int = 2, pieces: int = 1000
    ) -> "Vocabulary":
        """Words seen `frequent` times, all characters, and the most frequent other pieces."""
        words = Counter(word for sentence in sentences for word in words_of(sentence))
        parts: Counter[str] = Counter()
        for word in words:
            for start in range(len(word)):
                for end in range(start + 1, min(len(word), start + LONGEST) + 1):
                    parts[("##" if start else "") + word[start:end]] += 1
        characters = sorted(part for part in parts if len(part.removeprefix("##")) == 1)
        common = sorted(word for word, count in words.items() if count >= frequent)
        known = dict.fromkeys([PADDING, UNKNOWN, *characters, *common])
        longer = sorted(parts.keys() - known, key=lambda part: (-parts[part], part))
        return cls((*known, *longer[:pieces]), length)

    def __len__(self) -> int:
        return len(self.pieces)

    @cached_property
    def _tokens(self) -> dict[str, int]:
        return {piece: token for token, piece in enumerate(self.pieces)}

    def pieces_of(self, sentence: str) -> list[str]:
        """The sentence's pieces."""
        return [piece for word in words_of(sentence) for piece in self._cut(word)]

    def encode(self, sentences: Iterable[str]) -> Tensor:  # (n, length) int64
        """Tokens of each sentence, padded with zeros."""
        rows = []
        for sentence in sentences:
            tokens = [self._tokens[piece] for piece in self.pieces_of(sentence)][: self.length]
            rows.append(tokens + [0] * (self.length - len(tokens)))
        return torch.tensor(rows, dtype=torch.int64).reshape(-1, self.length)

    def _cut(self, word: str) -> list[str]:
        found, start = [], 0
        while start < len(word):
            mark = "##" if start else ""
            ends = range(len(word), start, -1)
            end = next((end for end in ends if mark + word[start:end] in self._tokens), None)
            found.append(UNKNOWN if end is None else mark + word[start:end])
            start = start + 1 if end is None else end
        return found


def words_of(sentence: str) -> list[str]:
    """Words, numbers and other characters, in lower case.

    >>> words_of("What's up at 10?")
    ['what', "'", 's', 'up', 'at', '10', '?']
    """
    return _WORD.findall(sentence.lower())
