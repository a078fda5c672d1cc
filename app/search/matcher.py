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
        #: Each phrase and its synonyms, which match as the phrase itself, with their folded words.
        self._phrases = [
            [(each, words(" ".join(each.words))) for each in (phrase, *phrase.synonyms)] for phrase in longest_first
        ]
        alternatives = [each for alternatives in self._phrases for each in alternatives]
        self.phrases = len(phrases)
        self.longest = max(len(folded) for _, folded in alternatives)
        self.least = len(GAP.join(word for (_, folded), *_ in self._phrases for word in folded))
        starts = {word for phrase, folded in alternatives for word in (folded[0], *phrase.stems)}
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
        groups = []
        for alternatives in self._phrases:
            choices = []
            for phrase, folded in alternatives:
                choices.append(f"{f'{GAP}+'.join(map(_pattern, folded))}{f'[^{GAP}]*' if phrase.prefix else ''}")
                choices += (f"{_pattern(stem)}[^{GAP}]{{0,{_MAX_ENDING}}}" for stem in phrase.stems)
            groups.append(f"({'|'.join(choices)})")
        return re.compile(f"(?<![^{GAP}])(?:{'|'.join(groups)})(?![^{GAP}])")

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
        for number, alternatives in enumerate(self._phrases, 1):
            if any(_matches(word, phrase, folded[0]) for phrase, folded in alternatives):
                return number
        return 0


def _matches(word: str, phrase: Phrase, folded: str) -> bool:
    """Return whether a word matches a phrase of one word."""
    return (
        word == folded
        or (phrase.prefix and word.startswith(folded))
        or any(word.startswith(stem) and len(word) <= len(stem) + _MAX_ENDING for stem in phrase.stems)
    )


def _pattern(word: str) -> str:
    """Return a pattern for a folded word, whose characters may have combining marks."""
    return f"{MARK}*".join(map(re.escape, word)) + f"{MARK}*"
