"""The HTTP server around the application: uvicorn, with bounds on what a client may send, hold and keep waiting."""

from __future__ import annotations

import asyncio
import socket

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

#: Seconds that open requests get to end after SIGTERM.
GRACE = 2
#: Connections at the same time; whoever comes then is told 503. Well below the 1,024 files of a usual process.
MAX_CONNECTIONS = 512
#: Seconds in which a request has to be there whole, and in which a client has to read.
REQUEST_SECONDS = 10.0
#: Bytes of a request's first line and header fields.
MAX_HEAD = 32 * 1024

_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
#: Linux only: unread data that stands for so many ms ends a connection (tcp(7)).
_USER_TIMEOUT = getattr(socket, "TCP_USER_TIMEOUT", None)


class BoundedProtocol(HttpToolsProtocol):
    """HTTP/1.1 as uvicorn speaks it, which waits for a request as long, and keeps as much of one, as a client likes.

    Here a connection is closed when a request is not whole REQUEST_SECONDS after the connection was made or the
    request began, and answered with 431 (RFC 6585 section 5) when its head is larger than MAX_HEAD.
    """

    _overdue: asyncio.TimerHandle | None = None
    _head = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait."""
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        # asyncio does it for sockets of its own making only; without it answers wait 40 ms for the client's ACK.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if _USER_TIMEOUT is not None:
            connection.setsockopt(socket.IPPROTO_TCP, _USER_TIMEOUT, round(REQUEST_SECONDS * 1_000))
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Read on; what is no part of a request, such as empty lines, does not lengthen the wait."""
        self._head += len(data)
        super().data_received(data)
        if self._head > MAX_HEAD and not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()
        elif self._idle():
            self._wait()

    def on_message_begin(self) -> None:
        """Wait for the rest of the request."""
        super().on_message_begin()
        self._wait()

    def on_headers_complete(self) -> None:
        """Take the head, and count the next one from nothing."""
        self._head = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Count nothing: it is refused, and not kept."""
        self._head = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Stop waiting: now it is the client who does."""
        self._stop()
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop()
        super().connection_lost(exc)

    def _idle(self) -> bool:
        """Tell whether nothing is being answered, and uvicorn's own wait for the next request was ended by data."""
        answered = self.cycle is None or self.cycle.response_complete  # type: ignore[redundant-expr]
        return answered and self.timeout_keep_alive_task is None and not self.transport.is_closing()

    def _wait(self) -> None:
        if self._overdue is None:
            self._overdue = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)

    def _stop(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None


def create_server(app: FastAPI, *, host: str = "127.0.0.1", port: int = 0) -> uvicorn.Server:
    """Return the server of an application.

    Requests are not logged: what people search for is theirs. X-Forwarded-For and X-Forwarded-Proto are believed from
    127.0.0.1 only, uvicorn's default: a proxy elsewhere is one address to the rate limit, unless its own address is in
    FORWARDED_ALLOW_IPS. A proxy on this machine has to set them, or else its clients can say who they are.
    """
    return uvicorn.Server(
        uvicorn.Config(
            app,
            host=host,
            port=port,
            http=BoundedProtocol,
            ws="none",
            log_config=None,  # The process's own, which tells time and level.
            log_level="warning",
            access_log=False,
            server_header=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=GRACE,
        )
    )
