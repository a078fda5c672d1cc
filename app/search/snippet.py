"""Cut the passage that shows best why a page matches, as plain text with the ranges to mark."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

from app.search.excerpt import cut_lines, cut_sentences, line_at, next_sentence, sentences
from app.search.matcher import Match, Matcher
from app.search.passage_scorer import MAX_MATCHES, Passage, best_passage, densest, until_adjacent
from app.text.lines import END, SENTENCE
from app.text.titles import names_in
from app.text.words import fold

#: Characters that may follow a name up to the end of its line: a signature is long.
_MAX_SIGNATURE = 600
_IN_WORD = re.compile(r"[\w-]")


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


def best_snippet(texts: Sequence[str], matcher: Matcher, *, title: str = "") -> Snippet:
    """Return the sentences with the most different phrases, closest together; the first of equal passages.

    Lines of a text end as in app/text/lines.py. Without a match in a sentence, return the other lines that match best,
    except parts of the title, with a sentence. Without any match, return the first sentences, or else lines.
    """
    passages: list[tuple[Passage, str]] = []
    outside: list[list[Match]] = []
    for text in texts:
        outside.append([])
        # The last text needs no exact score if no other text has a passage to compare it with.
        first_will_do = not passages and text is texts[-1]
        if passage := best_passage(text, matcher, first_will_do=first_will_do, outside=outside[-1]):
            passages.append((passage, text))
            if passage.score >= matcher.best_score:
                break
    if passages:
        passage, text = max(passages, key=lambda pair: pair[0].score)
        return _snippet(cut_sentences(text, passage), matcher)
    opening = next((text for text in texts if text), "")
    shown = names_in(title)
    for text, matches in zip(texts, outside, strict=True):
        unshown = (match for match in matches if line_at(text, match[0]) not in shown)
        if passage := densest(until_adjacent(unshown, matcher)):
            return _snippet(cut_lines(text, passage, opening), matcher)
    return _snippet(sentences(opening) or (opening and cut_lines(opening, Passage(0, 0), "")), matcher)


def snippet_of_section(texts: Sequence[str], heading: str, matcher: Matcher, *, title: str) -> Snippet:
    """Return the first sentences after a heading of the last text, or the best ones of a page if these say more."""
    paragraph = first_paragraph(texts[-1], heading, matcher)
    if paragraph is None:
        return best_snippet(texts, matcher, title=title)
    found = phrases_in(paragraph.text, matcher) | phrases_in(heading, matcher)
    if len(found) == matcher.phrase_count:
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
        if (start := next_sentence(body, end.end(), end[0])) is not None
    ]
    return _snippet(sentences(body, min(found)[2], has_gaps=False), matcher) if found else None


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


def _snippet(text: str, matcher: Matcher) -> Snippet:
    """Return a snippet with the ranges that match; those with nothing but a space between them are one."""
    marks: list[tuple[int, int]] = []
    for start, end, _ in matcher.in_text(text)[:MAX_MATCHES]:
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
