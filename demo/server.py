"""The demo's own web site: rendered pages, one page that fails twice, one that is broken until it is repaired."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

FLAKY = "a-page-that-fails-twice.html"
BROKEN = "a-page-that-is-broken.html"
#: Times that the flaky page fails.
FAILURES = 2

_FLAKY_TITLE = "A page that fails twice"
_BROKEN_TITLE = "A page that is broken until somebody repairs it"


class DemoSite:
    """A site on a free port of 127.0.0.1, answering while the block lasts; `show` says what."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._modules: dict[str, str] = {}
        self._failures = 0
        self._repaired = False
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.site = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="site", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def domain(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self._server.server_address[1]}"

    @property
    def url(self) -> str:
        """The start page."""
        return f"http://{self.domain}/"

    @property
    def pages(self) -> int:
        """How many pages there are: the modules, the start page and the two that fail."""
        return len(self._modules) + 3

    def show(self, folder: Path) -> None:
        """Serve the site that was rendered into `folder`."""
        self._modules = json.loads((folder / "modules.json").read_text("utf-8"))
        self._folder = folder

    def repair(self) -> None:
        """Let the broken page answer from now on."""
        self._repaired = True

    def answer(self, path: str) -> tuple[int, bytes]:
        """Return status and HTML for a path without its query."""
        name = path.removeprefix("/")
        if name == "":
            return 200, self._start_page()
        if name == FLAKY:
            return self._flaky()
        if name == BROKEN:
            return self._broken()
        module = name.removesuffix(".html")
        if self._folder is None or module == name or module not in self._modules:
            return 404, _page("Not found", "")
        return 200, (self._folder / name).read_bytes()

    def _start_page(self) -> bytes:
        rows = [f'<li><a href="{name}.html">{name}</a> {escape(text)}</li>' for name, text in self._modules.items()]
        special = [(FLAKY, _FLAKY_TITLE), (BROKEN, _BROKEN_TITLE)]
        links = "".join(f'<li><a href="{name}">{title}</a></li>' for name, title in special)
        body = f"<p>As pydoc renders it.</p><ul>{links}</ul><h2>Modules</h2><ul>{''.join(rows)}</ul>"
        return _page("The Python standard library", body)

    def _flaky(self) -> tuple[int, bytes]:
        with self._lock:
            self._failures += 1
            failed = self._failures <= FAILURES
        if failed:
            return 503, _page("Service unavailable", "")
        text = "<p>Its first two GETs were answered 503. Their messages waited in a delay queue and came back.</p>"
        return 200, _page(_FLAKY_TITLE, text)

    def _broken(self) -> tuple[int, bytes]:
        if not self._repaired:
            return 500, _page("Internal server error", "")
        text = (
            "<p>It answered 500 until its messages had spent their retries and lay in the dead set. Then it was "
            "repaired, and the messages were replayed.</p>"
        )
        return 200, _page(_BROKEN_TITLE, text)


def _page(title: str, body: str) -> bytes:
    head = f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>'
    return f"{head}<body><h1>{title}</h1>{body}</body></html>".encode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    site: DemoSite

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that went away is none of the demo's business."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 30
    server: _Server

    def do_GET(self) -> None:
        status, body = self.server.site.answer(self.path.partition("?")[0])
        self.send_response(status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 - The name is the server library's.

    def handle(self) -> None:
        with suppress(OSError):
            super().handle()

    def log_message(self, *args: Any) -> None:
        """Log nothing: the panel tells what happens."""
