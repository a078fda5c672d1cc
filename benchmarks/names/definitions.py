"""Whether a hit is the place to which a site's index leads, and opens there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.names.indexes import NamedPlace

#: Where a section or a definition begins.
_HEADING: Final = re.compile(r"<h[1-6]\b[^>]*>(?!Note|Tip|Warning|Caution|Important)")
_BEGIN: Final = re.compile(r"<(?:h[1-6]|dt)\b")


class Opened(Enum):
    """How a hit opens: on another page, on the right page but elsewhere, or right."""

    WRONG_PAGE = "wrong page"
    ELSEWHERE = "elsewhere on the page"
    RIGHT = "right"


class Place(NamedTuple):
    """A page and the fragment at which a hit opens; None for a contestant without sections."""

    path: str
    fragment: str | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The first hit of a contestant for a name."""

    site: str
    name: NamedPlace
    contestant: str
    first: Place | None
    opened: Opened


class Sections:
    """Compares places on the pages of one site, whose files are below `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def opened(self, found: Place | None, name: NamedPlace) -> Opened:
        """Return how a hit opens: right in the section of the name's place, or right before or behind an anchor."""
        if found is None or self._file(found.path) != self._file(name.path):
            return Opened.WRONG_PAGE
        if found.fragment is None or not name.fragment or found.fragment == name.fragment:
            return Opened.RIGHT
        # Of a function's versions, each has the name.
        if found.fragment.partition("(")[0] == name.fragment.partition("(")[0]:
            return Opened.RIGHT
        if not found.fragment:
            return Opened.ELSEWHERE
        text = _text(self._file(name.path))
        at, wanted = (_position(text, each) for each in (found.fragment, name.fragment))
        # Within the section there may be a term that says more exactly where the definition is.
        begin = _HEADING if at > wanted else _BEGIN
        between = text[min(at, wanted) : max(at, wanted)]
        return Opened.RIGHT if min(at, wanted) >= 0 and len(begin.findall(between)) <= 1 else Opened.ELSEWHERE

    def _file(self, path: str) -> Path:
        """Return the file of a page: a site in several languages may link one file under several names."""
        return (self._root / path).resolve()


@lru_cache(maxsize=4)
def _text(file: Path) -> str:
    return file.read_text(errors="replace")


def _position(text: str, fragment: str) -> int:
    """Return where the element with an id or anchor name is; -1 for none."""
    found = re.search(rf"""\b(?:id|name)=["']{re.escape(fragment)}["']""", text)
    return found.start() if found else -1
