"""Titles of pages: the part that the titles of a site share, and titles without it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

#: Between the parts of a title: "os - Interfaces | The Site", "The Site: os".
_SEPARATOR: Final = re.compile(r"(?<!\s)(?:\s+[|–—·:»-]|:)\s+")
#: A last part in parentheses: "BidiMap (Collections 4.2 API)".
_IN_PARENTHESES: Final = re.compile(r"\s+\(([^()]+)\)$")
#: Numbers of sections and chapters, which people do not type.
NUMBERING: Final = re.compile(r"^(?:(?:Chapter|Part|Appendix)\s+)?(?:\d+|[A-Z])(?:\.\d+)*\.\s+")
#: Titles below which these do not show reliably what they have in common.
_LEAST_TITLES: Final = 5


def parts_of_title(title: str) -> list[str]:
    """Return the parts of a title, a last one in parentheses among them."""
    end = _IN_PARENTHESES.search(title)
    parts = _SEPARATOR.split(title[: end.start()] if end else title)
    return [*parts, end[1]] if end else parts


def without_numbering(text: str) -> str:
    """Return a heading without the number of its section or chapter."""
    return NUMBERING.sub("", text)


def site_names(titles: Iterable[tuple[str, str]]) -> str:
    """Return the names of a site by its titles, given with their languages: one a line, each once.

    In each language, and in all together, it is the part that most titles share.
    """
    by_language: dict[str, list[str]] = {"": []}
    for title, lang in titles:
        by_language[""].append(title)
        by_language.setdefault(lang.partition("-")[0].lower(), []).append(title)
    return "\n".join(dict.fromkeys(filter(None, map(site_name, by_language.values()))))


def site_name(titles: Iterable[str]) -> str:
    """Return the first or last part that more than half of the titles share; empty if they share no part.

    Of two such parts, that of most titles is the name, and else the last one.
    """
    number = 0
    ends: Counter[str] = Counter()
    lasts: Counter[str] = Counter()
    for title in titles:
        number += 1
        parts = parts_of_title(title)
        if len(parts) > 1:
            ends.update({parts[0], parts[-1]})
            lasts[parts[-1]] += 1
    name = max(ends, key=lambda each: (ends[each], lasts[each], each), default="")
    return name if number >= _LEAST_TITLES and 2 * ends[name] > number else ""


def without_site_name(title: str, site: str) -> str:
    """Return a title without the name of its site, one of the lines of `site`, at the end or the beginning."""
    names = site.split("\n") if site else ()
    end = _IN_PARENTHESES.search(title) if names else None
    if end and end[1] in names:
        return title[: end.start()]
    separators = list(_SEPARATOR.finditer(title)) if names else []
    if separators and title[separators[-1].end() :] in names:
        return title[: separators[-1].start()]
    if separators and title[: separators[0].start()] in names:
        return title[separators[0].end() :]
    return title


def names_in(title: str) -> frozenset[str]:
    """Return a title, and its first and its last part: one of these is the name of the page."""
    parts = parts_of_title(title)
    return frozenset({title, parts[0], parts[-1]})
