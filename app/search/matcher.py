"""Find the phrases of a query in folded text."""

from __future__ import annotations

import re
from functools import cached_property
from typing import TypeAlias

from app.search.query import GAP, MARK, Phrase, words

#: Characters after its stem of a word that is marked: `merg` of `merge`, `merging`.
_MAX_ENDING = 4

#: Start and end of a match, and the number of its phrase: 1 for the longest.
Match: TypeAlias = tuple[int, int, int]


class Matcher:
    """Finds phrases in folded text, for one search.

    `phrases` is their number, `longest` the words of the longest one, and `least` the characters of all phrases
    adjacent.
    """

    def __init__(self, phrases: tuple[Phrase, ...]) -> None:
        """Where several phrases match, the longest does."""
        longest_first = sorted(phrases, key=lambda phrase: -len(phrase.words))
        self._phrases = [(phrase, words(" ".join(phrase.words))) for phrase in longest_first]
        folded = [folded for _, folded in self._phrases]
        self.phrases = len(phrases)
        self.longest = max(map(len, folded))
        self.least = len(GAP.join(word for each in folded for word in each))
        starts = {word for phrase, each in self._phrases for word in (each[0], *phrase.stems)}
        # Where `merge` begins, `merg` begins, too.
        shortest = (each for each in starts if not any(each != it and each.startswith(it) for it in starts))
        self._starts = [GAP + each for each in shortest]
        #: The number of the single word that matches each word that was met; 0 for none.
        self._numbers: dict[str, int] = {}

    @property
    def best_score(self) -> tuple[int, float, int]:
        """The score that no passage exceeds: all phrases adjacent, in a text that has each of them once."""
        return self.phrases, self.phrases, -self.least

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """The phrases as groups of a pattern, the longest first."""
        choices = []
        for phrase, folded in self._phrases:
            exact = f"{f'{GAP}+'.join(map(_pattern, folded))}{f'[^{GAP}]*' if phrase.prefix else ''}"
            stems = (f"{_pattern(stem)}[^{GAP}]{{0,{_MAX_ENDING}}}" for stem in phrase.stems)
            choices.append(f"({'|'.join((exact, *stems))})")
        return re.compile(f"(?<![^{GAP}])(?:{'|'.join(choices)})(?![^{GAP}])")

    def matches(self, folded: str) -> list[Match]:
        """Return the matches from left to right, without overlap."""
        if MARK in folded:
            return [(*match.span(), match.lastindex or 0) for match in self.pattern.finditer(folded)]
        # As the pattern, which takes as long to compile as a hundred texts to search.
        starts = self._word_starts(folded)
        return self._phrases_at(starts, folded) if self.longest > 1 else self._words_at(starts, folded)

    def _word_starts(self, folded: str) -> list[int]:
        """Return the offsets of all words that start like a match."""
        spaced, offsets = GAP + folded, []
        for start in self._starts:
            at = spaced.find(start)
            while at >= 0:
                offsets.append(at)
                at = spaced.find(start, at + 1)
        return sorted(offsets) if len(self._starts) > 1 else offsets

    def _words_at(self, offsets: list[int], folded: str) -> list[Match]:
        numbers, found = self._numbers, []
        for at in offsets:
            end = folded.find(GAP, at)
            word = folded[at:end] if end >= 0 else folded[at:]
            number = numbers.get(word)
            if number is None:
                number = numbers[word] = self._number_of(word)
            if number:
                found.append((at, at + len(word), number))
        return found

    def _phrases_at(self, offsets: list[int], folded: str) -> list[Match]:
        end, found = 0, []
        for at in offsets:
            if at >= end and (match := self.pattern.match(folded, at)):
                end = match.end()
                found.append((at, end, match.lastindex or 0))
        return found

    def _number_of(self, word: str) -> int:
        for number, (phrase, folded) in enumerate(self._phrases, 1):
            if (
                word == folded[0]
                or (phrase.prefix and word.startswith(folded[0]))
                or any(word.startswith(stem) and len(word) <= len(stem) + _MAX_ENDING for stem in phrase.stems)
            ):
                return number
        return 0


def _pattern(word: str) -> str:
    """Return a pattern for a folded word, whose characters may have combining marks."""
    return f"{MARK}*".join(map(re.escape, word)) + f"{MARK}*"
