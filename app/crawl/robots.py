"""What a site asks of robots: robots.txt (RFC 9309) and X-Robots-Tag."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import ada_url
from protego import Protego

from app.crawl.urls import resolve
from app.errors import FetchError, ForbiddenAddress, InvalidUrl, RobotsUnavailable
from app.http.response import Response

#: Bytes of a robots.txt that are read: RFC 9309 section 2.5 asks for this much at least.
MAX_BYTES = 500 * 1024
#: Redirects followed to a robots.txt: RFC 9309 section 2.3.1.2 asks for five at least.
MAX_REDIRECTS = 5

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_TOKEN = re.compile(r"[A-Za-z_-]+")
#: Directives whose value stands after a colon, and which therefore name no robot.
_VALUED = frozenset({"unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"})
_NAMED = re.compile(r"\s*([a-z*][a-z0-9_-]*)\s*:\s*", re.I)


class Getter(Protocol):
    """What gets a URL without following redirects: a Fetcher."""

    def get(self, url: str) -> Response:
        """Return what came; raises FetchError."""


def product_token(user_agent: str) -> str:
    """Return the name that robots.txt files address: `Perennial` of `Perennial/0.1 (+https://...)`."""
    found = _TOKEN.match(user_agent)
    return found[0] if found else user_agent


def robots_url(url: str) -> str:
    """Return the URL of the robots.txt that rules an absolute URL; raises InvalidUrl."""
    try:
        return f"{ada_url.URL(url).origin}/robots.txt"
    except ValueError as error:
        raise InvalidUrl(f"URL {url!r}: it is no absolute URL") from error


def fetch_robots(url: str, fetcher: Getter) -> str:
    """Return the text of the robots.txt that rules `url`; empty, which allows everything, where there is none.

    None is: any 4xx but 429, more than five redirects, a redirect to nowhere (RFC 9309 section 2.3.1). Raises
    RobotsUnavailable for 5xx, 429 and when there is no answer, and ForbiddenAddress when the host itself is private.
    """
    target: str | None = robots_url(url)
    for hop in range(MAX_REDIRECTS + 1):
        if target is None:
            return ""
        response = _get(target, fetcher, first=hop == 0)
        if response is None:
            return ""
        if response.status not in _REDIRECTS:
            return _text(response)
        target = resolve(target, response.headers.get("location", "http://"))
    return ""


def _get(target: str, fetcher: Getter, *, first: bool) -> Response | None:
    try:
        return fetcher.get(target)
    except ForbiddenAddress:
        if first:
            raise
        return None
    except FetchError as error:
        raise RobotsUnavailable(f"{target}: {error}") from error


def _text(response: Response) -> str:
    if response.status == 429 or response.status >= 500:
        raise RobotsUnavailable(f"{response.url}: {response.status}")
    if not 200 <= response.status < 300:
        return ""
    body = response.body
    if len(body) > MAX_BYTES:  # A line cut in two would be another rule.
        body = body[: body.rfind(b"\n", 0, MAX_BYTES) + 1]
    return body.decode("utf-8-sig", "replace")


@dataclass(frozen=True, slots=True)
class RobotsRules:
    """What one robots.txt asks of one robot. `crawl_delay` is in seconds, None where it asks for none."""

    crawl_delay: float | None
    sitemaps: tuple[str, ...]
    _rules: Protego
    _token: str

    @classmethod
    def parse(cls, text: str, *, user_agent: str, crawl_delay_max: float = 30.0) -> RobotsRules:
        """Read a robots.txt for the robot of this User-Agent; a longer delay than the maximum is cut to it.

        Never raises: lines that mean nothing are passed over.
        """
        token = product_token(user_agent)
        rules = Protego.parse(text.removeprefix("\ufeff"))
        rate = rules.request_rate(token)
        asked = [rules.crawl_delay(token) or 0.0, rate.seconds / rate.requests if rate and rate.requests else 0.0]
        return cls(min(max(asked), crawl_delay_max) or None, tuple(rules.sitemaps), rules, token)

    def allows(self, url: str) -> bool:
        """Tell whether the robot may fetch this absolute URL."""
        return bool(self._rules.can_fetch(url, self._token))


@lru_cache(maxsize=64)
def rules(text: str, user_agent: str, crawl_delay_max: float = 30.0) -> RobotsRules:
    """Return `RobotsRules.parse`, remembered for the sites that this process crawls."""
    return RobotsRules.parse(text, user_agent=user_agent, crawl_delay_max=crawl_delay_max)


def robots_directives(values: Iterable[str], token: str) -> frozenset[str]:
    """Return the directives of X-Robots-Tag values, one per header line, that address everyone or this robot.

    Lower case and without values: `noindex`, `nofollow`, `none`... A value may begin with the robot it addresses,
    as in `Perennial: noindex, nofollow`.
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
