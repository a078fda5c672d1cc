"""A web site on a free port of 127.0.0.1, with a function per path that answers, and a record of every request."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

PLAIN = "text/plain; charset=utf-8"
HTML = "text/html; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Request:
    """One received request. `path` has its query, header names are lower case, `at` is monotonic seconds."""

    method: str
    path: str
    headers: Mapping[str, str]
    at: float
    body: bytes = b""


class Wire:
    """The connection that an answer writes to, and whether the site is closing."""

    def __init__(self, connection: socket.socket, closing: threading.Event) -> None:
        self.connection = connection
        self.keep_alive = True
        self._closing = closing

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.connection.sendall(data)

    def pause(self, seconds: float) -> None:
        """Wait; raises ConnectionError when the site closes meanwhile."""
        if self._closing.wait(seconds):
            raise ConnectionError("the site is closing")

    def close(self) -> None:
        """End the connection after this answer."""
        self.keep_alive = False


#: Writes the response to a request; `reply` and the functions below return them.
Answer = Callable[[Request, Wire], None]


def head(status: int, headers: Iterable[tuple[str, str]]) -> bytes:
    """Return a status line and headers as bytes, with the blank line."""
    lines = [f"HTTP/1.1 {status} Status", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def reply(
    body: bytes | str = b"", *, status: int = 200, content_type: str = HTML, headers: Mapping[str, str] | None = None
) -> Answer:
    """Answer with this body; text is sent as UTF-8. An empty `content_type` sends no Content-Type."""
    data = body.encode() if isinstance(body, str) else body
    fields = {"Content-Length": str(len(data)), **({"Content-Type": content_type} if content_type else {})}
    fields |= headers or {}

    def answer(request: Request, wire: Wire) -> None:
        wire.send(head(status, fields.items()) + (b"" if request.method == "HEAD" else data))

    return answer


def document(title: str, text: str = "", *, links: Iterable[str] = (), extra_head: str = "") -> str:
    """Return an HTML page; `extra_head` is markup."""
    anchors = "\n".join(f'<p><a href="{escape(link)}">{escape(link)}</a></p>' for link in links)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>{extra_head}</head>'
        f"<body><h1>{escape(title)}</h1><p>{escape(text)}</p>{anchors}</body></html>"
    )


def in_letters(number: int) -> str:
    """Return the digits of a number as letters: texts that differ in nothing but digits count as identical."""
    return str(number).translate(str.maketrans("0123456789", "abcdefghij"))


def page(
    title: str,
    text: str = "",
    *,
    links: Iterable[str] = (),
    extra_head: str = "",
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Answer with an HTML page of this title, text and links."""
    return reply(document(title, text, links=links, extra_head=extra_head), status=status, headers=headers)


def robots(text: str) -> Answer:
    """Answer with a robots.txt."""
    return reply(text, content_type=PLAIN)


def failure(status: int, *, retry_after: str | None = None) -> Answer:
    """Answer with an error status and a short HTML body."""
    headers = {"Retry-After": retry_after} if retry_after is not None else {}
    return reply(document(f"Error {status}"), status=status, headers=headers)


def redirect(location: str, *, status: int = 302) -> Answer:
    """Answer with a redirect to this Location, sent as it is."""
    return reply(b"", status=status, headers={"Location": location})


def in_turn(*answers: Answer) -> Answer:
    """Answer with each of these in turn; the last one is repeated."""
    left, lock = list(answers), threading.Lock()

    def answer(request: Request, wire: Wire) -> None:
        with lock:
            chosen = left.pop(0) if len(left) > 1 else left[0]
        chosen(request, wire)

    return answer


def late(seconds: float, then: Answer) -> Answer:
    """Answer as `then`, some seconds later."""

    def answer(request: Request, wire: Wire) -> None:
        wire.pause(seconds)
        then(request, wire)

    return answer


def with_etag(etag: str, then: Answer) -> Answer:
    """Answer 304 to a request that has this ETag, else as `then` (which should send the ETag)."""
    unchanged = reply(b"", status=304, content_type="", headers={"ETag": etag})

    def answer(request: Request, wire: Wire) -> None:
        (unchanged if request.headers.get("if-none-match") == etag else then)(request, wire)

    return answer


def by_host(host: str, answer: Answer, otherwise: Answer) -> Answer:
    """Answer requests that name this host with `answer`, and others with `otherwise`."""

    def chosen(request: Request, wire: Wire) -> None:
        (answer if request.headers.get("host") == host else otherwise)(request, wire)

    return chosen


class Site:
    """A site of scripted answers: `with Site({"/": page("Home", "text", links=["/a"])}) as site: ...`.

    A route is a path, with or without its query; the longer one wins. Anything else is a 404.
    A test may set `before`, which is called with each request before it is answered (to count, to wait, ...).
    `port` is that of a site which was there before; else it is a free one. `address` is another one in a container.
    """

    def __init__(
        self,
        routes: Mapping[str, Answer] | None = None,
        *,
        port: int = 0,
        address: str = "127.0.0.1",
    ) -> None:
        self._routes = dict(routes or {})
        self.before: Callable[[Request], None] | None = None
        self._requests: list[Request] = []
        self._lock = threading.Lock()
        self._address = address
        self._server = _Server(self, (address, port))

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), name="site", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.stop()
        self._thread.join()

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Refuse connections for the block."""
        self.__exit__()
        with _kept(self._address, self.port):
            try:
                yield
            finally:
                self._server = _Server(self, (self._address, self.port))
                self.__enter__()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._server.server_address[1])

    @property
    def domain(self) -> str:
        """Host and port, as messages name it."""
        return f"127.0.0.1:{self.port}"

    @property
    def other_domain(self) -> str:
        """The same site under a second host name, for links that leave the first."""
        return f"localhost:{self.port}"

    @property
    def url(self) -> str:
        """The start page's absolute URL, ending with a slash."""
        return f"http://{self.domain}/"

    def at(self, path: str) -> str:
        """Return the absolute URL of a path."""
        return f"http://{self.domain}{path}"

    def set(self, path: str, answer: Answer) -> None:
        """Add or replace a route."""
        self._routes[path] = answer

    def remove(self, path: str) -> None:
        """Remove a route, which answers 404 from now on."""
        del self._routes[path]

    @property
    def requests(self) -> list[Request]:
        """Every request so far, in order of arrival."""
        with self._lock:
            return list(self._requests)

    def paths(self) -> list[str]:
        """Return the path of every request so far, in order of arrival."""
        return [request.path for request in self.requests]

    def hits(self, path: str) -> int:
        """Return the number of requests for this path with its query."""
        return self.paths().count(path)

    def answer(self, request: Request, wire: Wire) -> None:
        """Record a request and answer it; called by the server's threads."""
        with self._lock:
            self._requests.append(request)
        if self.before is not None:
            self.before(request)
        self.route(request)(request, wire)

    def route(self, request: Request) -> Answer:
        """Return the answer to a request."""
        return self._routes.get(request.path) or self._routes.get(request.path.partition("?")[0]) or failure(404)


@contextlib.contextmanager
def _kept(address: str, port: int) -> Iterator[None]:
    """Keep a port for the block: the kernel gives it to nothing else, and a server that names it may listen there."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((address, port))
        yield


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_GET(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length", 0)))
        request = Request(self.command, self.path, headers, time.monotonic(), body)
        wire = Wire(self.connection, self.server.closing)
        try:
            self.server.site.answer(request, wire)
        except OSError:  # The client or the site closed the connection, as some tests intend.
            wire.close()
        self.close_connection = self.close_connection or not wire.keep_alive

    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815 - The names that http.server calls.

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            super().handle()

    def log_message(self, *args: Any) -> None:
        """Log nothing: `Site.requests` is the log."""


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # Closing waits for every answer, so that no socket is left open.
    request_queue_size = 128

    def __init__(self, site: Site, address: tuple[str, int]) -> None:
        super().__init__(address, _Handler)
        self.site = site
        self.closing = threading.Event()
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def stop(self) -> None:
        """Stop accepting, end every open connection, wait for the threads."""
        self.closing.set()
        self.shutdown()
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        self.server_close()
