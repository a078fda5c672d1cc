"""Cut the passage that shows best why a page matches, as plain text with the ranges to mark."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, islice
from typing import NamedTuple

from app.search.matcher import Match, Matcher
from app.text.lines import END, HEADING, OTHER, SENTENCE
from app.text.titles import names_in
from app.text.variants import is_unspaced
from app.text.words import fold, words

#: Characters of a snippet, ellipses not counted.
WIDTH = 240
#: Characters scanned for one passage, and of a page in all: the text of one page may be a whole book.
_STRETCH = 50_000
MAX_SCANNED = 1_000_000
#: Characters folded first, and then twice as many each time: the best passage is often among the first.
_PIECE = 2_000
#: Matches compared in one stretch.
_MAX_MATCHES = 300

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
#: Characters that may follow a name up to the end of its line: a signature is long.
_MAX_SIGNATURE = 600
_IN_WORD = re.compile(r"[\w-]")
#: Other lines between a line and the sentence that belongs to it.
_MAX_BETWEEN = 3


@dataclass(frozen=True, slots=True)
class Snippet:
    """Plain text, not escaped, and the (start, end) ranges that match, in order and without overlap."""

    text: str
    marks: tuple[tuple[int, int], ...] = ()

    @property
    def pieces(self) -> Iterator[tuple[str, bool]]:
        """The text in consecutive pieces, each with whether it is marked."""
        at = 0
        for start, end in self.marks:
            if at < start:
                yield self.text[at:start], False
            yield self.text[start:end], True
            at = end
        if at < len(self.text):
            yield self.text[at:], False


@dataclass(frozen=True, slots=True)
class _Passage:
    """A range of a text. Its score: number of different phrases, their rarity in the text, and its negative length."""

    start: int
    end: int
    score: tuple[int, float, int] = (0, 0.0, 0)


def best_snippet(texts: Sequence[str], matcher: Matcher, *, title: str = "") -> Snippet:
    """Return the sentences with the most different phrases, closest together; the first of equal passages.

    Lines of a text end as in app/text/lines.py. Without a match in a sentence, return the other lines that match best,
    except parts of the title, with a sentence. Without any match, return the first sentences, or else lines.
    """
    passages: list[tuple[_Passage, str]] = []
    outside: list[list[Match]] = []
    for text in texts:
        outside.append([])
        # The last text needs no exact score if no other text has a passage to compare it with.
        first_will_do = not passages and text is texts[-1]
        if passage := _best_passage(text, matcher, first_will_do=first_will_do, outside=outside[-1]):
            passages.append((passage, text))
            if passage.score >= matcher.best_score:
                break
    if passages:
        passage, text = max(passages, key=lambda pair: pair[0].score)
        return _snippet(_cut(text, passage), matcher)
    opening = next((text for text in texts if text), "")
    shown = names_in(title)
    for text, matches in zip(texts, outside, strict=True):
        unshown = (match for match in matches if _line_at(text, match[0]) not in shown)
        if passage := _densest(_until_adjacent(unshown, matcher)):
            return _snippet(_cut_lines(text, passage, opening), matcher)
    return _snippet(_sentences(opening) or (opening and _cut_lines(opening, _Passage(0, 0), "")), matcher)


def snippet_of_section(texts: Sequence[str], heading: str, matcher: Matcher, *, title: str) -> Snippet:
    """Return the first sentences after a heading of the last text, or the best ones of a page if these say more."""
    paragraph = first_paragraph(texts[-1], heading, matcher)
    if paragraph is None:
        return best_snippet(texts, matcher, title=title)
    found = phrases_in(paragraph.text, matcher) | phrases_in(heading, matcher)
    if len(found) == matcher.phrases:
        return paragraph
    best = best_snippet(texts, matcher, title=title)
    return best if len(phrases_in(best.text, matcher)) > len(found) else paragraph


def first_paragraph(body: str, heading: str, matcher: Matcher) -> Snippet | None:
    """Return the first sentences after the line that is a heading, or a name with its signature; None without one."""
    is_called = heading.endswith("()")
    name = heading.removesuffix("()").rstrip().rpartition(".")[2] if is_called else heading
    found = [
        # HEADING is less than OTHER. Of equal lines, the first one counts.
        (is_called and not has_signature, end[0], start)
        for has_signature, end in _lines_with(body, name)
        if (start := _next_sentence(body, end.end(), end[0])) is not None
    ]
    return _snippet(_sentences(body, min(found)[2], has_gaps=False), matcher) if found else None


def _lines_with(body: str, name: str) -> Iterator[tuple[bool, re.Match[str]]]:
    """Yield whether a signature follows a name, and the end of its line, for each line that is not of sentences.

    A pattern of each name would take longer to compile than the text to search.
    """
    at = 0
    end = END.search(body) if name else None
    while end and (at := body.find(name, at)) >= 0:
        after = at + len(name)
        if end.start() < after:  # A line may have the name many times, and its end is searched once.
            end = END.search(body, after)
        elif end[0] == SENTENCE:
            at = end.end()
        elif end.start() - after > _MAX_SIGNATURE:
            at = end.start() - _MAX_SIGNATURE - len(name)
        elif _IN_WORD.match(body, after) or (at and _IN_WORD.match(body, at - 1)):
            at += 1
        else:
            yield body.startswith(("(", " ("), after), end
            at = end.end()


def _next_sentence(text: str, at: int, end: str = OTHER) -> int | None:
    """Return where the first line of sentences begins, if few other lines precede it."""
    for number, line in enumerate(islice(_lines(text, at), _MAX_BETWEEN + 1)):
        if line.end == SENTENCE:
            return line.start
        if line.end == HEADING or (end != HEADING and number):
            break
    return None


def _snippet(text: str, matcher: Matcher) -> Snippet:
    """Return a snippet with the ranges that match; those with nothing but a space between them are one."""
    marks: list[tuple[int, int]] = []
    for start, end, _ in matcher.in_text(text)[:_MAX_MATCHES]:
        first = marks.pop()[0] if marks and text[marks[-1][1] : start] in {"", " "} else start
        marks.append((first, end))
    return Snippet(text, tuple(marks))


def phrases_in(text: str, matcher: Matcher) -> set[int]:
    """Return the numbers of the phrases that match a text."""
    return {phrase for _, _, phrase in matcher.in_text(text)}


def matching_lines(text: str, matcher: Matcher) -> tuple[str, ...]:
    """Return the lines of a text that match, in order."""
    folded = fold(text)
    # Most texts have no match at all.
    matches = matcher.matches(folded)
    if not matches:
        return ()
    lines = text.splitlines()
    starts = list(accumulate(map(len, text.splitlines(keepends=True)), initial=0))
    spans = (range(bisect_right(starts, start) - 1, bisect_right(starts, end - 1)) for start, end, _ in matches)
    # A phrase across two lines matches here, but in neither of them.
    return tuple(
        lines[at]
        for at in sorted(set(chain.from_iterable(spans)))
        if matcher.matches(folded[starts[at] : starts[at] + len(lines[at])])
    )


def _best_passage(text: str, matcher: Matcher, *, first_will_do: bool, outside: list[Match]) -> _Passage | None:
    """Return the best passage of the sentences of a text; the first matches of its other lines are added to `outside`.

    With `first_will_do`, the first one with all phrases adjacent is enough. Its score may then be too low.
    """
    best: _Passage | None = None
    for offset in range(0, min(len(text), MAX_SCANNED), _STRETCH):
        # A stretch overlaps the next one by the width of a snippet, so that no passage is split between the two.
        stretch = _matches(text, matcher, offset, min(len(text), offset + _STRETCH + WIDTH))
        matches = islice(_in_sentences(text, stretch, outside), _MAX_MATCHES)
        passage = _densest(_until_adjacent(matches, matcher) if first_will_do else list(matches))
        if passage and (best is None or passage.score > best.score):
            best = passage
        if best and best.score[0] == matcher.phrases:
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
            parts = folded.rsplit(maxsplit=matcher.longest)
            complete = len(parts[0]) if len(parts) > matcher.longest else 0
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
        elif len(outside) < _MAX_MATCHES and (not outside or match > outside[-1]):  # Stretches overlap.
            outside.append(match)


def _line_at(text: str, at: int) -> str:
    line = next(_lines(text, at))
    return text[line.start : line.stop]


def _until_adjacent(matches: Iterable[Match], matcher: Matcher) -> list[Match]:
    """Return the first adjacent matches of all phrases, which no passage exceeds; otherwise all matches."""
    seen: list[Match] = []
    for match in matches:
        seen.append(match)
        if len(seen) < matcher.phrases or match[1] - seen[-matcher.phrases][0] != matcher.least:
            continue
        last = seen[-matcher.phrases :]
        if len({phrase for _, _, phrase in last}) == matcher.phrases:
            return last
    return seen


def _densest(matches: Sequence[Match]) -> _Passage | None:
    """Return the best passage of at most WIDTH characters that begins and ends with a match."""
    rarity = {phrase: 1 / count for phrase, count in Counter([phrase for _, _, phrase in matches]).items()}
    if len(rarity) == 1:
        start, end, _ = min(matches, key=lambda match: match[1] - match[0])
        return _Passage(start, end, (1, 1 / len(matches), start - end))
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
    return _Passage(*span, best) if matches else None


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


def _cut(text: str, passage: _Passage) -> str:
    """Return WIDTH characters around the passage, cut between words, or from the start of a sentence nearby."""
    line = next(_lines(text, passage.start), _Line(0, 0, SENTENCE))
    start = max(line.start, passage.start - (WIDTH - (passage.end - passage.start)) // 3)
    start = min(start, passage.start)
    earliest = max(line.start, min(passage.end - WIDTH, passage.start))
    ends = [each.end() for each in _SENTENCE_END.finditer(text, earliest, passage.start + 1)]
    starts = [line.start] * (earliest == line.start) + ends
    if starts:
        start = next((each for each in starts if each >= start), starts[-1])
        return _sentences(text, start, passage.end)
    while start < passage.start and not (text[start - 1].isspace() or is_unspaced(text[start])):
        start += 1
    return _BEFORE + _sentences(text, start, passage.end)


def _sentences(text: str, start: int = 0, least: int = 0, *, width: int = WIDTH, has_gaps: bool = True) -> str:
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
    sentences = [each.end() for each in _SENTENCE_END.finditer(text, max(at, least - 1), latest + 1)]
    if sentences and (sentences[-1] - at >= _ENOUGH or not is_first):
        return sentences[-1], ""
    if not is_first and at >= least:
        return at, ""
    end = latest
    while max(at, least) < end and not (text[end].isspace() or is_unspaced(text[end])):
        end -= 1
    if end <= least and not (text[end].isspace() or is_unspaced(text[end])):
        end = latest
    return end, _AFTER


def _cut_lines(text: str, passage: _Passage, opening: str) -> str:
    """Return the line of the passage, if it is short, with the sentence that follows it or begins the page."""
    line = next(_lines(text, passage.start))
    matched = " ".join(text[line.start : line.stop].split()) if line.stop - line.start <= _ENOUGH else ""
    left = WIDTH - len(matched) - len(" … ")
    following = _next_sentence(text, line.stop + 1, line.end)
    first = "" if following is not None else _sentences(opening, width=left)
    after = "" if following is None else _sentences(text, following, width=left, has_gaps=False)
    if first or after:
        return " … ".join(filter(None, (first.removesuffix(_AFTER), matched, after)))
    start = line.start if passage.end - line.start <= WIDTH else passage.start
    stop, omitted = _stop(text, start, len(text), least=passage.end, left=WIDTH, is_first=True)
    with_words = filter(words, END.split(text[start:stop]))
    return " ".join(" ".join(with_words).split()) + omitted
