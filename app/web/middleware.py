"""What stands around all routes: refusals, limits, header fields, HEAD, and the clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fastapi import Response
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.web.faults import BUSY, LIMITED, NOT_ALLOWED, TOO_LONG, WITH_BODY, Fault
from app.web.limits import Allowance, Gate, RateLimiter
from app.web.metrics import Metrics

#: Fields of every answer. Nothing comes from elsewhere, nothing runs that is not ours, nobody frames us.
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    # What was searched for is nobody's business at the site that is found.
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
ALLOWED = "GET, HEAD"
#: Bytes of path and query: sixteen domains and 255 characters of four bytes, percent-encoded, stay below.
MAX_TARGET = 8_192
#: Where searching is counted against an address's allowance; on the search page, only with a query.
LIMITED_PATHS = frozenset({"/", "/suggest", "/api/v1/search", "/api/v1/suggest"})

#: A header field as ASGI has it.
_Field = tuple[bytes, bytes]


def _fields(headers: Mapping[str, str]) -> list[_Field]:
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]


_FIELDS = _fields(HEADERS)

#: Answers a request (its scope) with a fault, in the form that whoever asked can read.
Teller = Callable[[Scope, Fault, str], Response]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """The outermost part of the application. What it refuses never reaches a route."""

    inner: ASGIApp
    limiter: RateLimiter
    gate: Gate
    metrics: Metrics
    tell: Teller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; anything but HTTP goes through."""
        if scope["type"] != "http":
            await self.inner(scope, receive, send)
            return
        began = time.perf_counter()
        # HEAD is answered as GET is, without the body (RFC 9110 section 9.3.2).
        asked = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        answer = _Answer(send, bodiless=scope["method"] == "HEAD")
        try:
            await self._answer(asked, receive, answer)
        finally:
            self.metrics.answered(_route_of(asked), answer.status, time.perf_counter() - began)

    async def _answer(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        fault = refusal(scope)
        if fault is not None:
            await self._refuse(fault, scope, receive, answer)
        elif not is_search(scope):
            await self.inner(scope, receive, answer.send)
        else:
            await self._search(scope, receive, answer)

    async def _search(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        allowance = await self.limiter.ask((scope["client"] or ("unknown",))[0])
        answer.fields = allowance.headers
        if not allowance.granted:
            await self._refuse(LIMITED, scope, receive, answer, detail=_detail(allowance), after=allowance.reset)
            return
        async with self.gate.place() as admitted:
            if admitted:
                await self.inner(scope, receive, answer.send)
            else:
                await self._refuse(BUSY, scope, receive, answer)

    async def _refuse(
        self,
        fault: Fault,
        scope: Scope,
        receive: Receive,
        answer: _Answer,
        *,
        detail: str = "",
        after: int | None = None,
    ) -> None:
        self.metrics.turned_away(fault.name)
        response = self.tell(scope, fault, detail)
        if fault is NOT_ALLOWED:
            response.headers["Allow"] = ALLOWED
        if after is not None:
            response.headers["Retry-After"] = str(after)
        await response(scope, receive, answer.send)


class _Answer:
    """Sends an answer on, with our header fields and, for HEAD, without its body."""

    def __init__(self, send: Send, *, bodiless: bool) -> None:
        self._send = send
        self._bodiless = bodiless
        self.fields: Mapping[str, str] = {}
        self.status = 500

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            given = {name for name, _ in message["headers"]}
            ours = (*_FIELDS, *_fields(self.fields))
            message["headers"] = [*message["headers"], *(field for field in ours if field[0] not in given)]
        elif self._bodiless and message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await self._send(message)


def refusal(scope: Scope) -> Fault | None:
    """Return why a request is refused whatever it asks for: we only read, and nothing of a request but its address."""
    if scope["method"] not in {"GET", "HEAD"}:
        return NOT_ALLOWED
    if len(scope["raw_path"]) + len(scope["query_string"]) > MAX_TARGET:
        return TOO_LONG
    headers = Headers(scope=scope)
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        return WITH_BODY
    return None


def is_search(scope: Scope) -> bool:
    """Tell whether a request makes us search or suggest."""
    path = scope["path"]
    return path in LIMITED_PATHS and (path != "/" or b"q=" in scope["query_string"])


def _detail(allowance: Allowance) -> str:
    return f"at most {allowance.limit} searches in {allowance.window} s; the next one in {allowance.reset} s"


def _route_of(scope: Scope) -> str:
    """Return the path of the route that answered, or would have: of these there are few, unlike paths of requests."""
    if "route" in scope:
        return str(scope["route"].path)
    path = scope["path"]
    return path if path in LIMITED_PATHS else "/static" if path.startswith("/static/") else "none"
