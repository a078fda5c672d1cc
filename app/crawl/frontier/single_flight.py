"""Single flight: `index` and `crawl` of one page share one GET, whichever of the two messages runs first."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import zstandard
from redis import Redis
from redis.lock import Lock

from app.broker.errors import InvalidMessage, Postpone
from app.crawl.frontier.values import MessageKind, crawl_key, fingerprint, foreign_crawl, message_name
from app.crawl.read.classify import FetchResult, Gone, Indexed, Redirected, Skipped, Unchanged
from app.crawl.urls import Excluded, Link
from app.redis_state.client import load_script
from app.redis_state.lease import Renewer
from app.storage.layout import page_from_fields, to_fields

#: Seconds that the second message waits for the first one's result before it is postponed. A fast site responds
#: within them, and a hop through a delay queue costs more than the wait.
_SHORT_WAIT = 0.05

#: Seconds that `index` and `crawl` of one page share a response. The second message rarely waits for so long.
_RESPONSE_TTL = 3_600

#: Seconds of the postponement when the response takes longer.
_POSTPONEMENT = 0.5


class SingleFlight:
    """Shares fetch results through Redis, at most for `ttl` seconds.

    A result is deleted when both messages of its page are completed: the frontier's `complete` does that.
    While a fetch runs, its worker holds a lease on the page; `lease` seconds after a worker died another may fetch.
    """

    def __init__(self, redis: Redis, *, ttl: int = _RESPONSE_TTL, lease: float = 10.0) -> None:
        self._redis = redis
        self._renewer = Renewer(seconds=lease)
        self._ttl = ttl
        self._lease_ms = int(lease * 1_000)
        folder = Path(__file__).parent
        self._begin = load_script(redis, folder / "single_flight_begin.lua")
        self._end = load_script(redis, folder / "single_flight_end.lua")
        self._renew = redis.register_script(Lock.LUA_REACQUIRE_SCRIPT)

    def fetch(
        self, crawl_id: str, kind: MessageKind, canonical_key: str, get: Callable[[], FetchResult], *, domain: str = ""
    ) -> FetchResult | None:
        """Return the result for a page of a crawl, from Redis or by calling `get`; None for a completed message.

        Raises Postpone when another worker is still fetching, and whatever `get` raises. With `domain`, raises
        InvalidMessage if the crawl is one of another domain.
        """
        token, crawl = uuid.uuid4().bytes, crawl_key(crawl_id)
        result_key = f"{crawl}:visit:{fingerprint(canonical_key)}"
        lease_key = f"{result_key}:by"
        keys = [f"{crawl}:pages", result_key, lease_key, crawl]
        arguments = [message_name(kind, canonical_key), token, self._lease_ms, domain]
        deadline, pause = time.monotonic() + _SHORT_WAIT, 0.002
        state, *shared = self._begin(keys=keys, args=arguments)
        while state == b"busy" and time.monotonic() < deadline:
            time.sleep(pause)
            pause *= 2
            state, *shared = self._begin(keys=keys, args=arguments)
        if state == b"foreign":
            raise InvalidMessage(foreign_crawl(crawl_id, str(shared[0], "utf-8", "replace"), domain))
        if state == b"busy":
            raise Postpone(_POSTPONEMENT, f"another worker is fetching {canonical_key}", code="page-busy")
        if state == b"done":
            return None
        if state == b"visit":
            return _load(shared[0])
        dumped = b""
        self._renewer.add(lease_key, lambda: self._renew(keys=[lease_key], args=[token, self._lease_ms]))
        try:
            result = get()
            dumped = _dump(result)
        finally:
            self._renewer.remove(lease_key)
            self._end(keys=[result_key, lease_key], args=[token, dumped, self._ttl])
        return result


_RESULTS: dict[str, type[FetchResult]] = {
    each.__name__: each for each in (Indexed, Unchanged, Gone, Redirected, Skipped)
}


def _dump(result: FetchResult) -> bytes:
    named = {field.name: getattr(result, field.name) for field in fields(result)}
    if isinstance(result, Indexed | Unchanged):
        named["page"] = to_fields(result.page)
    return zstandard.compress(json.dumps([type(result).__name__, named], ensure_ascii=False).encode(), 1)


def _load(data: bytes) -> FetchResult:
    name, named = json.loads(zstandard.decompress(data))
    named["excluded"] = tuple(Excluded(*each) for each in named.get("excluded", ()))
    if "links" in named:
        named["links"] = tuple(Link(*link) for link in named["links"])
    if "page" in named:
        named["page"] = page_from_fields(named["page"])
    return _RESULTS[name](**named)
