"""Reason codes of a crawl's URLs: what each means. The HTTP statuses `403`, `404`, `410`... are reason codes, too."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Reason(StrEnum):
    """Why a URL is in its state. An entry's `detail` says more: a target, a rule, a size, an error."""

    # Indexed, or unchanged.
    CANONICAL = "canonical"
    DUPLICATE = "duplicate"
    NOT_MODIFIED = "not-modified"
    SAME_CONTENT = "same-content"
    NOT_DUE = "not-due"
    # Redirected, gone, or skipped.
    REDIRECT = "redirect"
    INVALID_REDIRECT = "invalid-redirect"
    TOO_MANY_REDIRECTS = "too-many-redirects"
    MOVED_TO_KNOWN_SITE = "moved-to-known-site"
    NOINDEX = "noindex"
    ROBOTS = "robots"
    CONTENT_TYPE = "content-type"
    TOO_LARGE = "too-large"
    TOO_COMPLEX = "too-complex"
    EMPTY = "empty"
    UNREADABLE = "unreadable"
    SITEMAP = "sitemap"
    SOFT_404_CHECK = "soft-404-check"
    SOFT_404 = "soft-404"
    # Failed.
    DEAD_LETTERED = "dead-lettered"
    LOST = "lost"
    # Excluded: found in a page, and never requested.
    NOFOLLOW = "nofollow"
    MAX_DEPTH = "max-depth"
    MAX_PAGES = "max-pages"
    MAX_SITEMAPS = "max-sitemaps"
    REPEATED_SEGMENTS = "repeated-segments"
    QUERY_VARIANTS = "query-variants"
    PATTERN_PAGES = "pattern-pages"
    IDENTICAL_TEXTS = "identical-texts"
    BLOCKED = "blocked"


#: The codes of URLs that a crawl finds and never requests.
EXCLUDED: Final = (
    Reason.NOFOLLOW,
    Reason.MAX_DEPTH,
    Reason.MAX_PAGES,
    Reason.MAX_SITEMAPS,
    Reason.REPEATED_SEGMENTS,
    Reason.QUERY_VARIANTS,
    Reason.PATTERN_PAGES,
    Reason.IDENTICAL_TEXTS,
    Reason.BLOCKED,
)

#: What each code means; the reference page has the same texts.
MEANINGS: Final[dict[Reason, str]] = {
    Reason.CANONICAL: "The page names another one by `rel=canonical`.",
    Reason.DUPLICATE: "Another page has the same title and text.",
    Reason.NOT_MODIFIED: "The server answered 304: the page is as before.",
    Reason.SAME_CONTENT: "The server sent the page again, and it is as before.",
    Reason.NOT_DUE: "The page did not change for long, so it was not requested: `max_page_interval`.",
    Reason.REDIRECT: "The URL redirects to another one.",
    Reason.INVALID_REDIRECT: "The URL redirects to itself, to a forbidden port, or to no valid URL.",
    Reason.TOO_MANY_REDIRECTS: "Trap: `max_redirects` redirects in a row, and the URL redirects, too.",
    Reason.MOVED_TO_KNOWN_SITE: "The start page redirects to another site, which `detail` names.",
    Reason.NOINDEX: "The page forbids to index it, by `<meta>` or by a header.",
    Reason.ROBOTS: "robots.txt forbids to request the URL. `detail` names the line.",
    Reason.CONTENT_TYPE: "Content of this type is not indexed.",
    Reason.TOO_LARGE: "The content is larger than `MAX_BODY_BYTES`.",
    Reason.TOO_COMPLEX: "The page would take too much CPU time.",
    Reason.EMPTY: "The page or PDF has no text without JavaScript.",
    Reason.UNREADABLE: "The PDF is damaged or encrypted, or takes too much time or memory.",
    Reason.SITEMAP: "The URL is a sitemap, or the robots.txt that names some, with the number of URLs in `detail`.",
    Reason.SOFT_404_CHECK: "A URL that cannot exist, requested to know the site's error page.",
    Reason.SOFT_404: "The page has the text of the site's error page.",
    Reason.DEAD_LETTERED: "Every attempt failed, and the message is a dead letter.",
    Reason.LOST: "The message of the page vanished from the broker.",
    Reason.NOFOLLOW: "Links to the URL forbid to follow them, by `rel=nofollow`, `<meta>` or a header.",
    Reason.MAX_DEPTH: "The URL is more than `max_depth` links from the start page.",
    Reason.MAX_PAGES: "The crawl had `MAX_PAGES` pages already.",
    Reason.MAX_SITEMAPS: "The crawl had 1,000 sitemaps already.",
    Reason.REPEATED_SEGMENTS: "Trap: the path has one segment over `max_repeated_segments` times, or over 50 segments.",
    Reason.QUERY_VARIANTS: "Trap: the crawl has `max_query_variants` URLs of the path with two or more parameters.",
    Reason.PATTERN_PAGES: "Trap: the crawl has `max_pattern_pages` URLs with a query of the directory pattern.",
    Reason.IDENTICAL_TEXTS: "Trap: `max_identical_texts` pages in a row of the directory pattern had texts met before.",
    Reason.BLOCKED: "A setting of the site forbids to request the URL.",
}
