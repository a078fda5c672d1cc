"""The trace of a crawl: what ticks publish for the crawl, up to its pack, belongs to the trace that began it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from app.redis_state.client import PREFIX
from app.tracing import in_trace, trace_headers
from tasks.base import context

#: Seconds for which the trace of a crawl is kept.
_KEPT: Final = 14 * 24 * 3_600


def note_trace(crawl_id: str) -> None:
    """Keep the present trace, if any, as that of a crawl. A message that runs again keeps the first one."""
    if headers := trace_headers():
        context().redis.set(_key(crawl_id), json.dumps(headers), ex=_KEPT, nx=True)


@contextmanager
def trace_of(crawl_id: str) -> Iterator[None]:
    """Let the block belong to the trace of a crawl, where this process sends traces and one is kept."""
    kept = context().redis.get(_key(crawl_id)) if crawl_id and trace_headers() else None
    with in_trace(json.loads(kept) if kept else {}):
        yield


def _key(crawl_id: str) -> str:
    return f"{PREFIX}trace:{crawl_id}"
