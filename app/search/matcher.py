"""Find the phrases of a query in folded text.

In scripts without spaces, parts of words such as pairs of kana are found inside of longer words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from itertools import chain
from typing import TypeAlias

from app.search.query import Phrase
from app.text.variants import is_unspaced, unspaced_parts_of
from app.text.words import GAP, fold, spelled_out, words

#: Start and end of a match, and the number of its phrase.
Match: TypeAlias = tuple[int, int, int]

#: Characters after its stem of a word that is marked: `merg` of `merge`, `merging`.
_MAX_ENDING = 4


class Matcher:
    """Finds phrases in folded text, for one search.

    `phrase_count` is their number, `most_words` the words of the longest one, and `adjacent_length` the characters of
    all phrases adjacent. A word of an unspaced script is as many phrases as it has parts, which match inside of words,
    too.
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
        self.phrase_count = len(self._phrases) + len(unspaced)
        self._parts = UnspacedParts({part: at for at, part in enumerate(unspaced, len(self._phrases) + 1)})
        alternatives = [*chain.from_iterable(self._phrases)]
        self.most_words = max((len(folded) for _, folded in alternatives), default=1)
        typed = [word for (_, folded), *_ in self._phrases for word in folded]
        self.adjacent_length = len(GAP.join([*typed, *map(self._parts.extent, dict.fromkeys(unspaced.values()))]))
        starts = {word for phrase, folded in alternatives for word in (folded[0], *phrase.stems)}
        # Where `merge` begins, `merg` begins, too.
        shortest = (each for each in starts if not any(each != it and each.startswith(it) for it in starts))
        self._starts = [GAP + each for each in shortest]
        #: The number of the single word that matches each word that was met; 0 for none.
        self._numbers: dict[str, int] = {}
        self._texts: dict[str, list[Match]] = {}

    @property
    def best_score(self) -> tuple[int, float, int]:
        """The score that no passage exceeds: all phrases adjacent, in a text that has each of them once."""
        return self.phrase_count, self.phrase_count, -self.adjacent_length

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """The phrases as groups of a pattern, the longest first."""
        groups = []
        for alternatives in self._phrases:
            choices = []
            for phrase, folded in alternatives:
                choices.append(f"{f'{GAP}+'.join(folded)}{f'[^{GAP}]*' if phrase.prefix else ''}")
                choices += (f"{stem}[^{GAP}]{{0,{_MAX_ENDING}}}" for stem in phrase.stems)
            groups.append(f"({'|'.join(choices)})")
        return re.compile(f"(?<![^{GAP}])(?:{'|'.join(groups)})(?![^{GAP}])")

    def matches(self, folded: str) -> list[Match]:
        """Return the matches from left to right, without overlap."""
        spelled, offset = spelled_out(folded)
        if spelled is not folded:
            return [(offset(start), offset(end), number) for start, end, number in self.matches(spelled)]
        found = self._separated(folded) if self._phrases else []
        if not self._parts:
            return found
        ends, without_overlap = 0, []
        for match in sorted(found + self._parts.matches(folded)):
            if match[0] >= ends:
                without_overlap.append(match)
                ends = match[1]
        return without_overlap

    def in_text(self, text: str) -> list[Match]:
        """Return the matches of a short text, which is folded once for one search."""
        if (found := self._texts.get(text)) is None:
            found = self._texts[text] = self.matches(fold(text))
        return found

    def _separated(self, folded: str) -> list[Match]:
        # The offsets of all words that start like a match.
        spaced, offsets = GAP + folded, []
        for start in self._starts:
            at = spaced.find(start)
            while at >= 0:
                offsets.append(at)
                at = spaced.find(start, at + 1)
        if len(self._starts) > 1:
            offsets.sort()
        if self.most_words == 1:
            # Without the pattern, which takes as long to compile as a hundred texts to search.
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


def parts_in_text(phrase: Phrase) -> tuple[str, ...]:
    """Return the parts of a phrase that is one word of an unspaced script, all of it if it is quoted; else nothing."""
    folded = words(" ".join(phrase.words))
    if phrase.symbol or len(folded) > 1 or not any(map(is_unspaced, folded)):
        return ()
    return folded if phrase.quoted else unspaced_parts_of(folded[0]) or folded


class UnspacedParts:
    """Finds parts, given with the numbers of their phrases. A part of another script matches only between others."""

    def __init__(self, numbers: Mapping[str, int]) -> None:
        """Without parts it finds nothing, and is false."""
        self._numbers = numbers

    def __bool__(self) -> bool:
        return bool(self._numbers)

    def extent(self, word: str) -> str:
        """Return the word from its first part to its last one."""
        found = self.matches(word)
        return word[found[0][0] : found[-1][1]] if found else ""

    def matches(self, folded: str) -> list[Match]:
        """Return the matches from left to right, without overlap: of two that share a character, the second has it."""
        found: list[Match] = []
        places: list[tuple[int, str]] = []
        for part in self._numbers:
            is_own_script = is_unspaced(part)
            at = folded.find(part)
            while at >= 0:
                after = at + len(part)
                if is_own_script or (_ends_word(folded[at - 1 : at]) and _ends_word(folded[after : after + 1])):
                    places.append((at, part))
                at = folded.find(part, at + 1)
        for start, part in sorted(places):
            end, number = start + len(part), self._numbers[part]
            if found and found[-1][1] > start:
                if found[-1][1] >= end:
                    continue
                first, _, before = found.pop()
                if first < start:
                    found.append((first, start, before))
            found.append((start, end, number))
        return found


def _ends_word(character: str) -> bool:
    """Return whether a word of another script ends at this character, or at the end of the text."""
    return not character or character == GAP or is_unspaced(character)
