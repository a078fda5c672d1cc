"""Classify a response: a page to index, a page that is gone, a redirect, or one that changes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import MAXYEAR, MINYEAR, UTC, date, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Self

from app.crawl import encoding, politeness
from app.crawl.extract.contract import Extract, Extractor, collapsed, excess_complexity
from app.crawl.urls import MAX_LENGTH, Link, Scope, allows_port, canonical_key, links_in_scope, path_of, resolve
from app.errors import ServerError
from app.http.response import Response
from app.http.urls import without_credentials
from app.storage.layout import Page, bounded
from app.storage.page_parts import Block, PageLink, hash_of
from config.settings import Settings

_HTML = frozenset({"text/html", "application/xhtml+xml"})
_PLAIN = "text/plain"
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
#: The server asks for another try later, as with 5xx: Request Timeout, Too Early, Too Many Requests.
_TRANSIENT = frozenset({408, 425, 429})
#: Characters of an ETag and a Last-Modified. Real ones have fewer than 100.
MAX_VALIDATOR = 200
#: Header values are Latin-1 without control characters (RFC 9110 section 5.5).
_UNSENDABLE = re.compile(r"[^\x20-\x7e\xa0-\xff]")
#: Bytes at the beginning of a body that show what it is.
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
_BLANK_LINES = re.compile(r"\n[ \t\r\f\v]*\n")
#: The web is not older; an earlier date comes from a clock that was never set.
_EARLIEST = date(1990, 1, 1)
#: A Last-Modified this close to the response's Date is the time of the response, not of a change.
_GENERATED_NOW = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Received:
    """What the response said beside its content: HTTP status, 0 without a response, and validators for a later GET.

    They do not say what becomes of the page, so they are not compared, and they are no part of a stored page.
    """

    status: int = field(default=0, compare=False)
    etag: str = field(default="", compare=False)
    last_modified: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexed(_Received):
    """A page to index. `links` are in scope, distinct by canonical key, in document order."""

    page: Page
    links: tuple[Link, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone(_Received):
    """Not indexed: `why` is `404`, `410` or `noindex`. Links of a `noindex` page may be followed."""

    why: str
    links: tuple[Link, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Redirected(_Received):
    """A redirect to `target`, an absolute URL."""

    target: str
    in_scope: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped(_Received):
    """A result that leaves the stored page as it is: `why` is `robots`, `too-large`, `too-complex`, `403`..."""

    why: str
    detail: str = ""


FetchResult = Indexed | Gone | Redirected | Skipped


def links_of(result: FetchResult) -> tuple[Link, ...]:
    """Return the pages within the scope that a result leads to."""
    match result:
        case Indexed(links=links) | Gone(links=links):
            return links
        case Redirected(target=target, in_scope=True):
            return (Link(target, canonical_key(target)),)
        case _:
            return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one response. `retry_after` is in seconds; `robot` is the crawler's product token.

    `ports` are those that a redirect may lead to, besides 80, 443 and the domain's own.
    """

    links: int = 5_000
    url_length: int = MAX_LENGTH
    ports: tuple[int, ...] = ()
    retry_after: float = 3_600.0
    robot: str = "Perennial"

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the limits of the settings."""
        return cls(
            links=settings.max_links,
            url_length=settings.max_url_length,
            ports=settings.allow_ports,
            robot=politeness.product_token(settings.user_agent),
        )


def classify(response: Response, *, scope: Scope, extractor: Extractor, limits: Limits | None = None) -> FetchResult:
    """Return what a response means for its page.

    Raises ServerError for 5xx, 408, 425 and 429, with the seconds of a Retry-After header.
    """
    return replace(
        _classified(response, scope, extractor, limits or Limits()),
        status=response.status,
        etag=validator(response.headers, "etag"),
        last_modified=validator(response.headers, "last-modified"),
    )


def validator(headers: Mapping[str, str], name: str) -> str:
    """Return the value of a header that a later request may send back; empty if it is missing, long or not sendable."""
    value = headers.get(name, "").strip()
    return value if len(value) <= MAX_VALIDATOR and not _UNSENDABLE.search(value) else ""


def _classified(response: Response, scope: Scope, extractor: Extractor, limits: Limits) -> FetchResult:
    status = response.status
    if status >= 500 or status in _TRANSIENT:
        raise ServerError(f"GET {response.url}: {status}", response.retry_after(cap=limits.retry_after))
    if status in _REDIRECTS:
        # http.client decodes headers as Latin-1; a byte beyond ASCII is most likely part of UTF-8.
        location = response.headers.get("location", "").encode("latin-1", "replace").decode("utf-8", "replace")
        target = resolve(response.url, location, max_length=limits.url_length) if location else None
        if target is None:
            return Skipped(why="redirect", detail=f"to {without_credentials(location)[:200]!r}")
        if not allows_port(scope.domain, target, limits.ports):
            return Skipped(why="redirect", detail=f"to {target}, whose port ALLOW_PORTS does not name")
        if canonical_key(target) == canonical_key(response.url):
            return Skipped(why="redirect", detail="to itself")
        return Redirected(target=target, in_scope=scope.contains(target))
    if status in (404, 410):
        return Gone(why=str(status))
    if status not in (200, 203):
        return Skipped(why="not-modified" if status == 304 else str(status))
    return _content(response, scope, extractor, limits)


def _content(response: Response, scope: Scope, extractor: Extractor, limits: Limits) -> FetchResult:
    media_type = indexable_type(response)
    if media_type is None:
        return Skipped(why="content-type", detail=response.headers.get("content-type", "none"))
    if response.truncated:
        return Skipped(why="too-large", detail=f"over {len(response.body)} bytes")
    document = encoding.decode(response.body, response.headers.get("content-type", ""))
    if media_type == _PLAIN:
        name = path_of(response.url).partition("?")[0].rstrip("/").rpartition("/")[2]
        extract = _plain_text(document, title=name)
    elif excess := excess_complexity(document):
        return Skipped(why="too-complex", detail=excess)
    else:
        extract = extractor.extract(document)
    base = (resolve(response.url, extract.base) if extract.base else None) or response.url
    links = links_in_scope(base, extract.links, scope=scope, limit=limits.links, max_length=limits.url_length)
    tags = response.headers.get("x-robots-tag", "").split("\n")
    directives = politeness.robots_directives(tags, limits.robot) | extract.robots
    followed = () if directives & {"nofollow", "none"} else links
    if directives & {"noindex", "none"}:
        return Gone(why="noindex", links=followed)
    page = bounded(_page(response, extract, base=base, media_type=media_type, scope=scope, links=followed))
    page = replace(page, body_hash=hash_of(page.body), title_hash=hash_of(page.title))
    return Indexed(page=page, links=followed)


def _page(
    response: Response, extract: Extract, *, base: str, media_type: str, scope: Scope, links: Iterable[Link]
) -> Page:
    """Return the page of an extract; `base` is the URL that its own URLs are relative to."""
    key = canonical_key(response.url)
    declared = resolve(base, extract.canonical) if extract.canonical else None
    # A rel=canonical out of the scope is ignored: on a mirror it would make every page a duplicate of another site.
    canonical = canonical_key(declared) if declared and scope.contains(declared) else ""
    return Page(
        canonical_key=key,
        url=response.url,
        domain=scope.domain,
        path=path_of(response.url),
        title=extract.title,
        description=extract.description,
        headings=extract.headings,
        body=extract.body,
        blocks=extract.blocks,
        links=tuple(PageLink(link.url, link.text) for link in links),
        lang=extract.lang,
        content_type=media_type,
        canonical="" if canonical == key else canonical,
        modified=modified_date(extract.dates, response.headers),
    )


def _plain_text(document: str, *, title: str) -> Extract:
    paragraphs = tuple(filter(None, map(collapsed, _BLANK_LINES.split(document))))
    return Extract(title=title, body=collapsed(document), blocks=(Block(paragraphs),) if paragraphs else ())


def indexable_type(response: Response) -> str | None:
    """Return the media type under which a body is indexed; None unless its Content-Type and first bytes allow it.

    A body without a Content-Type is HTML if it begins like HTML (WHATWG MIME Sniffing section 7.1).
    """
    label, _, parameters = response.headers.get("content-type", "").lower().partition(";")
    label = label.strip()
    start = response.body[:_SNIFFED]
    if start.startswith(_BINARY_STARTS):
        return None
    wide = "utf-16" in parameters or start.startswith(_UNICODE_BOMS)
    if not wide and _BINARY_BYTE.search(start):
        return None
    if not label:
        return "text/html" if _MARKUP.match(start) else None
    return label if label in _HTML or label == _PLAIN else None


def modified_date(dates: Iterable[str], headers: Mapping[str, str], *, now: datetime | None = None) -> str:
    """Return the first plausible one of a page's own dates, else of its Last-Modified, as `2026-11-21`; else "".

    Dates are ISO 8601, with or without a time, or HTTP dates (RFC 9110 section 5.6.7), in any time zone. A date before
    1990 or more than a day after `now` (UTC) is not plausible. Header names are lower case.
    """
    now = now or datetime.now(UTC)
    latest = (now + timedelta(days=1)).date()
    changed = _parsed_date(headers.get("last-modified", ""))
    if changed is not None and changed >= (_parsed_date(headers.get("date", "")) or now) - _GENERATED_NOW:
        changed = None
    for moment in (*map(_parsed_date, dates), changed):
        if moment is not None and _EARLIEST <= moment.date() <= latest:
            return moment.date().isoformat()
    return ""


def _parsed_date(text: str) -> datetime | None:
    """Return the time of an ISO 8601 or HTTP date, as UTC where it has no time zone; None for any other text."""
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        try:
            found = parsedate_to_datetime(text.strip())
        except (ValueError, TypeError, IndexError, OverflowError):
            return None
    if found.year in (MINYEAR, MAXYEAR):  # No other time can be compared with it in every time zone.
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
