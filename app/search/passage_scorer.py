"""Find the passage of a text that matches a query best: most different phrases, closest together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from app.search.matcher import Match, Matcher
from app.text.lines import END, SENTENCE
from app.text.words import fold

#: Characters of a snippet, ellipses not counted.
WIDTH = 240
#: Characters scanned for one passage, and of a page in all: the text of one page may be a whole book.
_STRETCH = 50_000
MAX_SCANNED = 1_000_000
#: Characters folded first, and then twice as many each time: the best passage is often among the first.
_PIECE = 2_000
#: Matches compared in one stretch.
MAX_MATCHES = 300


@dataclass(frozen=True, slots=True)
class Passage:
    """A range of a text. Its score: number of different phrases, their rarity in the text, and its negative length."""

    start: int
    end: int
    score: tuple[int, float, int] = (0, 0.0, 0)


def best_passage(text: str, matcher: Matcher, *, first_will_do: bool, outside: list[Match]) -> Passage | None:
    """Return the best passage of the sentences of a text; the first matches of its other lines are added to `outside`.

    With `first_will_do`, the first one with all phrases adjacent is enough. Its score may then be too low.
    """
    best: Passage | None = None
    for offset in range(0, min(len(text), MAX_SCANNED), _STRETCH):
        # A stretch overlaps the next one by the width of a snippet, so that no passage is split between the two.
        stretch = _matches(text, matcher, offset, min(len(text), offset + _STRETCH + WIDTH))
        matches = islice(_in_sentences(text, stretch, outside), MAX_MATCHES)
        passage = densest(until_adjacent(matches, matcher) if first_will_do else list(matches))
        if passage and (best is None or passage.score > best.score):
            best = passage
        if best and best.score[0] == matcher.phrase_count:
            break
    return best


def _matches(text: str, matcher: Matcher, at: int, end: int) -> Iterator[Match]:
    """Yield the matches between two offsets of a text, folding it piece by piece as the caller iterates."""
    size = _PIECE
    while at < end:
        folded = fold(text[at : min(at + size, end)])
        complete = len(folded)
        if at + complete < end:
            # A phrase may continue after this piece, so its last words are left for the next one.
            parts = folded.rsplit(maxsplit=matcher.most_words)
            complete = len(parts[0]) if len(parts) > matcher.most_words else 0
        after = complete
        for start, stop, phrase in matcher.matches(folded):
            if start >= complete:
                break
            yield at + start, at + stop, phrase
            after = stop
        at += max(complete, after)
        # A piece with too few complete words is scanned again together with the text that follows it.
        size *= 2


def _in_sentences(text: str, matches: Iterable[Match], outside: list[Match]) -> Iterator[Match]:
    """Yield the matches within lines of sentences; add the first of those within other lines to `outside`."""
    stop = 0
    is_sentence = False
    for match in matches:
        if match[0] >= stop:
            line = END.search(text, match[0])
            stop = line.start() if line else len(text)
            is_sentence = line is None or line[0] == SENTENCE
        if match[1] > stop:
            continue
        if is_sentence:
            yield match
        elif len(outside) < MAX_MATCHES and (not outside or match > outside[-1]):  # Stretches overlap.
            outside.append(match)


def until_adjacent(matches: Iterable[Match], matcher: Matcher) -> list[Match]:
    """Return the first adjacent matches of all phrases, which no passage exceeds; otherwise all matches."""
    seen: list[Match] = []
    for match in matches:
        seen.append(match)
        if len(seen) < matcher.phrase_count or match[1] - seen[-matcher.phrase_count][0] != matcher.adjacent_length:
            continue
        last = seen[-matcher.phrase_count :]
        if len({phrase for _, _, phrase in last}) == matcher.phrase_count:
            return last
    return seen


def densest(matches: Sequence[Match]) -> Passage | None:
    """Return the best passage of at most WIDTH characters that begins and ends with a match."""
    rarity = {phrase: 1 / count for phrase, count in Counter([phrase for _, _, phrase in matches]).items()}
    if len(rarity) == 1:
        start, end, _ = min(matches, key=lambda match: match[1] - match[0])
        return Passage(start, end, (1, 1 / len(matches), start - end))
    inside = dict.fromkeys(rarity, 0)
    different = 0
    span, best = (0, 0), (0, 0.0, 0)
    left = 0
    for at, (_, end, phrase) in enumerate(matches):
        different += not inside[phrase]
        inside[phrase] += 1
        while left < at and (end - matches[left][0] > WIDTH or inside[matches[left][2]] > 1):
            inside[matches[left][2]] -= 1
            different -= not inside[matches[left][2]]
            left += 1
        if different < best[0]:
            continue
        start = matches[left][0]
        score = different, sum([rarity[phrase] for phrase, count in inside.items() if count]), start - end
        if score > best:
            span, best = (start, end), score
    return Passage(*span, best) if matches else None
