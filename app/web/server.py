"""The HTTP server: uvicorn, with limits on the size, the duration and the number of requests.

This is the only module that relies on internals of uvicorn. Its settings limit connections, but not how long a client
may take to send a request, nor (with httptools) how large its head may be. `h11` limits the head, but costs 0.2 ms of
CPU more for each request. tests/unit/test_web_limits.py fails when the internals change.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from ipaddress import ip_address, ip_network

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.web.client_limits import client_key, plain_address

#: Seconds that open requests get to end after SIGTERM.
GRACE = 2
#: Connections at the same time; uvicorn answers 503 to more. Well below the usual limit of 1,024 open files.
MAX_CONNECTIONS = 512
#: Connections of one address at the same time, trusted proxies excepted: one address must not take all.
MAX_PER_ADDRESS = 64
#: Proxies that are trusted unless the settings name others.
LOOPBACK = ("127.0.0.1", "::1")
#: Seconds in which a client must have sent a request, and in which it must read.
REQUEST_SECONDS = 10.0
#: Bytes of a request's first line and header fields.
MAX_HEAD = 32 * 1024

#: The key of a request's scope for whether it came from a trusted proxy. X-Forwarded-For hides that from the routes.
FROM_PROXY = "perennial.from_proxy"

_END = b"content-length: 0\r\nconnection: close\r\n\r\n"
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\n" + _END
_TOO_MANY = b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\n" + _END
#: Linux only: the kernel closes a connection whose sent data is not acknowledged for a number of ms (tcp(7)).
_USER_TIMEOUT = getattr(socket, "TCP_USER_TIMEOUT", None)


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 protocol with a time limit and a size limit for each request.

    A connection is closed REQUEST_SECONDS after it was made or a request began, if the request is not complete by then.
    A request whose head is larger than MAX_HEAD is answered with 431 (RFC 6585 section 5). A connection beyond
    MAX_PER_ADDRESS of its address is answered with 429 (section 4).
    """

    _overdue: asyncio.TimerHandle | None = None
    #: Bytes received since the last head, and bytes of the present head that are parsed.
    _unparsed = _head = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Set the socket's options and start the time limit; refuse a connection of an address that has too many."""
        super().connection_made(transport)
        if self.client:
            # A socket for both families has addresses of IPv4 in another form, in which no proxy is trusted.
            self.client = (plain_address(self.client[0]), self.client[1])
        if self.client and not is_trusted(self.client[0], self.config.forwarded_allow_ips):
            key = client_key(self.client[0])
            peers = (each.client for each in self.connections if isinstance(each, BoundedProtocol) and each.client)
            others = sum(client_key(peer[0]) == key for peer in peers)
            if others > MAX_PER_ADDRESS:
                transport.write(_TOO_MANY)
                transport.close()
                return
        connection = transport.get_extra_info("socket")
        # asyncio sets it on sockets that it made itself. Without it answers wait 40 ms for the client's ACK.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if _USER_TIMEOUT is not None:
            connection.setsockopt(socket.IPPROTO_TCP, _USER_TIMEOUT, round(REQUEST_SECONDS * 1_000))
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        """Parse data. Data outside a request, such as empty lines, does not extend the time limit."""
        self._unparsed += len(data)
        super().data_received(data)
        if self._unparsed > MAX_HEAD and not self.transport.is_closing():
            self._refuse_head()
            return
        idle = self.cycle is None or self.cycle.response_complete  # type: ignore[redundant-expr]
        # Data ends uvicorn's own keep-alive timer, even if no request begins with it.
        if idle and self.timeout_keep_alive_task is None and not self.transport.is_closing():
            self._start_timer()

    def on_message_begin(self) -> None:
        """Start the time limit of a request, and note whether a trusted proxy sent it."""
        super().on_message_begin()
        peer = self.client[0] if self.client else ""
        self.scope[FROM_PROXY] = is_trusted(peer, self.config.forwarded_allow_ips)  # type: ignore[literal-required]
        self._head = 0
        self._start_timer()

    def on_url(self, url: bytes) -> None:
        """Count a part of the request's address."""
        self._head += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header field. An error ends the parsing: a whole head may come in one piece of data."""
        self._head += len(name) + len(value) + len(": \r\n")
        if self._head > MAX_HEAD:
            raise ValueError("the head is too large")
        super().on_header(name, value)

    def send_400_response(self, msg: str) -> None:
        """Answer data that the parser refuses."""
        if self._head > MAX_HEAD:
            self._refuse_head()
        else:
            super().send_400_response(msg)

    def on_headers_complete(self) -> None:
        """Reset the size for the next head."""
        self._unparsed = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Leave the body out of the size: the middleware refuses it unread."""
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End the time limit."""
        self._stop_timer()
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the time limit."""
        self._stop_timer()
        super().connection_lost(exc)

    def _refuse_head(self) -> None:
        self.transport.write(_TOO_LARGE)
        self.transport.close()

    def _start_timer(self) -> None:
        if self._overdue is None:
            self._overdue = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None


def create_server(
    app: FastAPI, *, host: str = "127.0.0.1", port: int = 0, proxies: Sequence[str] = LOOPBACK
) -> uvicorn.Server:
    """Return the server of an application. Requests are not logged, because queries are private.

    X-Forwarded-For and X-Forwarded-Proto are accepted from `proxies` only: addresses, networks, or `*`. All visitors
    behind another proxy share one rate limit. A trusted proxy must set these fields itself: otherwise its clients
    choose the address that their rate limit is counted by.
    """
    return uvicorn.Server(
        uvicorn.Config(
            app,
            host=host,
            port=port,
            http=BoundedProtocol,
            ws="none",
            log_config=None,  # config/logs.py configures the process.
            # Its warnings are lines that any visitor writes: of invalid requests, and of wishes for a WebSocket.
            log_level="error",
            access_log=False,
            server_header=False,
            forwarded_allow_ips=list(proxies),
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=GRACE,
        )
    )


def is_trusted(address: str, proxies: Sequence[str]) -> bool:
    """Return whether a connection comes from a proxy, whose connections are not limited."""
    if "*" in proxies:
        return True
    try:
        peer = ip_address(address)
    except ValueError:
        return address in proxies
    return any(peer in ip_network(proxy, strict=False) for proxy in proxies)
