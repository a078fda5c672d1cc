"""Titles of pages: the part that the titles of a site share, and titles without it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

#: Between the parts of a title: "os - Interfaces | The Site".
_SEPARATOR: Final = re.compile(r"(?<!\s)\s+[|–—·:»-]\s+")
#: Titles below which these do not show reliably what they have in common.
_LEAST_TITLES: Final = 5


def site_name(titles: Iterable[str]) -> str:
    """Return the first or last part that more than half of the titles share; empty if they share no part.

    Of two such parts, that of most titles is the name, and else the last one.
    """
    number = 0
    ends: Counter[str] = Counter()
    lasts: Counter[str] = Counter()
    for title in titles:
        number += 1
        parts = _SEPARATOR.split(title)
        if len(parts) > 1:
            ends.update({parts[0], parts[-1]})
            lasts[parts[-1]] += 1
    name = max(ends, key=lambda each: (ends[each], lasts[each], each), default="")
    return name if number >= _LEAST_TITLES and 2 * ends[name] > number else ""


def without_site_name(title: str, site: str) -> str:
    """Return a title without the name of its site at the end or the beginning."""
    parts = _SEPARATOR.split(title)
    if not site or len(parts) == 1 or site not in (parts[0], parts[-1]):
        return title
    separators = list(_SEPARATOR.finditer(title))
    return title[: separators[-1].start()] if parts[-1] == site else title[separators[0].end() :]


def names_in(title: str) -> frozenset[str]:
    """Return a title, and its first and its last part: one of these is the name of the page."""
    parts = _SEPARATOR.split(title)
    return frozenset({title, parts[0], parts[-1]})
