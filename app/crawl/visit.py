"""What a response comes to: a page to index, a page that is gone, a redirect, or nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from app.crawl import encoding, robots
from app.crawl.dates import date_of
from app.crawl.extract.contract import Extractor, collapsed
from app.crawl.urls import MAX_LENGTH, Scope, canonical_key, links_in_scope, path_of, resolve
from app.crawl.values import Extract, Gone, Indexed, Redirected, Skipped, Visit
from app.errors import ServerError
from app.http.response import Response, retry_after
from app.storage.layout import Page
from config.settings import Settings

_HTML = frozenset({"text/html", "application/xhtml+xml"})
_PLAIN = "text/plain"
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
#: 408 and 425 say "again", 429 says "later", as 5xx do.
_TRANSIENT = frozenset({408, 425, 429})
_SNIFFED = 512
_BINARY_STARTS = (
    b"%PDF-",
    b"\x89PNG",
    b"GIF8",
    b"\xff\xd8\xff",
    b"PK\x03\x04",
    b"\x1f\x8b",
    b"RIFF",
    b"\xd0\xcf\x11\xe0",
    b"7z\xbc\xaf",
)
#: WHATWG MIME Sniffing section 3, "binary data byte".
_BINARY_BYTE = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f]")
_UNICODE_BOMS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
_MARKUP = re.compile(rb"\s*<(?:!doctype html|html|head|body|title|meta|!--|h1|p|div|a|script|table|\?xml)[\s>/]", re.I)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of what one response may lead to. `retry_after` is in seconds; `robot` is our product token."""

    links: int = 5_000
    url_length: int = MAX_LENGTH
    retry_after: float = 3_600.0
    robot: str = "Perennial"

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the limits that the settings set."""
        return cls(
            links=settings.max_links,
            url_length=settings.max_url_length,
            robot=robots.product_token(settings.user_agent),
        )


def classify(response: Response, *, scope: Scope, extractor: Extractor, limits: Limits | None = None) -> Visit:
    """Say what a response comes to.

    Raises ServerError for 5xx, 408, 425 and 429: the page may be had later, after `retry_after` seconds if the server
    says so.
    """
    limits = limits or Limits()
    status = response.status
    if status >= 500 or status in _TRANSIENT:
        raise ServerError(
            f"GET {response.url}: {status}",
            retry_after(response.headers.get("retry-after", ""), cap=limits.retry_after),
        )
    if status in _REDIRECTS:
        return _redirected(response, scope, limits)
    if status in (404, 410):
        return Gone(why=str(status))
    if status not in (200, 203):
        return Skipped(why="not-modified" if status == 304 else str(status))
    return _content(response, scope, extractor, limits)


def _redirected(response: Response, scope: Scope, limits: Limits) -> Visit:
    # http.client reads header bytes as Latin-1; what was not ASCII was most likely UTF-8.
    location = response.headers.get("location", "").encode("latin-1", "replace").decode("utf-8", "replace")
    target = resolve(response.url, location, max_length=limits.url_length) if location else None
    if target is None:
        return Skipped(why="redirect", detail=f"to {location[:200]!r}")
    if canonical_key(target) == canonical_key(response.url):
        return Skipped(why="redirect", detail="to itself")
    return Redirected(target=target, in_scope=scope.contains(target))


def _content(response: Response, scope: Scope, extractor: Extractor, limits: Limits) -> Visit:
    kind = content_kind(response)
    if kind is None:
        return Skipped(why="content-type", detail=response.headers.get("content-type", "none"))
    if response.truncated:
        return Skipped(why="too-large", detail=f"over {len(response.body)} bytes")
    headers = response.headers.get("x-robots-tag", "").split("\n")
    directives = robots.robots_directives(headers, limits.robot)
    document = encoding.decode(response.body, response.headers.get("content-type", ""))
    if kind == _PLAIN:
        return _decided(_plain_page(response, scope, document), (), directives)
    extract = extractor.extract(document)
    base = resolve(response.url, extract.base) or response.url
    links = links_in_scope(base, extract.links, scope=scope, limit=limits.links, max_length=limits.url_length)
    return _decided(_page(response, scope, extract, base, kind), links, directives | extract.robots)


def _decided(page: Page, links: tuple[str, ...], directives: frozenset[str]) -> Visit:
    followed = () if directives & {"nofollow", "none"} else links
    if directives & {"noindex", "none"}:
        return Gone(why="noindex", links=followed)
    return Indexed(page=page, links=followed)


def _page(response: Response, scope: Scope, extract: Extract, base: str, kind: str) -> Page:
    key = canonical_key(response.url)
    named = resolve(base, extract.canonical) if extract.canonical else None
    # One that points out of the scope is a hint for others: a whole site whose canonicals do so must not vanish.
    canonical = canonical_key(named) if named and scope.contains(named) else ""
    return Page(
        canonical_key=key,
        url=response.url,
        domain=scope.domain,
        path=path_of(response.url),
        title=extract.title,
        description=extract.description,
        headings=extract.headings,
        body=extract.body,
        lang=extract.lang,
        content_type=kind,
        canonical="" if canonical == key else canonical,
        modified=date_of(extract.dates, response.headers),
    )


def _plain_page(response: Response, scope: Scope, document: str) -> Page:
    """Return plain text as a page that is called by the last segment of its path."""
    path = path_of(response.url)
    return Page(
        canonical_key=canonical_key(response.url),
        url=response.url,
        domain=scope.domain,
        path=path,
        title=path.partition("?")[0].rstrip("/").rpartition("/")[2],
        body=collapsed(document),
        content_type=_PLAIN,
        modified=date_of((), response.headers),
    )


def content_kind(response: Response) -> str | None:
    """Return the media type under which a body is indexed, or None: its label and its first bytes must allow it.

    A body without a label is taken for HTML if it begins like it (WHATWG MIME Sniffing section 7.1).
    """
    label, _, parameters = response.headers.get("content-type", "").lower().partition(";")
    label = label.strip()
    start = response.body[:_SNIFFED]
    if _is_binary(start, wide="utf-16" in parameters):
        return None
    if not label:
        return "text/html" if _MARKUP.match(start) else None
    return label if label in _HTML or label == _PLAIN else None


def _is_binary(start: bytes, *, wide: bool) -> bool:
    if start.startswith(_BINARY_STARTS):
        return True
    return not wide and not start.startswith(_UNICODE_BOMS) and _BINARY_BYTE.search(start) is not None
