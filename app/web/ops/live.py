"""The event stream of pages of operations: the server sends the parts of a page that changed, as HTML.

https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Final, Literal

from fastapi import Query, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from app.broker.errors import ApplicationError, Overloaded
from app.operations.overview import PATIENCE
from app.web.ops.acts import followed_act
from app.web.ops.home import fragments as home_fragments
from app.web.ops.overviews import overview_of
from app.web.ops.queues import worker_fragments
from app.web.ops.subjects import Subject
from app.web.ops.visits import Reading, Visit

subject = Subject()

#: Streams of one process at the same time, seconds between two looks, and seconds after which a stream ends.
MAX_STREAMS: Final = 20
INTERVAL: Final = 2.0
STREAM_SECONDS: Final = 300.0
#: Milliseconds after which a browser opens a stream again.
_RETRY_MS: Final = 3_000

#: Returns the parts of a page that may change, as HTML by the id of their element.
Fragments = Callable[[], Mapping[str, str]]


class Streams:
    """Counts the open streams of one process."""

    def __init__(self, limit: int = MAX_STREAMS) -> None:
        self._lock = threading.Lock()
        self._limit = limit
        self.open = 0

    def take(self) -> None:
        """Take a place; raises Overloaded if all are taken."""
        with self._lock:
            if self.open >= self._limit:
                raise Overloaded(f"{self._limit} pages are live already: this one stays as it is")
            self.open += 1

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Give a place back after the block."""
        try:
            yield
        finally:
            with self._lock:
                self.open -= 1


class LiveParameters(BaseModel):
    """Which page is followed: an act with `act`, else the one of this name."""

    page: Literal["home", "queues"] = "home"
    act: str = Field("", max_length=100)


@subject.pages.get("/live")
async def live(visit: Reading, parameters: Annotated[LiveParameters, Query()]) -> StreamingResponse:
    """Send the parts of a page that change."""
    overview = overview_of(visit.request)
    if parameters.act:
        return stream(visit, followed_act(visit, parameters.act))
    if parameters.page == "queues":
        return stream(visit, lambda: worker_fragments(overview, time.monotonic() + PATIENCE))
    return stream(visit, lambda: home_fragments(overview.read()))


def stream(visit: Visit, fragments: Fragments) -> StreamingResponse:
    """Return the stream of a page's fragments, while the session goes on; raises Overloaded if there are too many.

    `fragments` runs in a thread. An error of a service ends the stream, and the browser opens another one.
    """
    streams: Streams = visit.request.app.state.streams
    streams.take()
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_events(visit, fragments, streams), media_type="text/event-stream", headers=headers)


async def _events(visit: Visit, fragments: Fragments, streams: Streams) -> AsyncIterator[str]:
    with streams.taken():
        yield f"retry: {_RETRY_MS}\n\n"
        sent: dict[str, str] = {}
        ends = time.monotonic() + STREAM_SECONDS
        while time.monotonic() < ends and _goes_on(visit, visit.request):
            found = await run_in_threadpool(fragments)
            changed = {name: html for name, html in found.items() if sent.get(name) != html}
            for name, html in changed.items():
                yield event("fragment", {"id": name, "html": html})
            if not changed:
                yield ": nothing changed\n\n"  # Proxies close a connection that is silent.
            sent |= changed
            await asyncio.sleep(INTERVAL)


def event(kind: str, data: Mapping[str, str]) -> str:
    """Return one event of a stream; JSON has no line end that would end the event."""
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n"


def _goes_on(visit: Visit, request: Request) -> bool:
    """Return whether the session of a stream has not ended, such as by logging out."""
    try:
        visit.state.access.page_operator(request)
    except ApplicationError:
        return False
    return True
