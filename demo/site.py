"""The demo's own web site: Python's documentation by pydoc, a page that fails twice, and a broken page."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from html import escape
from pathlib import Path
from typing import Self

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route

from app.errors import DemoFailed
from demo import pydoc_site

FLAKY = "a-page-that-fails-twice.html"
BROKEN = "a-page-that-is-broken.html"
#: Requests that the flaky page answers with 503.
FAILURES = 2
#: Seconds that rendering may take.
RENDER_TIMEOUT = 120.0

_FLAKY_TITLE = "A page that fails twice"
_BROKEN_TITLE = "A page that is broken until it is repaired"


class DemoSite:
    """A site on a free port of 127.0.0.1, served during the block. Before `show` it has no pages."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._modules: dict[str, str] = {}
        self._failures = 0
        self._repaired = False
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        application = Starlette(routes=[Route("/{path:path}", self._respond)])
        config = uvicorn.Config(application, log_config=None, access_log=False, timeout_keep_alive=30)
        self._server = uvicorn.Server(config)
        serving = {"sockets": [self._listener]}
        self._thread = threading.Thread(target=self._server.run, kwargs=serving, name="site", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._listener.close()

    @property
    def domain(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def url(self) -> str:
        """The start page."""
        return f"http://{self.domain}/"

    @property
    def pages(self) -> int:
        """Number of pages: one for each module, the start page, and the two that fail."""
        return len(self._modules) + 3

    def show(self, folder: Path) -> None:
        """Serve the site that was rendered into `folder`."""
        self._modules = json.loads((folder / "modules.json").read_text("utf-8"))
        self._folder = folder

    def repair(self) -> None:
        """Let the broken page answer 200 from now on."""
        self._repaired = True

    def answer(self, path: str) -> tuple[int, bytes]:
        """Return status and HTML for a path without query."""
        name = path.removeprefix("/")
        if name == "":
            modules = [
                f'<li><a href="{each}.html">{each}</a> {escape(text)}</li>' for each, text in self._modules.items()
            ]
            failing = [(FLAKY, _FLAKY_TITLE), (BROKEN, _BROKEN_TITLE)]
            links = "".join(f'<li><a href="{each}">{title}</a></li>' for each, title in failing)
            body = f"<p>As pydoc renders it.</p><ul>{links}</ul><h2>Modules</h2><ul>{''.join(modules)}</ul>"
            return 200, _page("The Python standard library", body)
        if name == FLAKY:
            with self._lock:
                self._failures += 1
                failed = self._failures <= FAILURES
            if failed:
                return 503, _page("Service unavailable", "")
            text = (
                "Its first two requests were answered with 503. Their messages waited in a delay queue and came back."
            )
            return 200, _page(_FLAKY_TITLE, f"<p>{text}</p>")
        if name == BROKEN:
            if not self._repaired:
                return 500, _page("Internal server error", "")
            text = (
                "It answered 500 until its messages had spent their retries and were dead-lettered. "
                "Then it was repaired, and the messages were replayed."
            )
            return 200, _page(_BROKEN_TITLE, f"<p>{text}</p>")
        module = name.removesuffix(".html")
        if self._folder is None or module == name or module not in self._modules:
            return 404, _page("Not found", "")
        return 200, (self._folder / name).read_bytes()

    def _respond(self, request: Request) -> HTMLResponse:
        status, body = self.answer(request.url.path)
        return HTMLResponse(body, status)


def _page(title: str, body: str) -> bytes:
    head = f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>'
    return f"{head}<body><h1>{title}</h1>{body}</body></html>".encode()


def rendered_site(folder: Path) -> Path:
    """Return the subfolder with the rendered site for this Python, rendering it the first time.

    Raises DemoFailed when rendering fails or takes longer than RENDER_TIMEOUT.
    """
    script = Path(pydoc_site.__file__)
    release = hashlib.sha256(script.read_bytes()).hexdigest()[:8]
    site = folder / f"site-{platform.python_version()}-{release}"
    if site.exists():
        return site
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(".rendering-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".rendering-", dir=folder) as work:
        target, empty = Path(work, "site"), Path(work, "empty")
        target.mkdir()
        empty.mkdir()
        try:
            # -P, -s and -S leave only the standard library to import. The page of `os` shows the environment, which is
            # therefore nearly empty; a fixed hash seed makes two renderings equal.
            subprocess.run(  # noqa: S603 - The command is fixed.
                [sys.executable, "-P", "-s", "-S", "-B", str(script), str(target)],
                cwd=empty,
                env={"HOME": "/nonexistent", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                timeout=RENDER_TIMEOUT,
                check=True,
            )
        except subprocess.SubprocessError as error:
            raise DemoFailed(f"the demo's site could not be rendered: {error}") from error
        # Renamed at the end, so that the folder is complete or missing.
        target.rename(site)
    return site
