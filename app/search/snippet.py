"""The piece of a page that shows best why it was found, as plain text with the ranges to mark."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import merge
from itertools import islice
from typing import NamedTuple

from app.search.query import Unit
from app.search.tokens import GAP, MARK, fold, words

#: Characters of a snippet, ellipses not counted.
WIDTH = 240
#: Characters of a page looked at in one go, and in all: the text of one page may be a whole book.
_STRETCH = 50_000
_MAX_SCANNED = 1_000_000
#: Matches looked at in one stretch.
_MAX_MATCHES = 300

#: Put where text was left out; with no-break spaces, lest an ellipsis stand alone on a line.
_BEFORE = "…\N{NO-BREAK SPACE}"
_AFTER = "\N{NO-BREAK SPACE}…"

_SENTENCE_END = re.compile(r"[.!?…]\s+(?=\S)")


@dataclass(frozen=True, slots=True)
class Snippet:
    """Plain text, not escaped, and the (start, end) ranges of it that match, in order and apart."""

    text: str
    marks: tuple[tuple[int, int], ...] = ()

    @property
    def pieces(self) -> Iterator[tuple[str, bool]]:
        """The text in pieces with whether each one is marked; joined they are the text."""
        at = 0
        for start, end in self.marks:
            if at < start:
                yield self.text[at:start], False
            yield self.text[start:end], True
            at = end
        if at < len(self.text):
            yield self.text[at:], False


class _Match(NamedTuple):
    start: int
    end: int
    unit: int


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What units look like in folded text. Group `u<n>` of the pattern is the nth; each begins with one of `words`."""

    pattern: re.Pattern[str]
    words: frozenset[str]

    def matches(self, folded: str) -> Iterator[_Match]:
        """Yield the matches from left to right, none within another."""
        found = self.pattern.finditer(folded) if MARK in folded else self._matches(folded)
        for match in found:
            yield _Match(match.start(), match.end(), int((match.lastgroup or "u0")[1:]))

    def _matches(self, folded: str) -> Iterator[re.Match[str]]:
        """Yield what `finditer` would, in a fraction of the time: the pattern is tried where a first word stands."""
        end = 0
        for at in merge(*(_occurrences(word, folded) for word in self.words)):
            if at >= end and (match := self.pattern.match(folded, at)):
                end = match.end()
                yield match


def _occurrences(word: str, text: str) -> Iterator[int]:
    at = text.find(word)
    while at >= 0:
        yield at
        at = text.find(word, at + 1)


@dataclass(frozen=True, slots=True)
class _Cluster:
    """A stretch of a text that holds `distinct` of the units; `rarity` is higher where those are rare in the text."""

    start: int
    end: int
    distinct: int
    rarity: float = 0.0

    @property
    def merit(self) -> tuple[int, float, int]:
        return self.distinct, self.rarity, self.start - self.end


def best_snippet(texts: Sequence[str], units: tuple[Unit, ...], *, width: int = WIDTH) -> Snippet:
    """Cut the piece with the most different units closest together from the text that has it; the first among equals.

    Without any match the beginning of the last text that is not empty.
    """
    wanted = _wanted(units)
    found = [(cluster, text) for text in texts if (cluster := _best_cluster(text, wanted, len(units), width))]
    if found:
        cluster, text = max(found, key=lambda pair: pair[0].merit)
    else:
        text = next((text for text in reversed(texts) if text), "")
        cluster = _Cluster(0, 0, 0)
    cut = _cut(text, cluster, width)
    return Snippet(cut, _marks(cut, wanted))


def lines_with(text: str, units: tuple[Unit, ...]) -> tuple[str, ...]:
    """Return the lines of a text that have a match, in order."""
    wanted = _wanted(units)
    # Most often there is none; a phrase does not go on in the next line, though it looks so here.
    if not any(wanted.matches(fold(text))):
        return ()
    return tuple(line for line in text.splitlines() if any(wanted.matches(fold(line))))


def _marks(text: str, wanted: _Wanted) -> tuple[tuple[int, int], ...]:
    """Return the ranges of the matches; those with but a space between them are one."""
    marks: list[tuple[int, int]] = []
    for match in _matches(text, wanted):
        start = match.start
        if marks and text[marks[-1][1] : start] == " ":
            start = marks.pop()[0]
        marks.append((start, match.end))
    return tuple(marks)


@lru_cache(maxsize=64)
def _wanted(units: tuple[Unit, ...]) -> _Wanted:
    """Compile units, the longest first."""
    order = sorted(range(len(units)), key=lambda at: -len(units[at].words))
    choices = "|".join(f"(?P<u{at}>{_unit_pattern(units[at])})" for at in order)
    return _Wanted(
        re.compile(f"(?<![^{GAP}])(?:{choices})(?![^{GAP}])"), frozenset(_folded_words(unit)[0] for unit in units)
    )


def _folded_words(unit: Unit) -> list[str]:
    return [word for typed in unit.words for word in words(typed)]


def _unit_pattern(unit: Unit) -> str:
    spelled = (f"{MARK}*".join(map(re.escape, word)) + f"{MARK}*" for word in _folded_words(unit))
    return f"{GAP}+".join(spelled) + (f"[^{GAP}]*" if unit.prefix else "")


def _matches(text: str, wanted: _Wanted) -> list[_Match]:
    return list(islice(wanted.matches(fold(text)), _MAX_MATCHES))


def _best_cluster(text: str, wanted: _Wanted, units: int, width: int) -> _Cluster | None:
    best: _Cluster | None = None
    for offset in range(0, min(len(text), _MAX_SCANNED), _STRETCH):
        # A stretch reaches a little into the next one, lest a cluster on the border be missed.
        for cluster in _clusters(_matches(text[offset : offset + _STRETCH + width], wanted), width):
            if best is None or cluster.merit > best.merit:
                best = replace(cluster, start=cluster.start + offset, end=cluster.end + offset)
        if best is not None and best.distinct == units:
            break
    return best


def _clusters(matches: list[_Match], width: int) -> Iterator[_Cluster]:
    """Yield, for each match, the cluster that ends with it: no wider than `width`, no longer than it must be."""
    everywhere = Counter(match.unit for match in matches)
    inside: Counter[int] = Counter()
    left = 0
    for match in matches:
        inside[match.unit] += 1
        while match.end - matches[left].start > width or inside[matches[left].unit] > 1:
            if matches[left] is match:
                break
            inside[matches[left].unit] -= 1
            left += 1
        held = [unit for unit, count in inside.items() if count]
        yield _Cluster(matches[left].start, match.end, len(held), sum(1 / everywhere[unit] for unit in held))


def _cut(text: str, cluster: _Cluster, width: int) -> str:
    """Cut `width` characters around the cluster at white space, from the start of a sentence where one is near."""
    start = max(0, min(cluster.start - (width - (cluster.end - cluster.start)) // 3, len(text) - width))
    start = _start(text, min(start, cluster.start), cluster.start)
    end = _end(text, min(len(text), start + width), min(cluster.end, start + width))
    middle = " ".join(text[start:end].split())
    return (_BEFORE if start else "") + middle + (_AFTER if end < len(text) else "")


def _start(text: str, earliest: int, latest: int) -> int:
    if earliest == 0:
        return 0
    if sentence := _SENTENCE_END.search(text, earliest, latest + 1):
        return sentence.end()
    while earliest < latest and not text[earliest - 1].isspace():
        earliest += 1
    return earliest


def _end(text: str, latest: int, earliest: int) -> int:
    end = latest
    while earliest < end < len(text) and not text[end].isspace():
        end -= 1
    return end if end > earliest or end == len(text) or text[end].isspace() else latest
