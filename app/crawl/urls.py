"""URLs and domains: parse them from messages and text, resolve links as browsers do, canonical keys, scope."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple, NoReturn

import ada_url
from w3lib.url import canonicalize_url

from app.broker.errors import InvalidMessage
from app.crawl.path_rules import ALL_PATHS, PathRules
from app.crawl.record.reasons import Reason
from app.errors import InvalidUrl, OutOfScope
from app.http.urls import without_credentials
from app.text.anchor_texts import MAX_ANCHORS, joined_texts

#: Characters of a URL.
MAX_LENGTH = 2_000
#: Segments of a path; a longer path is a trap.
MAX_SEGMENTS = 50
#: Times that a path may have one segment; with more, it is a trap.
MAX_REPEATED_SEGMENTS = 2
#: Characters that a page's links in scope may have on average, if there are as many links as allowed.
_CHARACTERS_OF_A_LINK = 250
#: The same for all of its links with their base. Each is resolved before its scope is known, which takes a second for
#: ten times the text of a long page. A long base makes every short link long.
_CHARACTERS_TO_RESOLVE = 20_000

#: Message keys that name a page; the other keys of a message are its task's own.
CRAWL_URL_FIELDS = ("url", "domain", "path", "scheme", "crawl_id", "depth")

#: Parameters of a query or path that hold a session and never select a page, as regular expressions.
SESSION_PARAMETERS = (
    "jsessionid", "phpsess(?:ion)?id", "aspsessionid[a-z]*", r"asp\.net_sessionid", "session[_-]?id", "sess_id",
    "oscsid", "zenid", "cfid", "cftoken",
)  # fmt: skip
#: Parameters that campaigns, advertisements and newsletters add to links.
TRACKING_PARAMETERS = (
    "utm_[a-z_]+", "fbclid", "gclid", "gclsrc", "gbraid", "wbraid", "dclid", "msclkid", "yclid", "twclid", "ttclid",
    "igshid", "mc_[ce]id", "mkt_tok", "_hsenc", "_hsmi", "_ga", "_gl",
)  # fmt: skip
#: These hold a session only if the value looks like one. It has eight or more hex digits that are not all digits, or 16
#: letters and digits. `?sid=12` may be a story, `?session=fall2026` a term.
SESSION_LIKE_PARAMETERS = ("sid", "sess", "sessid", "session")

_NAMES = "|".join((*SESSION_PARAMETERS, *TRACKING_PARAMETERS))
_LIKE = "|".join(SESSION_LIKE_PARAMETERS)
_SESSION = "(?=[a-z]*[0-9])(?:(?=[0-9]*[a-f])[0-9a-f]{8,15}|[0-9a-z]{16,})(?=[&#;]|$)"
_SESSION_QUERY = re.compile(rf"(?<=[?&;])(?:(?:{_NAMES})=[^&#;]*|(?:{_LIKE})={_SESSION})[&;]?", re.I)
_SESSION_PATH = re.compile(
    rf";(?:(?:{'|'.join(SESSION_PARAMETERS)})=[^/?#;]*|(?:{_LIKE})={_SESSION.replace('[&#;]', '[/?#;]')})", re.I
)

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):", re.I)
_HOST_PORT = re.compile(r"[^/?#:\[\]]+:\d{1,5}(?:[/?#]|$)")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_NOT_A_HOST = re.compile(r"[/?#@\\\s]")
#: Host and port of an http(s) URL without credentials.
_AUTHORITY = re.compile(r"https?://([^/?#@\\]+)(?:[/?#]|$)")
#: A URL of ada-url that is its own canonical form: no query, no parameter, nothing encoded.
_PLAIN = re.compile(r"https?://[a-z0-9.-]+(?::\d+)?/[A-Za-z0-9._~/-]*")
#: A relative link that a browser only appends: steps upwards, or one to the root, then names without dots in front.
_PLAIN_LINK = re.compile(r"(/|(?:\.\./)*)((?:[A-Za-z0-9_~-][A-Za-z0-9._~-]*(?:/|$))*)")
#: A query that is its own canonical form except for the order of its pairs.
_PLAIN_QUERY = re.compile(r"[A-Za-z0-9._~-]+=[A-Za-z0-9._~-]*(?:&[A-Za-z0-9._~-]+=[A-Za-z0-9._~-]*)*")


#: The role of a URL whose message reads sitemaps: one itself, or the robots.txt that names them.
SITEMAP = "sitemap"
#: The role of a URL that cannot exist: the response shows what the site's error pages look like.
SOFT_404_CHECK = "soft-404-check"


@dataclass(frozen=True, slots=True)
class CrawlUrl:
    """A URL to crawl, as a message names it. `domain` names its pack; `crawl_id` is empty outside of a crawl.

    The frontier of its crawl has it as a `FrontierUrl`. `referrer` is the id of the page that led to it, or empty.
    `redirects` is the number of redirects in a row that led to it. `role` is `sitemap`,
    `soft-404-check` or, for a page, empty.
    """

    url: str
    domain: str
    canonical_key: str
    crawl_id: str = ""
    #: Links between the start page and this one.
    depth: int = 0
    referrer: str = ""
    redirects: int = 0
    role: str = ""

    @property
    def key(self) -> str:
        """The frontier's name of the URL, by its role."""
        return frontier_key(self.canonical_key, self.role)


def frontier_key(canonical_key: str, role: str = "") -> str:
    """Return what the frontier and the crawl record name a URL by: as a sitemap it is another one than as a page."""
    return f"{role} {canonical_key}" if role == SITEMAP else canonical_key


def parse_crawl_url(message: Mapping[str, Any], *, any_host: bool = False) -> CrawlUrl:
    """Return the page that a message names by `url`, or else by `domain`, `path` and `scheme`.

    Its host is the domain or below it, or with `any_host` any. Raises InvalidMessage, InvalidUrl or OutOfScope with
    the reason.
    """
    url, domain = _text(message, "url"), _text(message, "domain")
    if not url and not domain:
        raise InvalidMessage("a message needs `url` or `domain`, and has neither")
    path, scheme = _text(message, "path") or "/", _text(message, "scheme") or "https"
    absolute = parse_url(url or join_url(domain, path=path, scheme=scheme))
    name = parse_domain(join_url(domain, scheme=scheme)) if domain else host_of(absolute)
    if not any_host and not Scope(name, mode="suffix").contains(absolute):
        raise OutOfScope(f"{absolute} is not in the domain {name}")
    depth = message.get("depth", 0)
    if not isinstance(depth, int) or isinstance(depth, bool) or depth < 0:
        raise InvalidMessage(f"depth {depth!r}: expected a whole number of links from the start page")
    return CrawlUrl(absolute, name, _key_of(absolute), _text(message, "crawl_id"), depth)


def parse_message_domain(message: Mapping[str, Any]) -> str:
    """Return the domain of a message that names no page; raises InvalidMessage or InvalidUrl."""
    url, domain = _text(message, "url"), _text(message, "domain")
    if not url and not domain:
        raise InvalidMessage("a message needs `domain`, and has none")
    return parse_domain(url or join_url(domain, scheme=_text(message, "scheme") or "https"))


def _text(message: Mapping[str, Any], field: str) -> str:
    value = message.get(field)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidMessage(f"{field}: expected text, not {type(value).__name__}")
    return value


@lru_cache(maxsize=1_024)
def parse_domain(text: str) -> str:
    """Return the domain that `Site.GOV`, `site.gov:8080` or a URL of the site names; raises InvalidUrl.

    A domain is a host in lower case, with IDN as punycode, and with its port where that is not the scheme's default.
    """
    # The WHATWG URL standard reads "https:///path" as the host "path".
    if not text.strip() or text.lstrip().startswith(("/", "\\")):
        _refuse(text, "expected the domain of a site")
    return host_of(parse_url(text if "://" in text else f"https://{text}"))


def join_url(domain: str, *, path: str = "/", scheme: str = "https") -> str:
    """Return the URL of a page given by its parts; raises InvalidUrl unless `domain` is only a host with its port."""
    if _NOT_A_HOST.search(domain):
        _refuse(domain, "a domain is a host name, with its port unless that is the default, and nothing else")
    if scheme.lower() not in ("http", "https"):
        _refuse(f"{scheme}://{domain}", "its scheme is neither http nor https")
    return f"{scheme}://{domain}{path if path.startswith('/') else '/' + path}"


def parse_url(text: str) -> str:
    """Return the absolute URL of a page, normalised as the WHATWG URL standard says, without fragment.

    The host is lower case, with IDN as punycode and without a default port. A URL without a scheme ("Site.GOV/x") is
    taken as https. Raises InvalidUrl for an empty text, other schemes, credentials, control characters, a missing
    host or more than `MAX_LENGTH` characters.
    """
    stripped = text.strip(" ")
    if not stripped:
        _refuse(text, "it is empty")
    if _CONTROL.search(stripped):
        _refuse(text, "it contains control characters")
    with_scheme = stripped
    if not has_scheme(stripped):
        host = re.split(r"[/?#:]", stripped, maxsplit=1)[0]
        if not stripped.startswith(("//", "[")) and "." not in host and host.lower() != "localhost":
            _refuse(stripped, "it has neither a scheme nor a host name with a dot")
        with_scheme = f"https:{stripped}" if stripped.startswith("//") else f"https://{stripped}"
    try:
        parsed = ada_url.URL(with_scheme)
    except ValueError:
        empty = re.fullmatch(r"https?:[/\\]*([?#].*)?", with_scheme, re.I | re.S)
        _refuse(text, "it has no host" if empty else "it is not a valid URL")
    if "@" in with_scheme and (parsed.username or parsed.password):
        _refuse(text, "it contains credentials")
    href = parsed.href.partition("#")[0]
    if len(href) > MAX_LENGTH:
        _refuse(text, f"it has {len(href)} characters, more than {MAX_LENGTH}")
    return href


def has_scheme(text: str) -> bool:
    """Return whether a URL begins with its scheme; raises InvalidUrl for a scheme other than http and https."""
    named = _SCHEME.match(text)
    if named is None or _HOST_PORT.match(text):
        return False
    if named[1].lower() not in ("http", "https"):
        _refuse(text, "its scheme is neither http nor https")
    return True


def _refuse(text: str, reason: str) -> NoReturn:
    shown = without_credentials(text)
    shown = shown if len(shown) <= 200 else shown[:200] + "..."
    raise InvalidUrl(f"URL {shown!r}: {reason}")


def resolve(base: str, link: str) -> str | None:
    """Return the absolute URL of a link, without fragment, as a browser at `base` would (WHATWG URL standard).

    Returns None for other schemes, credentials, invalid URLs and more than `MAX_LENGTH` characters. Never raises.
    """
    try:
        url = str(ada_url.join_url(base, link))
    except ValueError:  # Also UnicodeEncodeError, for a lone surrogate.
        return None
    url = url.partition("#")[0]
    return url if len(url) <= MAX_LENGTH and _AUTHORITY.match(url) else None


@lru_cache(maxsize=8192)
def host_of(url: str) -> str:
    """Return the host of an absolute http(s) URL, with `:port` where it is not the scheme's; raises InvalidUrl."""
    try:
        return str(ada_url.URL(url).host)
    except ValueError:
        _refuse(url, "it is not an absolute URL")


def robots_url(url: str) -> str:
    """Return the URL of the robots.txt for an absolute URL; raises InvalidUrl."""
    try:
        return f"{ada_url.URL(url).origin}/robots.txt"
    except ValueError:
        _refuse(url, "it is not an absolute URL")


def path_of(url: str) -> str:
    """Return the path of an absolute http(s) URL with its query; raises InvalidUrl."""
    normal = _normalised(url)
    found = _AUTHORITY.match(normal)
    if found is None:
        _refuse(url, "it is not an absolute http(s) URL without credentials")
    path, mark, query = normal[found.end(1) :].partition("#")[0].partition("?")
    return path + mark + query if query else path


def canonical_key(url: str) -> str:
    """Return the key by which pages are deduplicated: sorted query, uniform escapes, no fragment, no session.

    The key is only compared; a fetch uses the URL as it was linked. Raises InvalidUrl for a URL that is not absolute.
    """
    return _key_of(_normalised(url))


@lru_cache(maxsize=256)
def _normalised(url: str) -> str:
    """Return an absolute URL as the WHATWG URL standard serialises it. A page in work asks for its own repeatedly."""
    try:
        return str(ada_url.normalize_url(url))
    except ValueError:
        _refuse(url, "it is not an absolute URL")


@lru_cache(maxsize=16_384)
def _key_of(url: str) -> str:
    """Return the canonical key of a URL that ada-url normalised."""
    if _PLAIN.fullmatch(url):
        return url
    path, mark, query = url.partition("#")[0].partition("?")
    if ";" in path:
        path = _SESSION_PATH.sub("", path)
    url = path
    if mark:
        kept, removed = _SESSION_QUERY.subn("", mark + query)
        url = path + (kept.rstrip("?&;") if removed else kept)
    path, _, query = url.partition("?")
    # The same as w3lib's result, without its cost, where nothing is to be escaped.
    if _PLAIN.fullmatch(path) and _PLAIN_QUERY.fullmatch(query):
        pairs = query.split("&")
        return f"{path}?{'&'.join(sorted(pairs, key=lambda pair: pair.split('=', 1)))}" if len(pairs) > 1 else url
    return str(canonicalize_url(url, keep_blank_values=True))


def allows_port(domain: str, url: str, ports: Collection[int]) -> bool:
    """Return whether a redirect from `domain` may lead to the port of `url`, an absolute URL.

    These are 80, 443, the domain's own port, and `ports`. The domain's own port is the one that a start URL names.
    """
    port = ada_url.URL(url).port
    return not port or int(port) in (80, 443, *ports) or port == ada_url.URL(f"http://{domain}").port


@dataclass(frozen=True, slots=True)
class Scope:
    """The URLs that a crawl of `domain` may fetch.

    Mode `exact` is that host and port, with http and https alike; `suffix` adds its subdomains on the same port.
    `rules` say which paths are followed. A path with one segment more than `max_repeated_segments` times is a trap.
    """

    domain: str
    mode: Literal["exact", "suffix"] = "exact"
    rules: PathRules = ALL_PATHS
    max_repeated_segments: int = MAX_REPEATED_SEGMENTS

    def contains(self, url: str, *, any_path: bool = False) -> bool:
        """Return whether a URL is in the scope; it must be normalised by `parse_url` or `resolve`.

        With `any_path`, whether it is a page of the domain, whatever its path.
        """
        found = _AUTHORITY.match(url)
        if found is None:
            return False
        host = found[1]
        if host != self.domain and (self.mode == "exact" or not host.endswith("." + self.domain)):
            return False
        return any_path or self.rules is ALL_PATHS or self.rules.allow(url[found.end(1) :].partition("#")[0])

    def blocks(self, url: str) -> bool:
        """Return whether only `rules` keep a URL out of the scope."""
        return self.rules is not ALL_PATHS and not self.contains(url) and Scope(self.domain, self.mode).contains(url)


def is_trap(url: str, *, max_repeated: int = MAX_REPEATED_SEGMENTS) -> bool:
    """Return whether a path has more than MAX_SEGMENTS segments, or one segment more than `max_repeated` times.

    Relative links that nest forever have such paths. Numbers may be repeated, since dates and shards repeat them. Nutch
    drops paths with repetitions by default, Heritrix those of more than 20 segments.
    """
    slashes = url.count("/")
    if slashes < max_repeated + 3:
        return False
    path = url.partition("?")[0]
    if slashes > MAX_SEGMENTS and path.count("/") - 2 > MAX_SEGMENTS:
        return True
    segments = [part for part in path.split("/")[3:] if part and not part.isdigit()]
    if len(segments) - len(set(segments)) < max_repeated:
        return False
    return max(Counter(segments).values()) > max_repeated


class Link(NamedTuple):
    """A page in scope that another page leads to: its absolute URL, its canonical key, and the anchor texts."""

    url: str
    canonical_key: str
    text: str = ""


class Excluded(NamedTuple):
    """A URL in scope that another page leads to and that is not requested, with the reason code."""

    url: str
    canonical_key: str
    reason: str


class _Base:
    """The URL that a page's links are relative to."""

    def __init__(self, url: str) -> None:
        self._url = url
        try:
            normal = _normalised(url)
        except InvalidUrl:
            normal = ""
        folder = normal.partition("#")[0].partition("?")[0].rpartition("/")[0]
        found = _AUTHORITY.match(normal)
        #: The folder of the page and those above it, each with its slash; empty where `_PLAIN_LINK` means nothing.
        self._folders = []
        if found is not None:
            self._folders = [f"{folder}/"]
            while len(folder) > found.end(1):
                folder = folder.rpartition("/")[0]
                self._folders.append(f"{folder}/")

    def resolve(self, href: str) -> str | None:
        """Return what `resolve` returns for a link; plain links are joined without a parser."""
        plain = _PLAIN_LINK.fullmatch(href) if href and self._folders else None
        if plain is None:
            return resolve(self._url, href)
        up, names = plain.groups()
        url = self._folders[-1 if up == "/" else min(len(up) // 3, len(self._folders) - 1)] + names
        return url if len(url) <= MAX_LENGTH else None


def links_in_scope(
    base: str, anchors: Iterable[tuple[str, str]], *, scope: Scope, limit: int
) -> tuple[tuple[Link, ...], tuple[Excluded, ...]]:
    """Return the links in scope, in document order, until they `are_full`, and the excluded ones: traps, blocked paths.

    `anchors` are hrefs with their texts. Links are distinct by canonical key: the first of two URLs of one page is
    kept, with the texts of both.
    """
    found: dict[str, Link] = {}
    excluded: dict[str, Excluded] = {}
    unresolved, left, left_excluded = limit * _CHARACTERS_TO_RESOLVE, *[limit * _CHARACTERS_OF_A_LINK] * 2
    base_url = _Base(base)
    for href, text in anchors:
        unresolved -= len(base) + len(href)
        if unresolved < 0 or left <= 0 or len(found) >= limit:
            break
        url = base_url.resolve(href)
        if url is None:
            continue
        contained = scope.contains(url)
        if not contained and not scope.blocks(url):
            continue
        if not contained or is_trap(url, max_repeated=scope.max_repeated_segments):
            if left_excluded > 0 and len(excluded) < limit:
                key = _key_of(url)
                excluded[key] = Excluded(url, key, Reason.REPEATED_SEGMENTS if contained else Reason.BLOCKED)
                left_excluded -= len(url)
            continue
        key = _key_of(url)
        link = found.get(key)
        if link is None:
            found[key] = Link(url, key, text)
            left -= len(url)
        elif text and text != link.text and len(link.text) < MAX_ANCHORS:
            found[key] = Link(link.url, key, joined_texts([*link.text.split("\n"), *text.split("\n")]))
    return tuple(found.values()), tuple(excluded.values())


def are_full(links: Collection[Link], *, limit: int) -> bool:
    """Return whether links of a page, from `links_in_scope`, are as many or as long as allowed: it may have more."""
    return len(links) >= limit or sum(len(link.url) for link in links) >= limit * _CHARACTERS_OF_A_LINK
