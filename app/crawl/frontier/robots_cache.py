"""The robots.txt files of hosts: one worker fetches each, all share it in Redis, and each process parses it."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Collection
from pathlib import Path

from redis import Redis

from app.crawl.frontier.host_limits import HostRateLimiter, host_is_busy
from app.crawl.frontier.values import Host
from app.crawl.policy import product_token
from app.crawl.record.crawls import CrawlSettings
from app.crawl.robots import Getter, RobotsRules, fetch_robots
from app.crawl.urls import host_of, robots_url
from app.errors import RobotsUnavailable
from app.redis_state.client import PREFIX, load_script
from app.redis_state.lease import lease

log = logging.getLogger(__name__)

#: Seconds that Redis keeps a robots.txt; RFC 9309 section 2.4 allows 24 hours.
_TTL = 86_400
#: Bytes of them that Redis keeps for one domain, whatever hosts its pages and sitemaps are on. Then the oldest go.
_DOMAIN_BYTES = 16 * 2**20
#: Seconds that a process uses parsed rules without asking Redis.
_PARSED_TTL = 60.0
#: Files whose parsed rules a process keeps, and their characters together. Parsed they take about twenty times as much.
_PARSED_FILES = 1_000
_PARSED_CHARACTERS = 1_000_000
#: Seconds after which another worker may fetch a robots.txt whose fetcher died.
_FETCH_LEASE = 10.0
#: Milliseconds until an unavailable robots.txt is requested again: every page of the host needs it.
_UNAVAILABLE_MS = 1_000


class RobotsCache:
    """The rules of hosts: fetched once a day by one worker, kept in Redis, parsed once a minute in each process.

    A robots.txt is requested within the rate limit of its host.
    """

    def __init__(
        self,
        redis: Redis,
        rate_limiter: HostRateLimiter,
        *,
        user_agent: str,
        ports: Collection[int] = (),
    ) -> None:
        self._redis = redis
        self._rate_limiter = rate_limiter
        self._user_agent = user_agent
        self._ports = ports
        self._parsed = ParsedFiles()
        self._keep = load_script(redis, Path(__file__).parent / "keep_robots.lua")

    def rules(self, url: str, getter: Getter, limits: CrawlSettings, *, domain: str) -> RobotsRules:
        """Return the rules for an absolute URL; `getter` and `limits` are those of its site, `domain` of its crawl.

        Raises RobotsUnavailable, and Postpone while another worker fetches the robots.txt or its host is busy.
        """
        robots_txt = robots_url(url)
        if (rules := self._parsed.get(robots_txt)) is not None:
            return rules
        key = f"{PREFIX}robots:{robots_txt.removesuffix('/robots.txt')}"
        text = self._lines_in(self._redis.get(key))
        if text is None:
            with lease(self._redis, key.removeprefix(PREFIX), seconds=_FETCH_LEASE):
                # The holder before may have fetched it.
                kept, failure = self._redis.mget(key, f"{key}:down")
                text = self._lines_in(kept)
                if text is None and failure is not None:
                    raise RobotsUnavailable(str(failure))
                if text is None:
                    text = self._fetch(robots_txt, key, getter, limits, domain)
        rules = self._parse(text)
        self._parsed.put(robots_txt, rules, len(text))
        return rules

    def _parse(self, text: str) -> RobotsRules:
        return RobotsRules.parse(text, user_agent=self._user_agent)

    def _lines_in(self, kept: object) -> str | None:
        """Return the lines of a robots.txt that Redis keeps, None if it keeps none for the robot of this name."""
        token, separator, lines = str(kept or "").partition("\n")
        return lines if separator and token == product_token(self._user_agent) else None

    def _fetch(self, robots_txt: str, key: str, getter: Getter, limits: CrawlSettings, domain: str) -> str:
        """Request a robots.txt within the rate limit of its host; share and return the lines that address the robot."""
        host = Host(host_of(robots_txt), limits.host_delay, 1 if limits.host_delay else limits.host_concurrency)
        wait = self._rate_limiter.reserve(host, requester="robots.txt")
        if wait > 0:
            raise host_is_busy(host, wait, ", and its robots.txt is due")
        try:
            text = fetch_robots(robots_txt, getter, ports=self._ports)
        except RobotsUnavailable as error:
            self._rate_limiter.pause_after(host, error)
            self._redis.set(f"{key}:down", str(error), px=_UNAVAILABLE_MS)
            raise
        finally:
            self._rate_limiter.release(host, requester="robots.txt")
        rules = self._parse(text)
        if rules.crawl_delay and rules.requested_delay > rules.crawl_delay:
            log.warning(
                "%s asks for %g s between requests; it waits %g s at most",
                robots_txt, rules.requested_delay, rules.crawl_delay,
            )  # fmt: skip
        of_domain = f"{PREFIX}robots-of:{domain}"
        self._keep(
            keys=[key, of_domain, f"{of_domain}:bytes"],
            args=[f"{product_token(self._user_agent)}\n{rules.lines}", _TTL, _DOMAIN_BYTES],
        )
        return rules.lines


class ParsedFiles:
    """Parsed rules by the URL of their robots.txt: the most recently used ones, each for a minute. Safe for threads."""

    def __init__(self, *, files: int = _PARSED_FILES, characters: int = _PARSED_CHARACTERS) -> None:
        self._files = files
        self._left = characters
        self._entries: OrderedDict[str, tuple[float, int, RobotsRules]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, url: str) -> RobotsRules | None:
        """Return the rules, or None where they are missing or expired."""
        with self._lock:
            expires, _, rules = self._entries.get(url, (0.0, 0, None))
            if rules is None or time.monotonic() > expires:
                return None
            self._entries.move_to_end(url)
            return rules

    def put(self, url: str, rules: RobotsRules, characters: int) -> None:
        """Keep the rules of a file of this length, and forget the least recently used ones beyond the bounds."""
        with self._lock:
            if url in self._entries:
                self._left += self._entries.pop(url)[1]
            self._entries[url] = (time.monotonic() + _PARSED_TTL, characters, rules)
            self._left -= characters
            while len(self._entries) > self._files or (self._left < 0 and len(self._entries) > 1):
                self._left += self._entries.popitem(last=False)[1][1]

    def __len__(self) -> int:
        return len(self._entries)
