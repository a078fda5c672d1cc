"""Find the phrases of a query in folded text."""

from __future__ import annotations

import re
from functools import cached_property
from itertools import chain

from app.search.query import GAP, MARK, Phrase, words
from app.search.unspaced import Match, UnspacedParts, parts_in_text

#: Characters after its stem of a word that is marked: `merg` of `merge`, `merging`.
_MAX_ENDING = 4


class Matcher:
    """Finds phrases in folded text, for one search.

    `phrases` is their number, `longest` the words of the longest one, and `least` the characters of all phrases
    adjacent. A word of an unspaced script is as many phrases as it has parts, which match inside of words, too.
    """

    def __init__(self, phrases: tuple[Phrase, ...]) -> None:
        """Where several phrases match, the longest does."""
        self._phrases: list[list[tuple[Phrase, tuple[str, ...]]]] = []
        unspaced: dict[str, str] = {}
        for phrase in sorted(phrases, key=lambda phrase: -len(phrase.words)):
            # The phrase and its synonyms, which match as the phrase itself, with their folded words.
            alternatives = [(each, words(" ".join(each.words))) for each in (phrase, *phrase.synonyms)]
            separated = [(each, folded) for each, folded in alternatives if not parts_in_text(each)]
            if separated:
                self._phrases.append(separated)
            unspaced |= {part: folded[0] for each, folded in alternatives for part in parts_in_text(each)}
        self.phrases = len(self._phrases) + len(unspaced)
        self._parts = UnspacedParts({part: at for at, part in enumerate(unspaced, len(self._phrases) + 1)})
        alternatives = [*chain.from_iterable(self._phrases)]
        self.longest = max((len(folded) for _, folded in alternatives), default=1)
        typed = [word for (_, folded), *_ in self._phrases for word in folded]
        self.least = len(GAP.join([*typed, *map(self._parts.extent, dict.fromkeys(unspaced.values()))]))
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
        found = self._separated(folded) if self._phrases else []
        if not self._parts:
            return found
        ends, without_overlap = 0, []
        for match in sorted(found + self._parts.matches(folded)):
            if match[0] >= ends:
                without_overlap.append(match)
                ends = match[1]
        return without_overlap

    def _separated(self, folded: str) -> list[Match]:
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
        """Return the number of the first phrase that a word matches, where all phrases have one word; 0 for none."""
        for number, alternatives in enumerate(self._phrases, 1):
            for phrase, (folded, *_) in alternatives:
                if word == folded or (phrase.prefix and word.startswith(folded)):
                    return number
                if any(word.startswith(stem) and len(word) <= len(stem) + _MAX_ENDING for stem in phrase.stems):
                    return number
        return 0


def _pattern(word: str) -> str:
    """Return a pattern for a folded word, whose characters may have combining marks."""
    return f"{MARK}*".join(map(re.escape, word)) + f"{MARK}*"
