"""Single flight: `index` and `crawl` of one page share one GET, whichever of the two messages runs first."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import fields
from functools import partial
from typing import Final

import zstandard
from redis import Redis
from redis.lock import Lock

from app.broker.errors import InvalidMessage, Postpone
from app.crawl.frontier.values import MessageKind, crawl_key, fingerprint, foreign_crawl, message_name
from app.crawl.parse.classify import FetchResult
from app.crawl.urls import Excluded, Link
from app.redis_state.client import PREFIX
from app.redis_state.lease import lease
from app.storage.layout import page_from_fields, to_fields

#: Seconds that the second message waits for the first one's result before it is postponed, and between two look-ups.
#: A fast site responds within them, and a hop through a delay queue costs more than the wait.
_SHORT_WAIT, _PAUSE = 0.05, 0.005

#: Seconds that `index` and `crawl` of one page share a response. The second message rarely waits for so long.
_RESPONSE_TTL = 3_600

#: Seconds of the postponement when the response takes longer.
_POSTPONEMENT = 0.5

#: No result is shared: the page must be fetched.
_MISSING: Final = FetchResult("skipped")


class SingleFlight:
    """Shares fetch results through Redis, at most for an hour.

    A result is deleted when both messages of its page are completed: the frontier's `complete` does that.
    While a fetch runs, its worker holds a lease on the page; `seconds` after a worker died another may fetch.
    """

    def __init__(self, redis: Redis, *, seconds: float = 10.0) -> None:
        self._redis = redis
        self._seconds = seconds

    def fetch(
        self, crawl_id: str, kind: MessageKind, canonical_key: str, get: Callable[[], FetchResult], *, domain: str = ""
    ) -> FetchResult | None:
        """Return the result for a page of a crawl, from Redis or by calling `get`; None for a completed message.

        Raises Postpone when another worker is still fetching, and whatever `get` raises. With `domain`, raises
        InvalidMessage if the crawl is one of another domain.
        """
        key = f"{crawl_key(crawl_id)}:result:{fingerprint(canonical_key)}"
        shared = partial(self._shared, crawl_id, message_name(kind, canonical_key), key, domain)
        deadline, lock = time.monotonic() + _SHORT_WAIT, None
        with ExitStack() as stack:
            # Also with the lease: the holder before may have shared its result.
            while (found := shared()) is _MISSING and lock is None:
                lock = self._taken(stack, key, canonical_key, deadline)
            if found is not _MISSING or lock is None:
                return found
            result = get()
            # Without the lease, another worker may have shared its own, and both messages may be completed.
            if lock.owned():
                named = {field.name: getattr(result, field.name) for field in fields(result)}
                named["page"] = to_fields(result.page) if result.page else None
                data = zstandard.compress(json.dumps(named, ensure_ascii=False).encode(), 1)
                self._redis.set(key, data, ex=_RESPONSE_TTL)
            return result

    def _shared(self, crawl_id: str, message: str, result_key: str, domain: str) -> FetchResult | None:
        """Return the shared result, _MISSING without one, and None for a message that needs none any more."""
        key = crawl_key(crawl_id)
        pipe = self._redis.pipeline(transaction=False)
        pipe.hmget(key, "domain", "state")
        pipe.hget(f"{key}:pages", message)
        pipe.get(result_key)
        (owner, state), own_state, result = pipe.execute()
        if owner and domain and owner != domain.encode():
            raise InvalidMessage(foreign_crawl(crawl_id, str(owner, "utf-8", "replace"), domain))
        if own_state == b"d" or state == b"cancelled":
            return None
        if not result:
            return _MISSING
        named = json.loads(zstandard.decompress(result))
        named["excluded"] = tuple(Excluded(*each) for each in named["excluded"])
        named["links"] = tuple(Link(*link) for link in named["links"])
        named["page"] = page_from_fields(named["page"]) if named["page"] else None
        return FetchResult(**named)

    def _taken(self, stack: ExitStack, key: str, canonical_key: str, deadline: float) -> Lock | None:
        """Take the lease on a page; None while another worker holds it, which raises Postpone after the deadline."""
        name = key.removeprefix(PREFIX)
        try:
            return stack.enter_context(lease(self._redis, name, seconds=self._seconds, retry_after=_POSTPONEMENT))
        except Postpone as held:
            if time.monotonic() > deadline:
                why = f"{canonical_key} is fetched by another worker"
                raise Postpone(held.seconds, why, code="page-busy") from held
            time.sleep(_PAUSE)
            return None
