"""Find parts of words of scripts without spaces, such as pairs of kana, inside of longer words of a folded text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from app.search.query import GAP, Phrase, words
from app.text.variants import is_unspaced, unspaced_parts_of

#: Start and end of a match, and the number of its phrase.
Match: TypeAlias = tuple[int, int, int]


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
        for start, part in sorted((at, each) for each in self._numbers for at in _offsets(folded, each)):
            end, number = start + len(part), self._numbers[part]
            if found and found[-1][1] > start:
                if found[-1][1] >= end:
                    continue
                first, _, before = found.pop()
                if first < start:
                    found.append((first, start, before))
            found.append((start, end, number))
        return found


def _offsets(folded: str, part: str) -> Iterator[int]:
    separated = not is_unspaced(part)
    at = folded.find(part)
    while at >= 0:
        if not separated or (_ends_word(folded[at - 1 : at]) and _ends_word(folded[at + len(part) :][:1])):
            yield at
        at = folded.find(part, at + 1)


def _ends_word(character: str) -> bool:
    """Return whether a word of another script ends at this character, or at the end of the text."""
    return not character or character == GAP or is_unspaced(character)
