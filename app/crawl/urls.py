"""URLs: read what a message names, resolve links as browsers do, tell pages apart, hold to a scope."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NoReturn

import ada_url
from w3lib.url import canonicalize_url

from app.errors import InvalidUrl

MAX_LENGTH = 2_000

#: Parameters of a query or path that name a session and never a page, as regular expressions.
SESSION_PARAMETERS = (
    "jsessionid", "phpsess(?:ion)?id", "aspsessionid[a-z]*", r"asp\.net_sessionid", "session[_-]?id", "sess_id",
    "oscsid", "zenid", "cfid", "cftoken",
)  # fmt: skip
#: These name a session only where the value looks like one (16 letters and digits or more): `?sid=12` may be a story.
SESSION_LIKE_PARAMETERS = ("sid", "sess", "sessid", "session")

_NAMES = "|".join(SESSION_PARAMETERS)
_LIKE = "|".join(SESSION_LIKE_PARAMETERS)
_SESSION_QUERY = re.compile(
    rf"(?<=[?&;])(?:(?:{_NAMES})=[^&#;]*|(?:{_LIKE})=(?=[a-z]*[0-9])[0-9a-z]{{16,}}(?=[&#;]|$))[&;]?", re.I
)
_SESSION_PATH = re.compile(rf";(?:{_NAMES})=[^/?#;]*", re.I)

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):", re.I)
_HOST_PORT = re.compile(r"[^/?#:\[\]]+:\d{1,5}(?:[/?#]|$)")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_NOT_A_HOST = re.compile(r"[/?#@\\\s]")
#: Host and port of an http(s) URL without credentials.
_AUTHORITY = re.compile(r"https?://([^/?#@\\]+)(?:[/?#]|$)")
#: A URL as ada-url writes it whose canonical form is itself: no query, no parameter, nothing encoded.
_PLAIN = re.compile(r"https?://[a-z0-9.-]+(?::\d+)?/[A-Za-z0-9._~/-]*")
#: A query whose canonical form is itself but for the order of its pairs.
_PLAIN_QUERY = re.compile(r"[A-Za-z0-9._~-]+=[A-Za-z0-9._~-]*(?:&[A-Za-z0-9._~-]+=[A-Za-z0-9._~-]*)*")


def parse_target(
    *,
    url: str | None = None,
    domain: str | None = None,
    path: str = "/",
    scheme: str = "https",
    max_length: int = MAX_LENGTH,
) -> str:
    """Return the absolute URL that a message names by `url`, or else by `domain`, `path` and `scheme`.

    Normalised as the WHATWG URL standard says: lower case host, IDN as punycode, no default port; without fragment.
    A `url` without a scheme ("Site.GOV/x") is taken as https. Raises InvalidUrl, naming the input and the reason, for
    what is not http(s), has credentials or control characters or no host, or is longer than `max_length` characters.
    """
    given = url if url is not None else _assembled(domain, path, scheme)
    text = given.strip(" ")
    if not text:
        _refuse(given, "it is empty")
    if _CONTROL.search(text):
        _refuse(given, "it contains control characters")
    return _normalised(given, _with_scheme(text, given), max_length)


def _assembled(domain: str | None, path: str, scheme: str) -> str:
    if not domain:
        raise InvalidUrl("neither a url nor a domain is given")
    if _NOT_A_HOST.search(domain):
        _refuse(domain, "a domain is a host name, with its port where not the default one, and nothing else")
    if scheme.lower() not in ("http", "https"):
        _refuse(f"{scheme}://{domain}", "its scheme is neither http nor https")
    return f"{scheme}://{domain}{path if path.startswith('/') else '/' + path}"


def _with_scheme(text: str, given: str) -> str:
    if text.startswith("//"):
        return "https:" + text
    named = _SCHEME.match(text)
    if named and not _HOST_PORT.match(text):
        if named[1].lower() not in ("http", "https"):
            _refuse(given, "its scheme is neither http nor https")
        return text
    host = re.split(r"[/?#:]", text, maxsplit=1)[0]
    if "." not in host and host.lower() != "localhost" and not text.startswith("["):
        _refuse(given, "it has neither a scheme nor a host name with a dot")
    return "https://" + text


def _normalised(given: str, text: str, max_length: int) -> str:
    try:
        parsed = ada_url.URL(text)
    except ValueError:
        empty = re.fullmatch(r"https?:[/\\]*([?#].*)?", text, re.I | re.S)
        _refuse(given, "it has no host" if empty else "it is no URL that a browser would open")
    if parsed.username or parsed.password:
        _refuse(given, "it contains credentials")
    href = parsed.href.partition("#")[0]
    if len(href) > max_length:
        _refuse(given, f"it has {len(href)} characters, more than {max_length}")
    return href


def _refuse(given: str, reason: str) -> NoReturn:
    shown = given if len(given) <= 200 else given[:200] + "..."
    raise InvalidUrl(f"URL {shown!r}: {reason}")


def resolve(base: str, link: str, *, max_length: int = MAX_LENGTH) -> str | None:
    """Return the absolute URL of a link, without fragment, as a browser at `base` would (WHATWG URL standard).

    None for what is no page: other schemes, credentials, longer than `max_length`, not to be parsed. Never raises.
    """
    try:
        url = str(ada_url.join_url(base, link))
    except ValueError:  # Also UnicodeEncodeError, of a lone surrogate.
        return None
    url = url.partition("#")[0]
    return url if len(url) <= max_length and _AUTHORITY.match(url) else None


@lru_cache(maxsize=8192)
def domain_of(url: str) -> str:
    """Return the host of an absolute http(s) URL, with `:port` where it is not the scheme's; raises InvalidUrl."""
    try:
        host = str(ada_url.URL(url).host)
    except ValueError:
        _refuse(url, "it is no absolute URL")
    return host


@lru_cache(maxsize=1_024)
def domain_named(text: str) -> str:
    """Return the domain that a person means by `Site.GOV` or a URL; raises InvalidUrl."""
    if not text.strip():
        _refuse(text, "expected the name of a site")
    return domain_of(parse_target(url=text if "://" in text else f"https://{text}"))


def path_of(url: str) -> str:
    """Return the path of an absolute URL with its query; raises InvalidUrl."""
    try:
        parsed = ada_url.URL(url)
    except ValueError:
        _refuse(url, "it is no absolute URL")
    return str(parsed.pathname) + str(parsed.search)


def canonical_key(url: str) -> str:
    """Return what tells pages apart: the URL with its query sorted, escapes alike, no fragment, no session.

    The key is for comparing; what is fetched is the URL as it was linked. Raises InvalidUrl for no absolute URL.
    """
    try:
        return _key_of(str(ada_url.normalize_url(url)))
    except ValueError:
        _refuse(url, "it is no absolute URL")


@lru_cache(maxsize=16_384)
def _key_of(url: str) -> str:
    """Return the canonical key of a URL that ada-url wrote."""
    if _PLAIN.fullmatch(url):
        return url
    url = _without_session(url.partition("#")[0])
    path, _, query = url.partition("?")
    # What follows is what w3lib does, without its cost, where there is nothing to escape.
    if _PLAIN.fullmatch(path) and _PLAIN_QUERY.fullmatch(query):
        pairs = query.split("&")
        return f"{path}?{'&'.join(sorted(pairs, key=_name_and_value))}" if len(pairs) > 1 else url
    return str(canonicalize_url(url, keep_blank_values=True))


def _name_and_value(pair: str) -> list[str]:
    return pair.split("=", 1)


def _without_session(url: str) -> str:
    path, mark, query = url.partition("?")
    if ";" in path:
        path = _SESSION_PATH.sub("", path)
    if not mark:
        return path
    kept, removed = _SESSION_QUERY.subn("", mark + query)
    return path + (kept.rstrip("?&;") if removed else kept)


@dataclass(frozen=True, slots=True)
class Scope:
    """What a crawl of `domain` (host, with port where not the default) may visit.

    `exact` is that host and port, under http and https alike; `suffix` also every host below it, on the same port.
    """

    domain: str
    mode: Literal["exact", "suffix"] = "exact"

    def contains(self, url: str) -> bool:
        """Tell whether an absolute URL, normalised as `parse_target` and `resolve` do, lies in the scope."""
        found = _AUTHORITY.match(url)
        if found is None:
            return False
        host = found[1]
        return host == self.domain or (self.mode == "suffix" and host.endswith("." + self.domain))


def is_trap(url: str) -> bool:
    """Tell whether one segment occurs three times or more in the path: the mark of links that nest for ever.

    Numbers do not count, for dates and shards repeat them. Nutch drops such URLs by default, too.
    """
    if url.count("/") < 5:
        return False
    segments = [part for part in url.partition("?")[0].split("/")[3:] if part and not part.isdigit()]
    if len(segments) - len(set(segments)) < 2:
        return False
    return any(segments.count(segment) >= 3 for segment in set(segments))


def links_in_scope(
    base: str, hrefs: Iterable[str], *, scope: Scope, limit: int, max_length: int = MAX_LENGTH
) -> tuple[str, ...]:
    """Return the pages that raw links lead to: absolute, in scope, in document order, at most `limit`.

    Distinct by canonical key: of two URLs of one page the first stays. Links that nest for ever are left out.
    """
    found: dict[str, str] = {}
    for url in _resolved(base, hrefs, max_length):
        if len(found) >= limit:
            break
        if scope.contains(url) and not is_trap(url):
            found.setdefault(_key_of(url), url)
    return tuple(found.values())


def _resolved(base: str, hrefs: Iterable[str], max_length: int) -> Iterable[str]:
    """Return the distinct absolute URLs of links; those that differ in their fragment only are resolved once."""
    urls: dict[str, None] = {}
    for href in dict.fromkeys(map(_without_fragment, hrefs)):
        url = resolve(base, href, max_length=max_length)
        if url is not None:
            urls[url] = None
    return urls


def _without_fragment(href: str) -> str:
    # White space before the fragment is part of the path, but white space at the end would be stripped: keep it whole.
    cut = href.partition("#")[0]
    return href if cut[-1:].isspace() else cut
