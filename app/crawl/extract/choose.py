"""From the setting EXTRACTOR to the extractor."""

from __future__ import annotations

from functools import cache
from typing import Literal

from app.crawl.extract.contract import Extractor


@cache
def extractor(name: Literal["lexbor", "beautifulsoup"] | str) -> Extractor:
    """Return the extractor of this name; raises ValueError for another one."""
    # Imported here: each brings its parser, and a process needs but one.
    if name == "lexbor":
        from app.crawl.extract.lexbor import LexborExtractor

        return LexborExtractor()
    if name == "beautifulsoup":
        from app.crawl.extract.beautifulsoup import BeautifulSoupExtractor

        return BeautifulSoupExtractor()
    raise ValueError(f"extractor {name!r}: expected 'lexbor' or 'beautifulsoup'")
