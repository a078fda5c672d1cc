"""The texts of the links from one page to another, kept as one text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

#: Characters of the texts of all links from one page to another.
MAX_ANCHORS: Final = 4_000


def joined_texts(texts: Iterable[str]) -> str:
    """Return the different texts of links to one page, one a line: as many as the limit has room for."""
    joined = "\n".join(dict.fromkeys(filter(None, texts)))
    return joined if len(joined) <= MAX_ANCHORS else joined[: MAX_ANCHORS + 1].rpartition("\n")[0]
