"""The extractors by their names."""

from __future__ import annotations

from functools import cache
from typing import Literal

from app.crawl.read.extract.contract import Extractor


@cache
def extractor(name: Literal["lexbor", "beautifulsoup"] | str) -> Extractor:
    """Return the extractor of this name; raises ValueError for an unknown name."""
    # Imported on demand: each brings its parser, and a process needs only one.
    if name == "lexbor":
        from app.crawl.read.extract.lexbor import LexborExtractor

        return LexborExtractor()
    if name == "beautifulsoup":
        from app.crawl.read.extract.beautifulsoup import BeautifulSoupExtractor

        return BeautifulSoupExtractor()
    raise ValueError(f"extractor {name!r}: expected 'lexbor' or 'beautifulsoup'")
