"""The piece of a page that shows best why it was found, as plain text with the ranges to mark."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapify, heappop, heapreplace
from itertools import accumulate, islice
from typing import TypeAlias

from app.search.query import Unit
from app.search.tokens import GAP, MARK, fold, words

#: Characters of a snippet, ellipses not counted.
WIDTH = 240
#: Characters of a page looked at in one go, and in all: the text of one page may be a whole book.
_STRETCH = 50_000
_MAX_SCANNED = 1_000_000
#: Characters folded at a time: often the first few show all there is to show.
_PIECE = 4_000
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


#: Start and end of a match, and the number of the group of the pattern, which stands for its unit.
_Match: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What units look like in folded text: a group of the pattern each, which begins with one of `words`.

    There are `units` of them, the longest has `longest` words. Side by side they take up `least` characters, or more.
    """

    pattern: re.Pattern[str]
    words: frozenset[str]
    units: int
    longest: int
    least: int

    @property
    def best_merit(self) -> tuple[int, float, int]:
        """The merit that no cluster exceeds: all units side by side in a text that has each of them once."""
        return self.units, self.units, -self.least

    def matches(self, folded: str) -> Iterator[_Match]:
        """Yield the matches from left to right, none within another."""
        if MARK in folded:
            yield from ((*match.span(), match.lastindex or 0) for match in self.pattern.finditer(folded))
            return
        # As `finditer`, in a fraction of the time: the pattern is tried where a first word stands.
        end = 0
        for at in _occurrences(self.words, folded):
            if at >= end and (match := self.pattern.match(folded, at)):
                end = match.end()
                yield at, end, match.lastindex or 0


def _occurrences(words: Iterable[str], text: str) -> Iterator[int]:
    """Yield where a text has one of the words, from left to right."""
    nearest = [(at, word) for word in words if (at := text.find(word)) >= 0]
    heapify(nearest)
    while nearest:
        at, word = nearest[0]
        yield at
        if (following := text.find(word, at + 1)) >= 0:
            heapreplace(nearest, (following, word))
        else:
            heappop(nearest)


@dataclass(frozen=True, slots=True)
class _Cluster:
    """A stretch of a text, and how well it shows what was found.

    The merit is the number of different units, how rare those are in the text, and the length, negative.
    """

    start: int
    end: int
    merit: tuple[int, float, int] = (0, 0.0, 0)


def best_snippet(texts: Sequence[str], units: tuple[Unit, ...], *, width: int = WIDTH) -> Snippet:
    """Cut the piece with the most different units closest together from the text that has it; the first among equals.

    Without any match the beginning of the last text that is not empty.
    """
    wanted = _wanted(units)
    found: list[tuple[_Cluster, str]] = []
    for text in texts:
        # The merit of a cluster counts only where there is one in another text.
        if cluster := _best_cluster(text, wanted, width, first_will_do=not found and text is texts[-1]):
            found.append((cluster, text))
            if cluster.merit >= wanted.best_merit:
                break
    if found:
        cluster, text = max(found, key=lambda pair: pair[0].merit)
    else:
        text = next((text for text in reversed(texts) if text), "")
        cluster = _Cluster(0, 0)
    cut = _cut(text, cluster, width)
    return Snippet(cut, _marks(cut, wanted))


def lines_with(text: str, units: tuple[Unit, ...]) -> tuple[str, ...]:
    """Return the lines of a text that have a match, in order."""
    wanted = _wanted(units)
    folded = fold(text)
    # Most often there is none; a phrase does not go on in the next line, though it looks so here.
    if not any(wanted.matches(folded)):
        return ()
    ends = accumulate(map(len, text.splitlines(keepends=True)), initial=0)
    lines = zip(text.splitlines(), ends, strict=False)
    return tuple(line for line, at in lines if any(wanted.matches(folded[at : at + len(line)])))


def _marks(text: str, wanted: _Wanted) -> tuple[tuple[int, int], ...]:
    """Return the ranges of the matches; those with but a space between them are one."""
    marks: list[tuple[int, int]] = []
    for start, end, _ in islice(wanted.matches(fold(text)), _MAX_MATCHES):
        first = marks.pop()[0] if marks and text[marks[-1][1] : start] == " " else start
        marks.append((first, end))
    return tuple(marks)


@lru_cache(maxsize=64)
def _wanted(units: tuple[Unit, ...]) -> _Wanted:
    """Compile units, the longest first."""
    choices = "|".join(f"({_unit_pattern(unit)})" for unit in sorted(units, key=lambda unit: -len(unit.words)))
    spelled = [_folded_words(unit) for unit in units]
    return _Wanted(
        pattern=re.compile(f"(?<![^{GAP}])(?:{choices})(?![^{GAP}])"),
        words=frozenset(first for first, *_ in spelled),
        units=len(units),
        longest=max(map(len, spelled)),
        least=len(GAP.join(word for unit in spelled for word in unit)),
    )


def _folded_words(unit: Unit) -> list[str]:
    return [word for typed in unit.words for word in words(typed)]


def _unit_pattern(unit: Unit) -> str:
    spelled = (f"{MARK}*".join(map(re.escape, word)) + f"{MARK}*" for word in _folded_words(unit))
    return f"{GAP}+".join(spelled) + (f"[^{GAP}]*" if unit.prefix else "")


def _best_cluster(text: str, wanted: _Wanted, width: int, *, first_will_do: bool) -> _Cluster | None:
    """Return the best cluster of a text; `first_will_do`: the merit of one that has all units need not be true."""
    best: _Cluster | None = None
    for offset in range(0, min(len(text), _MAX_SCANNED), _STRETCH):
        # A stretch reaches a little into the next one, lest a cluster on the border be missed.
        stretch = _matches(text, wanted, offset, min(len(text), offset + _STRETCH + width))
        matches = islice(stretch, _MAX_MATCHES)
        cluster = _densest(_until_side_by_side(matches, wanted) if first_will_do else list(matches), width)
        if cluster and (best is None or cluster.merit > best.merit):
            best = cluster
        if best and best.merit[0] == wanted.units:
            break
    return best


def _matches(text: str, wanted: _Wanted, at: int, end: int) -> Iterator[_Match]:
    """Yield the matches between two places of a text, which is folded piece by piece as they are asked for."""
    size = _PIECE
    while at < end:
        folded = fold(text[at : min(at + size, end)])
        sure = len(folded) if at + len(folded) == end else _before_last_words(folded, wanted.longest)
        after = sure
        for start, stop, unit in wanted.matches(folded):
            if start >= sure:
                break
            yield at + start, at + stop, unit
            after = max(sure, stop)
        at += after
        # A piece that is all one word, or has too few, is looked at again with more that follows.
        size = _PIECE if after else 2 * size


def _before_last_words(folded: str, count: int) -> int:
    """Return where the last words of a text begin, and the gap before them; 0 where it has no others."""
    parts = folded.rsplit(maxsplit=count)
    return len(parts[0]) if len(parts) > count else 0


def _until_side_by_side(matches: Iterable[_Match], wanted: _Wanted) -> list[_Match]:
    """Return the first matches of all units that stand side by side, for no cluster is better; or else all matches."""
    found: list[_Match] = []
    for match in matches:
        found.append(match)
        last = found[-wanted.units :]
        if match[1] - last[0][0] == wanted.least and len({unit for _, _, unit in last}) == wanted.units:
            return last
    return found


def _densest(matches: Sequence[_Match], width: int) -> _Cluster | None:
    """Return the best of the clusters that end with a match: no wider than `width`, no longer than they must be."""
    rarity = {unit: 1 / count for unit, count in Counter(unit for _, _, unit in matches).items()}
    inside = dict.fromkeys(rarity, 0)
    place, best = (0, 0), (0, 0.0, 0)
    left = 0
    for at, (_, end, unit) in enumerate(matches):
        inside[unit] += 1
        while left < at and (end - matches[left][0] > width or inside[matches[left][2]] > 1):
            inside[matches[left][2]] -= 1
            left += 1
        start = matches[left][0]
        held = [rarity[unit] for unit, count in inside.items() if count]
        merit = len(held), sum(held), start - end
        if merit > best:
            place, best = (start, end), merit
    return _Cluster(*place, best) if matches else None


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
