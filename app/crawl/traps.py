"""Traps: what a URL and a text are counted by, so that a crawl ends where a server has URLs without end."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from app.crawl.urls import resolve

#: Links from the start page. A page below these is generated, as a rule.
MAX_DEPTH = 50
#: Redirects in a row that a crawl follows.
MAX_REDIRECTS = 20

#: A part of a path that numbers, dates or identifiers of a session differ in: digits, or eight hex digits and more.
#: One of the first of these is 0 to 9.
_VARIABLE = re.compile(r"(?<![a-z0-9])(?=[a-f-]{0,40}[0-9])[0-9a-f-]{8,}(?![a-z0-9])|[0-9]+", re.I)
_LEFT_OUT = b"0123456789 "
#: Characters of a path that an error page may repeat. A shorter one may be part of any text.
_MIN_PATH = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TrapLimits:
    """Budgets of one crawl.

    `query_variants`: URLs of one path with two or more parameters. `pattern_pages`: URLs with a query of one
    directory pattern.
    `identical_texts`: pages in a row below one pattern whose text was met before. `redirects`: redirects in a row.
    """

    query_variants: int = 200
    pattern_pages: int = 5_000
    identical_texts: int = 50
    redirects: int = MAX_REDIRECTS

    @property
    def arguments(self) -> tuple[int, int, int]:
        """The limits in the order in which the scripts take them."""
        return self.pattern_pages, self.query_variants, self.identical_texts


def charges(canonical_key: str) -> str:
    """Return the budgets that a URL is counted in: items of a letter and eight hex digits, without a separator.

    The first item is its directory pattern: the path without its last part, and the names of the query's parameters.
    `#` stands for digits and identifiers. A last part with digits belongs to the pattern, unless a query selects the
    page. The item's letter is `d` if there is a query. Otherwise it is `i`, and only identical texts are counted: an
    honest site has many articles below one pattern, and `MAX_PAGES` is the bound. The letter `v` marks the path of a
    URL with two or more parameters.
    """
    path, _, query = canonical_key.partition("?")
    start = path.find("/", path.find("//") + 2)
    folder, _, leaf = path[start:].rstrip("/").rpartition("/")
    pattern = _VARIABLE.sub("#", folder)
    names: list[str] = []
    if query:
        names = sorted({pair.partition("=")[0] for pair in query.split("&")})
        pattern += "?" + "&".join(names)
    elif (general := _VARIABLE.sub("#", leaf)) != leaf:
        pattern += f"/{general}"
    letter = "d" if names else "i"
    items = letter + _hash(path[:start] + pattern)
    return items if len(names) < 2 else f"{items}v{_hash(path)}"


def pattern_of(canonical_key: str) -> str:
    """Return the directory pattern of a URL, eight hex digits: what identical texts are counted by."""
    return charges(canonical_key)[1:9]


def text_hash(title: str, body: str, path: str) -> str:
    """Return the hash of a page's text, eight hex digits, without digits, spaces and its own path in the text.

    So pages of a calendar have few different texts, and an error page has one, whatever was requested.
    """
    return _text_hash(f"{title}\n{body}", (path,))


def error_hash(title: str, body: str, path: str) -> str:
    """Return the hash by which error pages of a site with status 200 are recognised; empty for a page without text.

    Such a page may repeat its path, or only the last part of it.
    """
    return _text_hash(f"{title}\n{body}", (path, path.rstrip("/").rpartition("/")[2])) if body.strip() else ""


def soft_404_check_url(start_url: str, crawl_id: str) -> str | None:
    """Return a URL beside a crawl's start page that cannot exist, of the crawl's own; None if it is too long."""
    name = hashlib.blake2b(crawl_id.encode(errors="replace"), digest_size=8).hexdigest()
    return resolve(start_url, f"./perennial-soft-404-check-{name}")


def _text_hash(text: str, left_out: tuple[str, ...]) -> str:
    for part in left_out:
        if len(part) >= _MIN_PATH:
            text = text.replace(part, "")
    return hashlib.blake2b(text.encode(errors="replace").translate(None, _LEFT_OUT), digest_size=4).hexdigest()


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=4).hexdigest()
