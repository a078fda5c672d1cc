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
from app.router.finder import Finder
from app.web import api, pages, watch
from app.web.faults import INTERNAL, INVALID, NOT_ALLOWED, NOT_FOUND, Fault, fault_of
from app.web.problems import problem

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


def create_app(finder: Finder) -> FastAPI:
    """Return the application that shows what `finder` finds, and closes it when it ends."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        del app
        yield
        finder.close()

    app = Application(
        title="Perennial",
        version="1",
        lifespan=lifespan,
        # The stock documentation pages load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
    )
    app.state.finder = finder
    app.include_router(pages.router)
    app.include_router(api.router)
    app.include_router(watch.router)
    app.mount("/static", StaticFiles(directory=Path(__file__).parent / "static"), name="static")
    app.add_exception_handler(PerennialError, _failed)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(Exception, _unforeseen)
    return app


def _failed(request: Request, error: Exception) -> Response:
    fault = fault_of(error) if isinstance(error, PerennialError) else INTERNAL
    return _told(request, fault, str(error))


def _malformed(request: Request, error: Exception) -> Response:
    faults = error.errors() if isinstance(error, RequestValidationError) else []
    return _told(request, INVALID, "; ".join(f"{fault['loc'][-1]}: {fault['msg']}" for fault in faults))


def _refused(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    answer = _told(request, {404: NOT_FOUND, 405: NOT_ALLOWED}.get(status, INTERNAL), str(error))
    answer.headers.update((error.headers if isinstance(error, HTTPException) else None) or {})
    return answer


def _unforeseen(request: Request, error: Exception) -> Response:
    del error  # The server logs it with its traceback.
    return _told(request, INTERNAL, "")


def _told(request: Request, fault: Fault, detail: str) -> Response:
    if request.url.path.startswith("/api/"):
        return problem(fault, detail)
    return pages.render(pages.View(state="lost", status=fault.status, reason=f"{fault.title}."))


def _with_headers(inner: ASGIApp) -> ASGIApp:
    """Put the headers on every answer. HEAD is answered as GET is, without the body (RFC 9110 section 9.3.2)."""

    async def outer(scope: Scope, receive: Receive, send: Send) -> None:
        head = scope["type"] == "http" and scope["method"] == "HEAD"

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            elif head and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        await inner({**scope, "method": "GET"} if head else scope, receive, send_with_headers)

    return outer
