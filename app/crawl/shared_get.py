"""One GET a page and crawl: whoever of `index` and `crawl` comes first fetches, the other finds what it found."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import zstandard
from redis import Redis

from app.broker.errors import Postpone
from app.crawl.frontier import Kind, crawl_name, digest, message_name
from app.crawl.values import Gone, Indexed, Redirected, Skipped, Visit
from app.state.client import load_script
from app.state.lease import Renewer
from app.storage.layout import page_of, to_fields

#: Seconds that the second comer looks for the first one's answer before it goes back to the broker: a fast site answers
#: within them, and the hop through a delay queue costs more than the wait.
_BRIEF = 0.05

#: Seconds of the postponement when the answer takes longer.
_LATER = 0.5


class SharedGet:
    """Visits shared through Redis for `ttl` seconds; `lease` seconds after a fetcher died another may fetch."""

    def __init__(self, redis: Redis, *, ttl: int, lease: float = 10.0) -> None:
        self._renewer = Renewer(redis, seconds=lease)
        self._ttl = ttl
        self._lease_ms = int(lease * 1_000)
        here = Path(__file__).parent
        self._turn = load_script(redis, here / "turn.lua")
        self._share = load_script(redis, here / "share.lua")

    def visit(self, crawl_id: str, kind: Kind, key: str, fetch: Callable[[], Visit]) -> Visit | None:
        """Return the visit of a page in a crawl, made by `fetch` if nobody made it before.

        None: this message was worked on already. Raises Postpone when another worker is at it and takes its time, and
        whatever `fetch` raises.
        """
        token, name = uuid.uuid4().bytes, f"{crawl_name(crawl_id)}:visit:{digest(key)}"
        keys = [f"{crawl_name(crawl_id)}:done", f"{crawl_name(crawl_id)}:dead", name, f"{name}:by"]
        answer, *found = self._wait_for_turn(keys, [message_name(kind, key), token, self._lease_ms], key)
        if answer == b"done":
            return None
        if answer == b"visit":
            return _load(found[0])
        shared = b""
        self._renewer.hold(keys[3], token)
        try:
            visit = fetch()
            shared = _dump(visit)
        finally:
            self._renewer.let_go(keys[3])
            self._share(keys=keys[2:], args=[token, shared, self._ttl])
        return visit

    def _wait_for_turn(self, keys: list[str], arguments: list[Any], key: str) -> list[bytes]:
        deadline, pause = time.monotonic() + _BRIEF, 0.002
        while True:
            answer: list[bytes] = self._turn(keys=keys, args=arguments)
            if answer[0] != b"busy":
                return answer
            if time.monotonic() >= deadline:
                raise Postpone(_LATER, f"another worker is fetching {key}")
            time.sleep(pause)
            pause *= 2


_KINDS: dict[str, type[Visit]] = {kind.__name__: kind for kind in (Indexed, Gone, Redirected, Skipped)}


def _dump(visit: Visit) -> bytes:
    fields = asdict(visit) | ({"page": to_fields(visit.page)} if isinstance(visit, Indexed) else {})
    return zstandard.compress(json.dumps([type(visit).__name__, fields], ensure_ascii=False).encode(), 1)


def _load(data: bytes) -> Visit:
    name, fields = json.loads(zstandard.decompress(data))
    if "links" in fields:
        fields["links"] = tuple(fields["links"])
    if "page" in fields:
        fields["page"] = page_of(fields["page"])
    return _KINDS[name](**fields)
