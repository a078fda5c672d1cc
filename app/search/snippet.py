"""Cut the passage that shows best why a page matches, as plain text with the ranges to mark."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, islice

from app.search.matcher import Match, Matcher
from app.search.query import fold
from app.text.variants import is_unspaced

#: Characters of a snippet, ellipses not counted.
WIDTH = 240
#: Characters scanned for one passage, and of a page in all: the text of one page may be a whole book.
_STRETCH = 50_000
MAX_SCANNED = 1_000_000
#: Characters folded at a time: the best passage is often among the first.
_PIECE = 4_000
#: Matches compared in one stretch.
_MAX_MATCHES = 300

#: In place of omitted text; the no-break space keeps an ellipsis on the line of its word.
_BEFORE = "…\N{NO-BREAK SPACE}"
_AFTER = "\N{NO-BREAK SPACE}…"

#: What may be between a name and its first paragraph, and how a sentence begins. Brackets may be in brackets once.
_SIGNATURE = r"(?: Directive)?(?:\s?\([^()]{0,400}(?:\([^()]{0,100}\)[^()]{0,400}){0,4}\);?)?"
_SENTENCE_BEGIN = r"(?=[^\W\d_a-z]\w*,? +[^\W\dA-Z])"
#: Characters of the shortest paragraph that ends with its sentence.
_LEAST_SENTENCE = 60
_SENTENCE_END = re.compile(r"(?:[.!?…]\s+|[。！？]\s*)(?=\S)")


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


def best_snippet(texts: Sequence[str], matcher: Matcher) -> Snippet:
    """Return the passage with the most different phrases, closest together; the first of equal passages.

    Without any match, return the beginning of the last text that is not empty.
    """
    passages: list[tuple[_Passage, str]] = []
    for text in texts:
        # The last text needs no exact score if no other text has a passage to compare it with.
        if passage := _best_passage(text, matcher, first_will_do=not passages and text is texts[-1]):
            passages.append((passage, text))
            if passage.score >= matcher.best_score:
                break
    if passages:
        passage, text = max(passages, key=lambda pair: pair[0].score)
    else:
        text = next((text for text in reversed(texts) if text), "")
        passage = _Passage(0, 0)
    cut = _cut(text, passage)
    return Snippet(cut, _marks(cut, matcher))


def first_paragraph(body: str, name: str, matcher: Matcher) -> Snippet | None:
    """Return how the text goes on after the heading or signature of a name; None if no sentence follows it.

    The body does not show what is a heading: the first mention counts that a sentence follows.
    """
    called = name.endswith("()")
    written = re.escape(name.removesuffix("()").rstrip().rpartition(".")[2] if called else name)
    found = re.compile(rf"(?<!\w){written}{_SIGNATURE}\s+{_SENTENCE_BEGIN}").search(body)
    if found is None:
        return None
    start = found.end()
    end = min(len(body), start + WIDTH)
    sentences = [each.start() + 1 for each in _SENTENCE_END.finditer(body, start + _LEAST_SENTENCE, end)]
    if sentences and end < len(body):
        end = sentences[-1]
    while start < end < len(body) and not (body[end].isspace() or is_unspaced(body[end])):
        end -= 1
    text = " ".join(body[start:end].split())
    is_whole = end == len(body) or text.endswith((".", "!", "?", "。"))
    return Snippet(text + ("" if is_whole else _AFTER), _marks(text, matcher))


def _marks(text: str, matcher: Matcher) -> tuple[tuple[int, int], ...]:
    """Return the ranges that match; those with nothing but a space between them are one."""
    marks: list[tuple[int, int]] = []
    for start, end, _ in matcher.matches(fold(text))[:_MAX_MATCHES]:
        first = marks.pop()[0] if marks and text[marks[-1][1] : start] in {"", " "} else start
        marks.append((first, end))
    return tuple(marks)


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


def matched_phrases(lines: Sequence[str], matcher: Matcher) -> dict[int, set[int]]:
    """Return the numbers of the phrases that match each line, by the line's index; without lines that none matches."""
    matched: dict[int, set[int]] = defaultdict(set)
    matches = matcher.matches(fold("\n".join(lines)))
    ends = list(accumulate(len(line) + 1 for line in lines)) if matches else []
    for start, end, number in matches:
        at = bisect_right(ends, start)
        if end < ends[at]:  # Else the match goes on in the next line.
            matched[at].add(number)
    return matched


def _best_passage(text: str, matcher: Matcher, *, first_will_do: bool) -> _Passage | None:
    """Return the best passage of a text. With `first_will_do`, the first one with all phrases adjacent is enough.

    Its score may then be too low.
    """
    best: _Passage | None = None
    for offset in range(0, min(len(text), MAX_SCANNED), _STRETCH):
        # A stretch overlaps the next one by the width of a snippet, so that no passage is split between the two.
        stretch = _matches(text, matcher, offset, min(len(text), offset + _STRETCH + WIDTH))
        matches = islice(stretch, _MAX_MATCHES)
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
            after = max(complete, stop)
        at += after
        # A piece with too few complete words is scanned again together with the text that follows it.
        size = _PIECE if after else 2 * size


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


def _cut(text: str, passage: _Passage) -> str:
    """Return WIDTH characters around the passage, cut between words, or at the start of a sentence nearby."""
    start = max(0, min(passage.start - (WIDTH - (passage.end - passage.start)) // 3, len(text) - WIDTH))
    start = min(start, passage.start)
    if start and (sentence := _SENTENCE_END.search(text, start, passage.start + 1)):
        start = sentence.end()
    elif start:
        while start < passage.start and not (text[start - 1].isspace() or is_unspaced(text[start])):
            start += 1
    end = latest = min(len(text), start + WIDTH)
    earliest = min(passage.end, start + WIDTH)
    while earliest < end < len(text) and not (text[end].isspace() or is_unspaced(text[end])):
        end -= 1
    if end <= earliest and end != len(text) and not (text[end].isspace() or is_unspaced(text[end])):
        end = latest
    middle = " ".join(text[start:end].split())
    return (_BEFORE if start else "") + middle + (_AFTER if end < len(text) else "")
