"""The web application: middleware, routes, static files, and errors as pages or problem JSON."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import iter_route_contexts
from redis import RedisError
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import Scope

from app.broker.errors import ApplicationError, InvalidMessage
from app.cluster.client.contract import SearchClient
from app.crawl.reports.first_crawls import FirstCrawls
from app.errors import MethodNotAllowed, ResourceNotFound, SearchUnavailable
from app.operations.overview import Overview
from app.sites.search_counter import SearchCounter
from app.web import api, monitoring, opensearch, pages, problems
from app.web.client_limits import ConcurrencyLimit, RateLimiter
from app.web.middleware import WebMiddleware
from app.web.monitoring import CountingSearchClient, Metrics, RoutesCollector, ServicesCollector
from app.web.ops import (
    acts,
    art,
    audit,
    home,
    letter_page,
    letters,
    live,
    login,
    queues,
    searchers,
    site_page,
    site_removal,
    site_urls,
    sites,
    waiting,
)
from app.web.ops.requests import OPS_ERRORS, OpsState, error_page
from app.web.paths import is_for_operators, is_ops_page
from app.web.static_files import VersionedFiles

#: Searches and suggestions of one address.
RATE_LIMIT = "600/minute"
#: Bytes from which an answer is compressed, and the level: a page of results takes half a millisecond.
_LEAST_COMPRESSED = 600
_COMPRESSION = 5
#: Paths outside the API whose errors are answered with problem JSON. Errors of all other paths are pages.
_PROBLEM_PATHS = frozenset({"/suggest", "/opensearch.xml", "/metrics"})
_PUBLIC = (api, pages, problems, opensearch, monitoring)
_OPERATIONS = (
    *(login, home, live, letters, letter_page, acts, waiting),
    *(site_urls, site_removal, site_page, sites, art, queues, searchers, audit),
)


def create_app(
    client: SearchClient,
    *,
    rate_limit: str = RATE_LIMIT,
    counts: Callable[[], Mapping[str, int]] = dict,
    packing: Callable[[], str] = str,
    site_names: Callable[[], Mapping[str, str]] = dict,
    first_crawls: FirstCrawls = lambda _domains: (),
    origins: Collection[str] = (),
    search_counter: SearchCounter | None = None,
    ops: OpsState | None = None,
) -> FastAPI:
    """Return the application that searches with `client`, and closes it when the application ends.

    `rate_limit` is `<number>/<second|minute|hour>` for each address. `counts` returns the client's own counters for
    /metrics. `packing` returns why no site is packed now, or an empty text; it makes the process unready.
    `site_names` returns the display names of sites by domain. `first_crawls` returns how far the crawls of sites
    without a pack are. Pages of `origins` may read the API. `search_counter` counts searches and clicks; None counts
    nothing. It is closed with the application.
    With `ops`, there are the operations page and the operators' API, as far as its access has ways to log in. There are
    also metrics of what all processes share.
    """
    metrics = Metrics()
    metrics.registry.register(RoutesCollector(client, counts))
    overview = Overview(ops.settings, routes=client.current_routes) if ops else None
    if ops and overview:
        metrics.registry.register(ServicesCollector(ops.settings, overview))
    app = _fastapi([client, *([search_counter] if search_counter else [])])
    app.add_middleware(GZipMiddleware, minimum_size=_LEAST_COMPRESSED, compresslevel=_COMPRESSION)
    app.add_middleware(
        WebMiddleware,
        limiter=RateLimiter(rate_limit),
        concurrency=ConcurrencyLimit(),
        metrics=metrics,
        error_response=_error_response,
        origins=origins,
    )
    app.state.search_client, app.state.uncounted_client = CountingSearchClient(client, metrics), client
    app.state.metrics, app.state.packing = metrics, packing
    app.state.search_counter = search_counter
    app.state.site_names, app.state.first_crawls = site_names, first_crawls
    app.state.ops = ops
    app.state.overview = overview
    app.state.streams = ConcurrencyLimit(running=live.MAX_STREAMS, waiting=0)
    for module in _PUBLIC:
        app.include_router(module.router)
    for each in _OPERATIONS:
        app.include_router(each.subject.api, responses=OPS_ERRORS)
        app.include_router(each.subject.pages, include_in_schema=False)
    app.mount("/static", VersionedFiles(), name="static")
    for kind in (ApplicationError, RequestValidationError, HTTPException, RedisError):
        app.add_exception_handler(kind, _answer_error)
    return app


def _fastapi(parts: Sequence[SearchClient | SearchCounter]) -> FastAPI:
    """Return FastAPI with our description of the API; it closes these parts when it ends."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        for part in parts:
            part.close()

    app = FastAPI(
        title="Perennial",
        version="1",
        lifespan=lifespan,
        # FastAPI's documentation pages load scripts from other sites.
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
        # These spans would have queries, which are private, and join a visitor's trace. The middleware has its own.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    # The hook that FastAPI documents for a description of one's own ("Extending OpenAPI").
    app.openapi = partial(api.describe_api, app)  # type: ignore[method-assign]
    return app


def _answer_error(request: Request, error: Exception) -> Response:
    """Answer an error of a route, invalid parameters, or an error of Starlette, such as one for an unknown path."""
    path, kind, detail = request.scope["path"], ApplicationError, ""
    if isinstance(error, RedisError):
        kind, detail = SearchUnavailable, f"Redis: {error}"
    elif isinstance(error, ApplicationError):
        kind = type(error)
        detail = str(error) if is_for_operators(path) else problems.public_detail(error)
    elif isinstance(error, RequestValidationError):
        kind, detail = InvalidMessage, problems.detail_of(error.errors())
    elif isinstance(error, HTTPException):
        kinds = {400: InvalidMessage, 404: ResourceNotFound, 405: MethodNotAllowed}
        kind = kinds.get(error.status_code, ApplicationError)
        detail = error.detail if kind is InvalidMessage else ""
    state: OpsState | None = request.app.state.ops
    if is_ops_page(path) and state is not None and state.access.has_pages:
        response = error_page(request, state, kind, detail)
    else:
        response = _error_response(request.scope, kind, detail)
    if kind is MethodNotAllowed:
        # Each route of an address has only its own methods. Of an included router, `app.routes` has one entry without
        # any. No documented function of FastAPI lists its routes; tests/integration/test_ops_access.py fails if this
        # one changes.
        routes = (each for each in iter_route_contexts(request.app.routes) if each.path_regex.match(path))
        methods = {method for route in routes for method in route.methods or ()}
        if "GET" in methods:
            methods.add("HEAD")
        response.headers["Allow"] = ", ".join(sorted(methods))
    return response


def _error_response(scope: Scope, error: type[ApplicationError], detail: str) -> Response:
    path = scope["path"]
    if path.startswith("/api/") or path in _PROBLEM_PATHS:
        return problems.problem_response(error, detail)
    return pages.error_page(error, detail)
