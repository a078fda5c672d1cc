"""The event stream of pages of operations: the server sends the parts of a page that changed, as HTML.

https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Annotated, Final, Literal

from fastapi import Query
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from app.broker.errors import ApplicationError, Overloaded
from app.operations.overview import PATIENCE
from app.web.client_limits import ConcurrencyLimit
from app.web.ops.acts import followed_act
from app.web.ops.home import fragments as home_fragments
from app.web.ops.queues import worker_fragments
from app.web.ops.requests import Reading, Subject, Visit, overview_of

subject = Subject()

#: Streams of one process at the same time, seconds between two readings, and seconds after which a stream ends.
MAX_STREAMS: Final = 20
INTERVAL: Final = 2.0
STREAM_SECONDS: Final = 300.0
#: Milliseconds after which a browser opens a stream again.
_RETRY_MS: Final = 3_000

#: Returns the parts of a page that may change, as HTML by the id of their element.
Fragments = Callable[[], Mapping[str, str]]


class LiveParameters(BaseModel):
    """Which page is followed: an act with `act`, else the one of this name."""

    page: Literal["home", "queues"] = "home"
    act: str = Field("", max_length=100)


@subject.pages.get("/live")
async def live(visit: Reading, parameters: Annotated[LiveParameters, Query()]) -> StreamingResponse:
    """Send the parts of a page that change."""
    overview = overview_of(visit.request)
    if parameters.act:
        return await stream(visit, followed_act(visit, parameters.act))
    if parameters.page == "queues":
        return await stream(visit, lambda: worker_fragments(overview, time.monotonic() + PATIENCE))
    return await stream(visit, lambda: home_fragments(overview.read()))


async def stream(visit: Visit, fragments: Fragments) -> StreamingResponse:
    """Return the stream of a page's fragments, while the session goes on; raises Overloaded if there are too many.

    `fragments` runs in a thread. An error of a service ends the stream, and the browser opens another one.
    """
    limit: ConcurrencyLimit = visit.request.app.state.streams
    async with AsyncExitStack() as place:
        if not await place.enter_async_context(limit.admit()):
            raise Overloaded(f"{MAX_STREAMS} pages are live already: this one stays as it is")
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        events = _events(visit, fragments, place.pop_all())
        return StreamingResponse(events, media_type="text/event-stream", headers=headers)


async def _events(visit: Visit, fragments: Fragments, place: AsyncExitStack) -> AsyncIterator[str]:
    async with place:
        yield f"retry: {_RETRY_MS}\n\n"
        sent: dict[str, str] = {}
        ends = time.monotonic() + STREAM_SECONDS
        while time.monotonic() < ends:
            try:
                # The session may have ended, such as by logging out.
                visit.state.access.page_operator(visit.request)
                found = await run_in_threadpool(fragments)
            except ApplicationError:
                return  # The answer has begun: only its end can tell the browser.
            changed = {name: html for name, html in found.items() if sent.get(name) != html}
            for name, html in changed.items():
                yield event({"id": name, "html": html})
            if not changed:
                yield ": nothing changed\n\n"  # Proxies close a connection that is silent.
            sent |= changed
            await asyncio.sleep(INTERVAL)


def event(fragment: Mapping[str, str]) -> str:
    """Return the event of a part that changed; JSON has no line end that would end the event."""
    return f"event: fragment\ndata: {json.dumps(fragment)}\n\n"
