"""Titles of pages: the part that the titles of a site share, and titles without it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeAlias

#: A title and the language of its page.
Title: TypeAlias = tuple[str, str]

#: Between the parts of a title: "os - Interfaces | The Site", "The Site: os".
SEPARATOR: Final = re.compile(r"(?<!\s)(?:\s+[|–—·:»-]|:)\s+")
#: A last part in parentheses: "BidiMap (Collections 4.2 API)".
_IN_PARENTHESES: Final = re.compile(r"(?<!\s)\s+\(([^()]+)\)$")
#: Numbers of sections and chapters, which people do not type.
NUMBERING: Final = re.compile(r"^(?:(?:Chapter|Part|Appendix)\s+)?(?:\d+|[A-Z])(?:\.\d+)*\.\s+")
#: Titles below which these do not show reliably what they have in common.
_LEAST_TITLES: Final = 5
#: Parts that may each be more than a quarter of all.
_MOST_FREQUENT: Final = 3


def parts_of_title(title: str) -> list[str]:
    """Return the parts of a title, a last one in parentheses among them."""
    end = _IN_PARENTHESES.search(title)
    parts = SEPARATOR.split(title[: end.start()] if end else title)
    return [*parts, end[1]] if end else parts


def without_numbering(text: str) -> str:
    """Return a heading without the number of its section or chapter."""
    return NUMBERING.sub("", text)


def site_names(read_titles: Callable[[], Iterable[Title]]) -> str:
    """Return the names of a site by its titles, which are read twice: one a line, each once.

    In each language, and in all together, it is the first or last part that more than half of the titles share. Of two
    such parts, that of most titles is the name, and else the last one. Memory does not grow with the titles.
    """
    # A part of more than half of the titles is more than a quarter of all first and last parts, and so remains.
    frequent: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for language, parts in _parts(read_titles()):
        for part in _ends(parts):
            counts = frequent[language]
            if part in counts or len(counts) < _MOST_FREQUENT:
                counts[part] = counts.get(part, 0) + 1
            else:  # It takes a count from each of the others (Misra and Gries, 1982).
                frequent[language] = {each: number - 1 for each, number in counts.items() if number > 1}
    numbers: Counter[str] = Counter()
    ends: Counter[tuple[str, str]] = Counter()
    lasts: Counter[tuple[str, str]] = Counter()
    for language, parts in _parts(read_titles()):
        numbers[language] += 1
        for part in _ends(parts) & frequent[language].keys():
            ends[language, part] += 1
            lasts[language, part] += part == parts[-1]
    shared = [each for each, titles in ends.items() if 2 * titles > numbers[each[0]] >= _LEAST_TITLES]
    # The last name of a language is the best one.
    best = dict(sorted(shared, key=lambda each: (ends[each], lasts[each], each)))
    return "\n".join(dict.fromkeys(best[language] for language in sorted(best)))


def _parts(titles: Iterable[Title]) -> Iterator[tuple[str, list[str]]]:
    """Yield the parts of each title for its language, and for an empty one: all languages together."""
    for title, lang in titles:
        parts = parts_of_title(title)
        for language in {"", lang.partition("-")[0].lower()}:
            yield language, parts


def _ends(parts: Sequence[str]) -> set[str]:
    return {parts[0], parts[-1]} if len(parts) > 1 else set()


def without_site_name(title: str, site: str) -> str:
    """Return a title without the name of its site, one of the lines of `site`, at the end or the beginning."""
    names = site.split("\n") if site else ()
    end = _IN_PARENTHESES.search(title) if names else None
    if end and end[1] in names:
        return title[: end.start()]
    separators = list(SEPARATOR.finditer(title)) if names else []
    if separators and title[separators[-1].end() :] in names:
        return title[: separators[-1].start()]
    if separators and title[: separators[0].start()] in names:
        return title[separators[0].end() :]
    return title


def names_in(title: str) -> frozenset[str]:
    """Return a title, and its first and its last part: one of these is the name of the page."""
    parts = parts_of_title(title)
    return frozenset({title, parts[0], parts[-1]})
