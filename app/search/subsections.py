"""Choose the subsections of a page that match a query: the one at which a hit opens, and others to list below it."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import accumulate, pairwise

from app.search.contract import Subsection
from app.search.matcher import Matcher
from app.search.snippet import phrases_in
from app.text.lines import HEADING
from app.text.titles import names_in
from app.text.words import fold, words

#: Subsections that are listed.
_LISTED = 3
#: The subsection of a page of a PDF, and the heading with which the text of one begins.
_PDF_PAGE = re.compile(r"page=([0-9]+)\tPage \1")
_FIRST_PAGE = re.compile(rf"Page ([0-9]+){HEADING}")


def choose(text: str, *, title: str, matcher: Matcher) -> tuple[Subsection | None, tuple[Subsection, ...]]:
    """Return the subsection that matches more of the query than the title does, or None; and others that match.

    `text` has a line for each: fragment, tab, heading. Only subsections count that match as much as the best one, and
    at least half of the query. One that is named as the page says nothing more. Of several with one heading, which a
    reader cannot tell apart, the first one counts.
    """
    if not text:
        return None, ()
    lines = [line.partition("\t") for line in text.split("\n")]
    matched = _matched_phrases([heading for _, _, heading in lines], matcher)
    names = names_in(title) if matched else ()
    matched = {at: found for at, found in matched.items() if lines[at][2] not in names}
    most = max(map(len, matched.values()), default=0)
    if not most or 2 * most < matcher.phrase_count:
        return None, ()
    headings_with = Counter(phrase for found in matched.values() for phrase in found)
    first_with = {lines[at][2]: at for at in sorted(matched, reverse=True) if len(matched[at]) == most}
    subsections = {at: Subsection(fragment=lines[at][0], heading=heading) for heading, at in first_with.items()}

    def preference(at: int) -> tuple[float, int, int]:
        # Words that few headings of the page have tell its sections apart. A short heading is about its words.
        rarity = sum(1 / headings_with[phrase] for phrase in matched[at])
        return (-rarity, len(words(subsections[at].heading)), at)

    in_title = len(phrases_in(title, matcher))
    best_first = sorted(subsections, key=preference)
    opens_at = best_first.pop(0) if most > in_title else None
    listed = tuple(subsections[at] for at in sorted(best_first[:_LISTED]))
    return (None if opens_at is None else subsections[opens_at]), listed


def subsection_with(fragment: str, text: str) -> Subsection | None:
    """Return the subsection with a fragment, by whose name links call it if no heading has it; None for no fragment.

    `text` is as for `choose`.
    """
    if not fragment:
        return None
    start = f"{fragment}\t"
    line = next((line for line in text.split("\n") if line.startswith(start)), "")
    return Subsection(fragment=fragment, heading=line.removeprefix(start) or fragment)


def best_pdf_page(text: str, body: str, matcher: Matcher) -> Subsection | None:
    """Return the first page of a PDF with the most phrases of a query; None for another document or without a match.

    `text` is as for `choose`. In the body, each page with text begins with its heading.
    """
    first = _FIRST_PAGE.match(body)
    if first is None:
        return None
    pages = [_PDF_PAGE.fullmatch(line) for line in text.split("\n")]
    if not all(pages):
        return None
    starts = [0]
    numbers = [first[1]]
    for number in (page[1] for page in pages if page and page[1] != first[1]):
        if (start := body.find(f"Page {number}{HEADING}", starts[-1])) < 0:
            break
        starts.append(start)
        numbers.append(number)
    matched = _matched_phrases([body[start:end] for start, end in pairwise((*starts, len(body)))], matcher)
    if not matched:
        return None
    number = numbers[max(matched, key=lambda at: (len(matched[at]), -at))]
    return Subsection(fragment=f"page={number}", heading=f"Page {number}")


def _matched_phrases(lines: Sequence[str], matcher: Matcher) -> dict[int, set[int]]:
    """Return the numbers of the phrases that match each line, by the line's index; without lines that none matches."""
    matched: dict[int, set[int]] = defaultdict(set)
    matches = matcher.matches(fold("\n".join(lines)))
    ends = list(accumulate(len(line) + 1 for line in lines)) if matches else []
    for start, end, number in matches:
        at = bisect_right(ends, start)
        if end < ends[at]:  # Else the match goes on in the next line.
            matched[at].add(number)
    return matched
