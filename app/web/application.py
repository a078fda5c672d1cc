"""The web application: routes, static files, errors people and programs can read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Scope

from app.broker.errors import ApplicationError
from app.cluster.client.contract import SearchClient
from app.web import api, openapi, opensearch, pages, problems, watch
from app.web.faults import INTERNAL, INVALID, NOT_ALLOWED, NOT_FOUND, Fault, fault_of
from app.web.limits import Gate, RateLimiter
from app.web.metrics import CountingSearchClient, Metrics, RoutesCollector
from app.web.middleware import HEADERS, Edge
from app.web.problems import problem

__all__ = ["HEADERS", "create_app"]

#: Searches and suggestions of one address.
RATE_LIMIT = "600/minute"
#: What programs ask for; everything else is answered with pages.
_FOR_PROGRAMS = frozenset({"/suggest", "/opensearch.xml", "/metrics"})


def create_app(
    finder: SearchClient, *, rate_limit: str = RATE_LIMIT, counts: Callable[[], Mapping[str, int]] = dict
) -> FastAPI:
    """Return the application that shows what `finder` finds, and closes it when it ends.

    `rate_limit` is `<number>/<second|minute|hour>` for each address; `counts` are the finder's own, for /metrics.
    """
    metrics = Metrics()
    metrics.registry.register(RoutesCollector(finder, counts))
    app = _application(
        finder,
        lambda inner: Edge(inner=inner, limiter=RateLimiter(rate_limit), gate=Gate(), metrics=metrics, tell=_tell),
    )
    app.state.finder = CountingSearchClient(finder, metrics)
    app.state.metrics = metrics
    for router in (api.router, pages.router, problems.router, opensearch.router, watch.router):
        app.include_router(router)
    app.mount("/static", StaticFiles(directory=Path(__file__).parent / "static"), name="static")
    app.add_exception_handler(ApplicationError, _failed)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(Exception, _unforeseen)
    return app


class _Application(FastAPI):
    """A FastAPI with an edge around all else, also around the answer to an error that nobody foresaw."""

    edge: Callable[[ASGIApp], ASGIApp]

    def build_middleware_stack(self) -> ASGIApp:
        return self.edge(super().build_middleware_stack())

    def openapi(self) -> dict[str, Any]:
        if not self.openapi_schema:
            self.openapi_schema = openapi.describe(self)
        return self.openapi_schema


def _application(finder: SearchClient, edge: Callable[[ASGIApp], ASGIApp]) -> FastAPI:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        del app
        yield
        finder.close()

    app = _Application(
        title="Perennial",
        version="1",
        lifespan=lifespan,
        # The stock documentation pages load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
    )
    app.edge = edge
    return app


def _failed(request: Request, error: Exception) -> Response:
    fault = fault_of(error) if isinstance(error, ApplicationError) else INTERNAL
    return _tell(request.scope, fault, str(error))


def _malformed(request: Request, error: Exception) -> Response:
    faults = error.errors() if isinstance(error, RequestValidationError) else []
    return _tell(request.scope, INVALID, "; ".join(f"{fault['loc'][-1]}: {fault['msg']}" for fault in faults))


def _refused(request: Request, error: Exception) -> Response:
    """Tell what Starlette refuses: an address that is none, or a file that cannot be read."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    return _tell(request.scope, {404: NOT_FOUND, 405: NOT_ALLOWED}.get(status, INTERNAL), "")


def _unforeseen(request: Request, error: Exception) -> Response:
    del error  # The server logs it with its traceback.
    return _tell(request.scope, INTERNAL, "")


def _tell(scope: Scope, fault: Fault, detail: str) -> Response:
    path = scope["path"]
    if path.startswith("/api/") or path in _FOR_PROGRAMS:
        return problem(fault, detail)
    return pages.fault_page(fault, detail)
