"""One GET a page and crawl: whoever of `index` and `crawl` comes first fetches, the other finds what it found."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import zstandard
from redis import Redis

from app.crawl.frontier import digest
from app.crawl.values import Gone, Indexed, Redirected, Skipped, Visit
from app.errors import Postpone
from app.state.client import PREFIX
from app.storage.content import Page

_RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end return 0"

#: Seconds that the second comer looks for the first one's answer before it goes back to the broker: a fast site answers
#: within them, and the hop through a delay queue costs more than the wait.
_BRIEF = 0.05

#: Seconds of the postponement when the answer takes longer.
_LATER = 0.5


class SharedGet:
    """Visits shared through Redis for `ttl` seconds; `lease` seconds after a fetcher died another may fetch."""

    def __init__(self, redis: Redis, *, ttl: int, lease: float) -> None:
        self._redis = redis
        self._ttl = ttl
        self._lease_ms = int(lease * 1_000)

    def visit(self, crawl_id: str, key: str, fetch: Callable[[], Visit]) -> Visit:
        """Return the visit of a page in a crawl, made by `fetch` if nobody made it before.

        Raises Postpone when another worker is at it and takes its time, and whatever `fetch` raises.
        """
        name = f"{PREFIX}visit:{crawl_id}:{digest(key)}"
        token = uuid.uuid4().bytes
        if not self._take(name, token, key):
            return _load(self._redis.get(name))
        try:
            # Somebody may have finished between our look and our lease.
            known = self._redis.get(name)
            if known is not None:
                return _load(known)
            visit = fetch()
            self._redis.set(name, _dump(visit), ex=self._ttl)
        finally:
            self._redis.eval(_RELEASE, 1, f"{name}:by", token)
        return visit

    def _take(self, name: str, token: bytes, key: str) -> bool:
        """Return True with the right to fetch, False when the answer is there; raises Postpone when neither is soon."""
        deadline, pause = time.monotonic() + _BRIEF, 0.002
        while not self._redis.exists(name):
            if self._redis.set(f"{name}:by", token, nx=True, px=self._lease_ms):
                return True
            if time.monotonic() >= deadline:
                raise Postpone(_LATER, f"another worker is fetching {key}")
            time.sleep(pause)
            pause *= 2
        return False


_KINDS: dict[str, type[Visit]] = {kind.__name__: kind for kind in (Indexed, Gone, Redirected, Skipped)}


def _dump(visit: Visit) -> bytes:
    return zstandard.compress(json.dumps([type(visit).__name__, asdict(visit)], ensure_ascii=False).encode(), 1)


def _load(data: Any) -> Visit:
    name, fields = json.loads(zstandard.decompress(data))
    if "links" in fields:
        fields["links"] = tuple(fields["links"])
    if "page" in fields:
        fields["page"] = Page(**{**fields["page"], "headings": tuple(fields["page"]["headings"])})
    return _KINDS[name](**fields)
