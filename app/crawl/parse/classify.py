"""Classify a response: a page to index, a page that is gone, a redirect, or one that changes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import MAXYEAR, MINYEAR, UTC, date, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import lru_cache
from itertools import chain
from typing import Any, Literal

from app.crawl.parse.cpu_limit import cpu_limit
from app.crawl.parse.documents import HTML, TooComplex, extract_document, indexable_type, needs_script
from app.crawl.parse.extract.contract import OWN_NAME, Extract, Extractor, alternates_in, canonical_in, refresh_in
from app.crawl.parse.extract.pdf import UnreadablePdf
from app.crawl.policy import MAX_RETRY_AFTER
from app.crawl.record.entries import MAX_VALIDATOR, Former
from app.crawl.record.reasons import Reason
from app.crawl.urls import Excluded, Link, Scope, allows_port, canonical_key, links_in_scope, path_of, resolve
from app.errors import ServerError
from app.http.response import REDIRECTS, Response
from app.http.urls import without_credentials
from app.storage.layout import Page, bounded
from app.storage.page_parts import PageLink, hash_of

#: The server asks for another try later, as with 5xx: Request Timeout, Too Early, Too Many Requests.
_TRANSIENT = frozenset({408, 425, 429})
#: Directives for robots: `none` is both.
_NOINDEX = frozenset({"noindex", "none"})
_NOFOLLOW = frozenset({"nofollow", "none"})
#: Directives with a value after a colon; any other colon follows the name of a robot.
_VALUED = frozenset({"unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"})
_NAMED = re.compile(r"\s*([a-z*][a-z0-9_-]*)\s*:\s*", re.I)
#: Header values are Latin-1 without control characters (RFC 9110 section 5.5).
_UNSENDABLE = re.compile(r"[^\x20-\x7e\xa0-\xff]")
#: A link of a Link header and its parameters, and one of these (RFC 8288 section 3).
_LINK = re.compile(r'<([^<>]*)>((?:\s*;(?:[^",;<]|"[^"]*")*)*)')
_PARAMETER = re.compile(r';\s*([^\s=;"]+)\s*(?:=\s*(?:"([^"]*)"|([^\s;"]*)))?')
#: Characters of a Link header that are read.
_MAX_LINK_HEADER = 20_000
#: The web is not older; an earlier date comes from a clock that was never set.
_EARLIEST = date(1990, 1, 1)
#: A Last-Modified this close to the response's Date is the time of the response, not of a change.
_GENERATED_NOW = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class FetchResult:
    """What a response means for its URL.

    `reason` is a reason code, empty for a page that is indexed, and `detail` says more of it. `page` is that of a URL
    that is indexed, or unchanged: as it is stored. A 304 to a request without validators is unchanged, and has none.
    One that is gone or redirected leaves the pack, and what is stored of one that is skipped stays. `detail` of a
    redirect is its target, an absolute URL. `links` are those in scope to follow, distinct by canonical key, in
    document order: also of a page that is not indexed. A redirect out of the scope has none. `hash` is of a sitemap.
    """

    state: Literal["indexed", "unchanged", "gone", "redirected", "skipped"]
    reason: str = ""
    detail: str = ""
    _: KW_ONLY
    page: Page | None = None
    links: tuple[Link, ...] = ()
    hash: str = ""
    # What the response said beside its content is not compared: HTTP status, 0 without a response, and validators for
    # a later GET. Nor are links that are not followed, and the seconds and the time until the page is due again.
    status: int = field(default=0, compare=False)
    etag: str = field(default="", compare=False)
    last_modified: str = field(default="", compare=False)
    excluded: tuple[Excluded, ...] = field(default=(), compare=False)
    interval: float = field(default=0.0, compare=False)
    due: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one response. `robot` is the crawler's product token.

    `ports` are those that a redirect may lead to, besides 80, 443 and the domain's own.
    """

    links: int = 5_000
    ports: tuple[int, ...] = ()
    robot: str = OWN_NAME


def classify(response: Response, *, scope: Scope, extractor: Extractor, limits: Limits | None = None) -> FetchResult:
    """Return what a response means for its page, within the `cpu_limit`.

    Raises ServerError for 5xx, 408, 425 and 429, with the seconds of a Retry-After header.
    """
    limits = limits or Limits()
    result = without_content(response, scope=scope, limits=limits)
    etag, last_modified = validator(response.headers, "etag"), validator(response.headers, "last-modified")
    if result is None:
        with cpu_limit():
            result = _content(response, scope, extractor, limits)
    return replace(result, status=response.status, etag=etag, last_modified=last_modified)


def not_modified(result: FetchResult, stored: Page, former: Former) -> FetchResult:
    """Return the result of a 304 to a conditional request, with the stored page and its links."""
    return replace(
        not_due(stored, former),
        reason=Reason.NOT_MODIFIED,
        status=result.status,
        etag=result.etag or former.etag,
        last_modified=result.last_modified or former.last_modified,
    )


def not_due(stored: Page, former: Former) -> FetchResult:
    """Return the result of a page that is not requested in this crawl: the stored page, with its links."""
    return FetchResult(
        "unchanged",
        Reason.NOT_DUE,
        page=stored,
        links=tuple(Link(link.url, canonical_key(link.url), link.text) for link in stored.links),
        etag=former.etag,
        last_modified=former.last_modified,
        interval=former.interval,
        due=former.due,
    )


def validator(headers: Mapping[str, str], name: str) -> str:
    """Return the value of a header that a later request may send back; empty if it is missing, long or not sendable."""
    value = headers.get(name, "").strip()
    return value if len(value) <= MAX_VALIDATOR and not _UNSENDABLE.search(value) else ""


def without_content(response: Response, *, scope: Scope, limits: Limits) -> FetchResult | None:
    """Return what a status means whose body is never read; None if the body is content: 200 and 203.

    Raises ServerError as `classify` does.
    """
    status = response.status
    if status >= 500 or status in _TRANSIENT:
        raise ServerError(f"GET {response.url}: {status}", response.retry_after(cap=MAX_RETRY_AFTER))
    if status in REDIRECTS:
        return _redirect(response.url, _address_in(response, "location"), base=response.url, scope=scope, limits=limits)
    if status in (404, 410):
        return FetchResult("gone", str(status))
    if status not in (200, 203):
        return FetchResult("unchanged", Reason.NOT_MODIFIED) if status == 304 else FetchResult("skipped", str(status))
    return None


def other_url_of_page(response: Response) -> str | None:
    """Return the URL that a response redirects to if it is another one of the same page; None for any other response.

    Some sites add a session to each URL of a visitor without cookies, or take a campaign away.
    """
    target = resolve(response.url, _address_in(response, "location")) if response.status in REDIRECTS else None
    if target is None or target == response.url or canonical_key(target) != canonical_key(response.url):
        return None
    return target


def _address_in(response: Response, header: str) -> str:
    # http.client decodes headers as Latin-1; a byte beyond ASCII is most likely part of UTF-8.
    return response.headers.get(header, "").encode("latin-1", "replace").decode("utf-8", "replace")


def _redirect(url: str, location: str, *, base: str, scope: Scope, limits: Limits) -> FetchResult:
    """Return the result of a redirect from `url`; `base` is the URL that its location is relative to."""
    target = resolve(base, location) if location else None
    if target is None:
        return FetchResult("skipped", Reason.INVALID_REDIRECT, f"to {without_credentials(location)[:200]!r}")
    if not allows_port(scope.domain, target, limits.ports):
        detail = f"to {target}, whose port ALLOW_PORTS does not name"
        return FetchResult("skipped", Reason.INVALID_REDIRECT, detail)
    key = canonical_key(target)
    if key == canonical_key(url):
        return FetchResult("skipped", Reason.INVALID_REDIRECT, "to itself")
    links = (Link(target, key),) if scope.contains(target) else ()
    return FetchResult("redirected", Reason.REDIRECT, target, links=links)


def _content(response: Response, scope: Scope, extractor: Extractor, limits: Limits) -> FetchResult:
    media_type = indexable_type(response)
    if media_type is None:
        return FetchResult("skipped", Reason.CONTENT_TYPE, response.headers.get("content-type", "none"))
    too_large = f"over {len(response.body)} bytes" if response.truncated else ""
    if too_large and media_type not in HTML:
        return FetchResult("skipped", Reason.TOO_LARGE, too_large)
    try:
        extract = extract_document(response, media_type, extractor)
    except TooComplex as error:
        return FetchResult("skipped", Reason.TOO_LARGE if too_large else Reason.TOO_COMPLEX, too_large or str(error))
    except UnreadablePdf as error:
        return FetchResult("skipped", Reason.UNREADABLE, str(error))
    return _extracted(response, extract, media_type, too_large, scope=scope, limits=limits)


def _extracted(
    response: Response, extract: Extract, media_type: str, too_large: str, *, scope: Scope, limits: Limits
) -> FetchResult:
    """Return the result of a document's content; `too_large` says why only its links count, or is empty."""
    base = (resolve(response.url, extract.base) if extract.base else None) or response.url
    canonical = _canonical(response, extract, base=base, scope=scope)
    tags = response.headers.get("x-robots-tag", "").split("\n")
    by_header = robots_directives(tags, limits.robot)
    directives = by_header | extract.robots
    # The header means the same as the element (WHATWG HTML, "shared declarative refresh steps"), and comes first.
    by_refresh = refresh_in([{"content": _address_in(response, "refresh")}])
    for refresh, relative_to in ((by_refresh, response.url), (extract.refresh, base)):
        if refresh and not directives & _NOFOLLOW:
            redirect = _redirect(response.url, refresh, base=relative_to, scope=scope, limits=limits)
            if redirect.state == "redirected":
                return redirect
    followed, excluded = _links(response, extract, base=base, canonical=canonical, scope=scope, limits=limits)
    if directives & _NOFOLLOW:
        excluded += not_followed(followed)
        followed = ()
    if directives & _NOINDEX:
        where = "X-Robots-Tag" if by_header & _NOINDEX else "<meta>"
        return FetchResult("gone", Reason.NOINDEX, where, links=followed, excluded=excluded)
    if too_large:
        return FetchResult("skipped", Reason.TOO_LARGE, too_large, links=followed, excluded=excluded)
    if not extract.body and needs_script(response, media_type):
        return FetchResult("skipped", Reason.EMPTY, links=followed, excluded=excluded)
    page = Page(
        canonical_key=canonical_key(response.url),
        url=response.url,
        domain=scope.domain,
        path=path_of(response.url),
        title=extract.title,
        description=extract.description,
        headings=extract.headings,
        body=extract.body,
        blocks=extract.blocks,
        links=tuple(PageLink(link.url, link.text) for link in followed),
        terms=extract.terms,
        lang=extract.lang,
        content_type=media_type,
        canonical=canonical_key(canonical) if canonical else "",
        alternates=tuple(url for url in _alternates(response, extract, base=base) if scope.contains(url)),
        modified=modified_date(extract.dates, response.headers),
    )
    page = bounded(page)
    page = replace(page, body_hash=hash_of(page.body), title_hash=hash_of(page.title))
    return FetchResult("indexed", page=page, links=followed, excluded=excluded)


def robots_directives(values: Iterable[str], token: str) -> frozenset[str]:
    """Return the directives of X-Robots-Tag values, one per header line, that address every robot or this one.

    Directives are lower case and without values: `noindex`, `nofollow`, `none`... A value may begin with the robot it
    addresses, as in `Perennial: noindex, nofollow`.
    """
    found: set[str] = set()
    for value in values:
        addressed = True
        for part in value.split(","):
            named = _NAMED.match(part)
            if named and named[1].lower() not in _VALUED:
                addressed = named[1].lower() in ("*", token.lower())
                part = part[named.end() :]
            if addressed:
                found.add(part.partition(":")[0].strip().lower())
    return frozenset(found - {""})


def _canonical(response: Response, extract: Extract, *, base: str, scope: Scope) -> str:
    """Return the URL of rel=canonical, by the page or else its Link header, if it is in scope and another page."""
    if extract.canonical:
        declared = resolve(base, extract.canonical)
    else:
        named = canonical_in(_header_links(response))
        declared = resolve(response.url, named) if named else None
    # One out of the scope is ignored: on a mirror it would make every page a duplicate of another site.
    if declared is None or not scope.contains(declared) or canonical_key(declared) == canonical_key(response.url):
        return ""
    return declared


def _header_links(response: Response) -> Iterator[dict[str, str]]:
    """Yield each link of the page in the Link header as the attributes of a `<link>` (RFC 8288)."""
    for url, parameters in _LINK.findall(response.headers.get("link", "")[:_MAX_LINK_HEADER]):
        # Of equal names, the first one counts.
        found = {name.lower(): quoted or plain for name, quoted, plain in reversed(_PARAMETER.findall(parameters))}
        if "anchor" not in found:  # A link of another page.
            yield {**found, "href": url}


def _links(
    response: Response, extract: Extract, *, base: str, canonical: str, scope: Scope, limits: Limits
) -> tuple[tuple[Link, ...], tuple[Excluded, ...]]:
    """Return the links of a page, then its canonical URL and its alternates; and the excluded ones."""
    others = (url for url in (canonical, *_alternates(response, extract, base=base)) if url and url != response.url)
    anchors = chain(extract.links, ((url, "") for url in others))
    within: dict[str, Any] = {"scope": scope, "limit": limits.links}
    links, excluded = links_in_scope(base, anchors, **within)
    if extract.nofollow:
        excluded += not_followed(links_in_scope(base, ((href, "") for href in extract.nofollow), **within)[0])
    return links, excluded


def _alternates(response: Response, extract: Extract, *, base: str) -> list[str]:
    """Return the URLs that a page names as its alternates: itself in other languages."""
    found = [resolve(base, href) for href in extract.alternates]
    found += [resolve(response.url, url) for url in alternates_in(_header_links(response))]
    return [url for url in found if url]


def not_followed(links: Iterable[Link]) -> tuple[Excluded, ...]:
    """Return links that the page forbids to follow, as excluded ones."""
    return tuple(Excluded(link.url, link.canonical_key, Reason.NOFOLLOW) for link in links)


def modified_date(dates: Iterable[str], headers: Mapping[str, str], *, now: datetime | None = None) -> str:
    """Return the first plausible one of a page's own dates, else of its Last-Modified, as `2026-11-21`; else "".

    Dates are ISO 8601, with or without a time, or HTTP dates (RFC 9110 section 5.6.7), in any time zone. A date before
    1990 or more than a day after `now` (UTC) is not plausible. Header names are lower case.
    """
    now = now or datetime.now(UTC)
    latest = (now + timedelta(days=1)).date()
    changed = parsed_date(headers.get("last-modified", ""))
    if changed is not None and changed >= (parsed_date(headers.get("date", "")) or now) - _GENERATED_NOW:
        changed = None
    for moment in (*map(parsed_date, dates), changed):
        if moment is not None and _EARLIEST <= moment.date() <= latest:
            return moment.date().isoformat()
    return ""


@lru_cache(maxsize=64)  # Pages of a site share times, and those of a second the time of their response.
def parsed_date(text: str) -> datetime | None:
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
