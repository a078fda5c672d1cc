"""The middleware around all routes: refusals, costs of searches, header fields, errors and request metrics."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial

from fastapi import Response
from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.broker.errors import ApplicationError, Overloaded
from app.cluster.client.contract import MAX_DOMAINS
from app.errors import BodyRefused, MethodNotAllowed, ResourceNotFound, TooManySearches, UriTooLong
from app.search.query import MAX_CHARACTERS
from app.text.words import words
from app.tracing import span
from app.web.client_limits import ConcurrencyLimit, RateLimiter
from app.web.monitoring import Metrics
from app.web.paths import (
    API,
    CLICKS_PATH,
    LIMITED_PATHS,
    LIVE_PATH,
    LOGIN_PATH,
    SEARCH_BOX,
    SEARCH_PATHS,
    is_for_operators,
    is_ops_page,
)

log = logging.getLogger(__name__)

#: Fields of every answer: resources and scripts come from this server only, and no other site may frame a page.
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    # A site that was found does not learn the query.
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
#: Other values for the operations page. With `no-referrer`, browsers send forms with `Origin: null` (Fetch, "append a
#: request Origin header"). Its icon is in the page, which saves a request.
_OPS_HEADERS = {
    "Referrer-Policy": "same-origin",
    "Content-Security-Policy": HEADERS["Content-Security-Policy"].replace("img-src 'self'", "img-src 'self' data:"),
}
ALLOWED = "GET, HEAD"
#: Bytes of path and query: sixteen domains and 255 characters of four bytes, percent-encoded, are shorter.
MAX_TARGET = 8_192
#: Bytes of a form or document that an operator may send: an edited message.
MAX_OPERATOR_BODY = 2_000_000
#: What an attempt to log in costs of an address's allowance.
_LOGIN_COST = 30
#: Fields of an answer that such a page may read.
_EXPOSED = "Retry-After, RateLimit, RateLimit-Policy"
#: The key of a request's scope for a function that charges its cost once more, and returns whether that was granted.
CHARGE_AGAIN = "perennial.charge_again"
#: Words of a search that cost 1, and sites whose suggestions cost as much as the first one's.
FREE_WORDS = 8
SUGGESTED_SITES = 8
#: Requests of operators at the same time, and that wait: a long record takes minutes.
_OPERATORS_RUNNING, _OPERATORS_WAITING = 6, 16

#: Returns the answer to a request (its scope) that ends in an error, as a page or as problem JSON.
ErrorResponse = Callable[[Scope, type[ApplicationError], str], Response]


class WebMiddleware:
    """Answers what no route should see, and completes the answers of the routes."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        limiter: RateLimiter,
        concurrency: ConcurrencyLimit,
        metrics: Metrics,
        error_response: ErrorResponse,
        origins: Collection[str],
    ) -> None:
        """Wrap `app`. Searches pass `limiter` and `concurrency` first. Pages of `origins` may read the API."""
        self._origins = origins
        self._app = app
        self._limiter = limiter
        self._concurrency = concurrency
        self._operators = ConcurrencyLimit(running=_OPERATORS_RUNNING, waiting=_OPERATORS_WAITING)
        self._metrics = metrics
        self._error_response = error_response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an HTTP request; pass anything else through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        # HEAD is answered as GET is, without the body (RFC 9110 section 9.3.2). Ranges are for GET only (14.2).
        head = scope["method"] == "HEAD"
        headers = [(name, value) for name, value in scope["headers"] if not head or name != b"range"]
        request = {**scope, "method": "GET", "headers": headers} if head else scope
        answer = _Answer(send, cors_headers(scope, self._origins), without_body=head)
        if is_ops_page(scope["path"]):
            answer.headers |= _OPS_HEADERS
        try:
            with span(partial(_route_of, request)):
                await self._respond(request, receive, answer)
        except Exception:
            if answer.started:
                raise  # The server closes the connection, so the client sees that the answer is incomplete.
            log.exception("%s %s failed", scope["method"], scope["path"])
            await self._error_response(request, ApplicationError, "")(request, receive, answer.send)
        finally:
            self._metrics.count_answer(_route_of(request), answer.status, time.perf_counter() - began)

    async def _respond(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        if error := refusal(scope):
            await self._refuse(error, scope, receive, answer)
            return
        of_operator = is_for_operators(scope["path"])
        if of_operator:
            cost = _LOGIN_COST if (scope["path"], scope["method"]) == (LOGIN_PATH, "POST") else 1
        else:
            cost = search_cost(scope["path"], QueryParams(scope["query_string"]), sites=self._metrics.sites)
        if not cost:
            await self._app(scope, receive, answer.send)
            return
        address = (scope["client"] or ("unknown",))[0]

        async def charge_again() -> bool:
            again = await self._limiter.hit(address, cost)
            answer.headers |= again.headers
            return again.granted

        scope[CHARGE_AGAIN] = charge_again
        quota = await self._limiter.hit(address, cost)
        answer.headers |= quota.headers
        if not quota.granted:
            detail = f"at most {quota.limit} searches in {quota.window} s; the next ones in {quota.reset} s"
            detail += f" (this one counts as {cost}, by its sites and words)" if cost > 1 else ""
            await self._refuse(TooManySearches, scope, receive, answer, detail=detail, retry_in=quota.reset)
            return
        if scope["path"] == LIVE_PATH:
            # It lasts for minutes, and has a limit of its own.
            await self._app(scope, receive, answer.send)
            return
        concurrency = self._operators if of_operator else self._concurrency
        async with concurrency.admit() as admitted:
            if admitted:
                await self._app(scope, receive, answer.send)
            else:
                await self._refuse(Overloaded, scope, receive, answer)

    async def _refuse(
        self,
        error: type[ApplicationError],
        scope: Scope,
        receive: Receive,
        answer: _Answer,
        *,
        detail: str = "",
        retry_in: int | None = None,
    ) -> None:
        self._metrics.count_refusal(error.problem.name)
        response = self._error_response(scope, error, detail)
        if error is MethodNotAllowed:
            response.headers["Allow"] = ALLOWED
        if retry_in is not None:
            response.headers["Retry-After"] = str(retry_in)
        await response(scope, receive, answer.send)


class _Answer:
    """Sends an answer with this module's header fields and, for HEAD, without its body."""

    def __init__(self, send: Send, headers: Mapping[str, str], *, without_body: bool) -> None:
        self._send = send
        self._without_body = without_body
        self.headers = dict(headers)
        self.status = 500
        self.started = self._has_ended = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started, self.status = True, message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in (HEADERS | self.headers).items():
                if name == "Vary":  # Its value is a list.
                    headers.add_vary_header(value)
                else:
                    headers.setdefault(name, value)
            if self.status == 401:  # RFC 9110 section 15.5.2 requires it, of pages too.
                headers["WWW-Authenticate"] = 'Bearer realm="operators"'
        elif self._without_body and message["type"] == "http.response.body":
            # The first piece is the last one: a stream would keep the connection until its end.
            if self._has_ended:
                return
            self._has_ended = True
            message = {**message, "body": b"", "more_body": False}
        await self._send(message)


def cors_headers(scope: Scope, origins: Collection[str]) -> Mapping[str, str]:
    """Return the header fields for other origins; empty without the setting and for all other paths.

    A GET without header fields of its own needs no preflight, so no other method is answered.
    """
    path = scope["path"]
    is_public = path == SEARCH_BOX or (path.startswith(API) and not is_for_operators(path))
    if not origins or not is_public:
        return {}
    fields = {"Cross-Origin-Resource-Policy": "cross-origin"}
    if "*" in origins:
        return fields | {"Access-Control-Allow-Origin": "*", "Access-Control-Expose-Headers": _EXPOSED}
    origin = Headers(scope=scope).get("origin", "")
    if origin in origins:
        fields |= {"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": _EXPOSED}
    return fields | {"Vary": "Origin"}


def refusal(scope: Scope) -> type[ApplicationError] | None:
    """Return why no route may see a request: its method, its length or its body. None if a route may."""
    headers = Headers(scope=scope)
    is_too_long = len(scope["raw_path"]) + len(scope["query_string"]) > MAX_TARGET
    if is_for_operators(scope["path"]):
        # The routes know which methods their addresses have.
        # Python reads no number of more than 4,300 digits, zeros included.
        length = headers.get("content-length", "0").lstrip("0") or "0"
        is_given = "transfer-encoding" not in headers and length.isascii() and length.isdigit()
        if is_too_long:
            return UriTooLong
        return None if is_given and int(length) <= MAX_OPERATOR_BODY else BodyRefused
    if scope["path"] == CLICKS_PATH:
        if scope["method"] != "POST":
            return ResourceNotFound
    elif scope["method"] not in {"GET", "HEAD"}:
        return MethodNotAllowed
    if is_too_long:
        return UriTooLong
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        return BodyRefused
    return None


def search_cost(path: str, parameters: QueryParams, *, sites: int) -> int:
    """Return what a request costs of its address's allowance; 0 unless it searches.

    A search costs 1 for each site and every FREE_WORDS words, because each rare word is respelled on each site. Without
    `domain` all `sites` are searched. The search page with sites and without a query costs as much as a suggestion: it
    looks for their crawls. `parameters` are read as the routes read them.
    """
    if path not in LIMITED_PATHS:
        return 0
    text = parameters.get("q", "")
    given = sum(domain.count(",") + 1 for domain in parameters.getlist("domain") if domain.strip())
    has_query = path in SEARCH_PATHS and (path != "/" or bool(text.strip()))
    if path == "/" and not has_query and not given:
        return 0
    # More sites than MAX_DOMAINS are searched only when some are chosen.
    domains = max(1, min(given, MAX_DOMAINS) or (sites if sites <= MAX_DOMAINS else 1))
    if not has_query:
        return 1 + domains // SUGGESTED_SITES
    # A longer text is refused unsearched.
    return domains * max(1, math.ceil(len(words(text[:MAX_CHARACTERS])) / FREE_WORDS))


def _route_of(request: Scope) -> str:
    """Return the route of a request: paths are unlimited. The middleware may answer before a route is found."""
    route, path = request.get("route"), str(request["path"])
    if route is not None:
        return str(route.path)
    return path if path in LIMITED_PATHS else "/static" if path.startswith("/static/") else "none"
