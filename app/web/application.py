"""The web application: routes, static files, security headers on every answer, errors people can read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.staticfiles import StaticFiles
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import PerennialError
from app.storage.store import ObjectStore
from app.web import api, pages
from app.web.site import Site

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    # What was searched for is nobody's business at the site that is found.
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class Application(FastAPI):
    """A FastAPI whose every answer, also to an error nobody foresaw, carries HEADERS."""

    def build_middleware_stack(self) -> ASGIApp:
        """Put the headers around all else."""
        return _with_headers(super().build_middleware_stack())


def create_app(store: ObjectStore, *, folder: Path, recheck: float = 1.0, time_limit: float = 1.0) -> FastAPI:
    """Return the application that searches the packs of `store`, and unpacks them below `folder` while it runs.

    It looks at the store for new packs at most every `recheck` seconds, and a search takes at most `time_limit`.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.site = Site(store, folder, recheck=recheck, time_limit=time_limit)
        yield
        app.state.site.close()

    app = Application(
        title="Perennial",
        version="1",
        lifespan=lifespan,
        # The stock documentation pages load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
    )
    app.include_router(pages.router)
    app.include_router(api.router)
    app.mount("/static", StaticFiles(directory=Path(__file__).parent / "static"), name="static")
    app.add_exception_handler(PerennialError, api.problem_of)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(Exception, _unforeseen)
    return app


def _malformed(request: Request, error: Exception) -> Response:
    del request
    faults = error.errors() if isinstance(error, RequestValidationError) else []
    return api.problem(400, "; ".join(f"{fault['loc'][-1]}: {fault['msg']}" for fault in faults))


def _refused(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = error.headers if isinstance(error, HTTPException) else None
    answer = _error_page(request, status, "There is nothing at this address." if status == 404 else str(error))
    answer.headers.update(headers or {})
    return answer


def _unforeseen(request: Request, error: Exception) -> Response:
    del error  # The server logs it with its traceback.
    return _error_page(request, 500, "Something went wrong here. It has been logged.")


def _error_page(request: Request, status: int, reason: str) -> Response:
    if request.url.path.startswith("/api/"):
        return api.problem(status, reason)
    return pages.render(pages.View(state="lost", status=status, reason=reason))


def _with_headers(inner: ASGIApp) -> ASGIApp:
    async def outer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        await inner(scope, receive, send_with_headers)

    return outer
