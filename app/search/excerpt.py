"""Cut an excerpt out of a text: whole sentences around a passage, or a line with the sentence that belongs to it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from app.search.passage_scorer import WIDTH, Passage
from app.text.lines import END, HEADING, OTHER, SENTENCE
from app.text.variants import is_unspaced
from app.text.words import words

#: In place of omitted text; the no-break space keeps an ellipsis on the line of its word.
_BEFORE = "…\N{NO-BREAK SPACE}"
_AFTER = "\N{NO-BREAK SPACE}…"

#: Characters after which a snippet ends with a sentence, rather than within the next one.
_ENOUGH = WIDTH // 2
#: Neither in `e.g.` nor before a small letter. A pattern is searched for fastest if it begins with a set of characters.
_SENTENCE_END = re.compile(
    r"""[.!?…。！？](?:(?:(?<=\w\w[.!?…])|(?<=[)\]"'”’»][.!?…]))["'”’»)\]]*\s+(?=[^\sa-z])|(?<=[。！？])\s*(?=\S))"""
)
#: Characters up to which sentences that follow other lines are added.
_SHORT = 60
#: Other lines between a line and the sentence that belongs to it.
_MAX_BETWEEN = 3


class _Line(NamedTuple):
    start: int
    stop: int
    end: str


def _lines(text: str, at: int) -> Iterator[_Line]:
    """Yield the lines of a text, the one at an offset first. The last one may have no end: then it is a sentence."""
    start = at
    if not END.match(text, max(0, at - 1), at):  # Else the nearest end of another kind may be far away.
        start = 1 + max(text.rfind(end, 0, at) for end in (SENTENCE, HEADING, OTHER))
    while start < len(text):
        found = END.search(text, max(start, at))
        line = _Line(start, found.start(), found[0]) if found else _Line(start, len(text), SENTENCE)
        yield line
        start = line.stop + 1


def line_at(text: str, at: int) -> str:
    """Return the line at an offset."""
    line = next(_lines(text, at))
    return text[line.start : line.stop]


def next_sentence(text: str, at: int, end: str = OTHER) -> int | None:
    """Return where the first line of sentences begins, if few other lines precede it."""
    for number, line in enumerate(islice(_lines(text, at), _MAX_BETWEEN + 1)):
        if line.end == SENTENCE:
            return line.start
        if line.end == HEADING or (end != HEADING and number):
            break
    return None


def cut_sentences(text: str, passage: Passage) -> str:
    """Return WIDTH characters around the passage, cut between words, or from the start of a sentence nearby."""
    line = next(_lines(text, passage.start), _Line(0, 0, SENTENCE))
    start = max(line.start, passage.start - (WIDTH - (passage.end - passage.start)) // 3)
    start = min(start, passage.start)
    earliest = max(line.start, min(passage.end - WIDTH, passage.start))
    ends = [each.end() for each in _SENTENCE_END.finditer(text, earliest, passage.start + 1)]
    starts = [line.start] * (earliest == line.start) + ends
    if starts:
        start = next((each for each in starts if each >= start), starts[-1])
        return sentences(text, start, passage.end)
    while start < passage.start and not (text[start - 1].isspace() or is_unspaced(text[start])):
        start += 1
    return _BEFORE + sentences(text, start, passage.end)


def sentences(text: str, start: int = 0, least: int = 0, *, width: int = WIDTH, has_gaps: bool = True) -> str:
    """Return at most `width` characters of sentences from an offset on, and at least those up to `least`.

    Other lines between them are left out. After the line of `least`, a heading ends the text, and without gaps any.
    """
    shown: list[str] = []
    gap, left = "", width
    while start < len(text) and left > 0:
        stop = text.find(SENTENCE, start)
        if stop < 0 and text[-1] in (HEADING, OTHER):
            break
        stop = stop if stop >= 0 else len(text)
        at = 1 + max(text.rfind(HEADING, start, stop), text.rfind(OTHER, start, stop))
        if shown and at > start:
            is_end = not has_gaps or left < WIDTH - _SHORT or text.find(HEADING, start, at) >= 0
            if start >= least and is_end:
                break
            gap = "… "
            left -= len(gap)
        at = max(at, start)
        end, after = _stop(text, at, stop, least=least, left=left, is_first=not shown)
        if end == at:
            break
        if line := " ".join(text[at:end].split()):
            shown.append(gap + line)
            gap = ""
        left -= end - at + 1
        if after or end < stop:
            return " ".join(shown) + after
        start = stop + 1
    return " ".join(shown)


def _stop(text: str, at: int, stop: int, *, least: int, left: int, is_first: bool) -> tuple[int, str]:
    """Return where a line ends of which `left` characters are shown, and what is shown in place of the rest."""
    if stop - at <= left:
        return stop, ""
    latest = at + max(left, 0)
    ends = [each.end() for each in _SENTENCE_END.finditer(text, max(at, least - 1), latest + 1)]
    if ends and (ends[-1] - at >= _ENOUGH or not is_first):
        return ends[-1], ""
    if not is_first and at >= least:
        return at, ""
    end = latest
    while max(at, least) < end and not (text[end].isspace() or is_unspaced(text[end])):
        end -= 1
    if end <= least and not (text[end].isspace() or is_unspaced(text[end])):
        end = latest
    return end, _AFTER


def cut_lines(text: str, passage: Passage, opening: str) -> str:
    """Return the line of the passage, if it is short, with the sentence that follows it or begins the page."""
    line = next(_lines(text, passage.start))
    matched = " ".join(text[line.start : line.stop].split()) if line.stop - line.start <= _ENOUGH else ""
    left = WIDTH - len(matched) - len(" … ")
    following = next_sentence(text, line.stop + 1, line.end)
    first = "" if following is not None else sentences(opening, width=left)
    after = "" if following is None else sentences(text, following, width=left, has_gaps=False)
    if first or after:
        return " … ".join(filter(None, (first.removesuffix(_AFTER), matched, after)))
    start = line.start if passage.end - line.start <= WIDTH else passage.start
    stop, omitted = _stop(text, start, len(text), least=passage.end, left=WIDTH, is_first=True)
    with_words = filter(words, END.split(text[start:stop]))
    return " ".join(" ".join(with_words).split()) + omitted
