"""robots.txt of every host: fetched once a day by one worker, kept in Redis, parsed once a minute in each process."""

from __future__ import annotations

import time
from urllib.parse import urlsplit

from redis import Redis

from app.broker.errors import Postpone
from app.crawl.fetch import Fetcher
from app.crawl.robots import RobotsRules, fetch_robots
from app.errors import RobotsUnavailable
from app.state.client import PREFIX

#: Seconds: RFC 9309 section 2.4 allows a copy to be used for 24 hours.
_TTL = 86_400

#: Seconds that a process trusts what it parsed.
_FRESH = 60.0

#: Seconds after which another worker may fetch, when the first one died over it.
_LEASE = 60

#: Milliseconds for which a robots.txt that could not be had is not asked for again: every page of the host needs it,
#: and a host in trouble must not be asked once for each.
_DOWN_MS = 1_000


class RobotsCache:
    """The rules of hosts."""

    def __init__(self, redis: Redis, fetcher: Fetcher, *, user_agent: str, max_crawl_delay: float) -> None:
        self._redis = redis
        self._fetcher = fetcher
        self._user_agent = user_agent
        self._max_crawl_delay = max_crawl_delay
        self._parsed: dict[str, tuple[float, RobotsRules]] = {}

    def rules(self, url: str) -> RobotsRules:
        """Return the rules of a URL's host; raises RobotsUnavailable, or Postpone while another worker fetches."""
        parts = urlsplit(url)
        origin = f"{parts.scheme}://{parts.netloc}"
        expires, rules = self._parsed.get(origin, (0.0, None))
        if rules is None or time.monotonic() > expires:
            rules = RobotsRules.parse(
                self._text(origin), user_agent=self._user_agent, crawl_delay_max=self._max_crawl_delay
            )
            self._parsed[origin] = (time.monotonic() + _FRESH, rules)
        return rules

    def _text(self, origin: str) -> str:
        key = f"{PREFIX}robots:{origin}"
        known = self._redis.get(key)
        if known is not None:
            return str(known)
        down = self._redis.get(f"{key}:down")
        if down is not None:
            raise RobotsUnavailable(str(down))
        if not self._redis.set(f"{key}:by", "1", nx=True, ex=_LEASE):
            raise Postpone(1.0, f"another worker is fetching the robots.txt of {origin}")
        try:
            text = fetch_robots(origin + "/", self._fetcher)
            self._redis.set(key, text, ex=_TTL)
        except RobotsUnavailable as error:
            self._redis.set(f"{key}:down", str(error), px=_DOWN_MS)
            raise
        finally:
            self._redis.delete(f"{key}:by")
        return text
