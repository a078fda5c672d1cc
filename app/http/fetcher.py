"""Get one URL over the guarded urllib3 pool: every peer address is checked, every response has one deadline.

The pool relies on three details, which tests/integration/test_fetch.py checks. `HTTPConnection._new_conn` of urllib3 2
returns the connected socket before TLS and before anything is sent. `conn.timeout` holds the rest of `Timeout.total`
when the response object is made. `HTTPResponse._read_status` of http.client returns the status of a response.
"""

from __future__ import annotations

import functools
import http.client
import io
import re
import socket
import ssl
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Self

import ada_url
import certifi
import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import HTTPError, ProtocolError
from urllib3.util import Retry, Timeout

from app.errors import FetchError, InvalidUrl
from app.http.addresses import ANY_ADDRESS, AddressPolicy
from app.http.response import Response, fetch_error, read_body
from config.settings import Settings

#: A percent sign that encodes nothing. The WHATWG URL standard leaves it as it is.
_SINGLE_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_READ_SIZE = 65_536
#: Seconds after which an idle connection is not used again: its server, or a router between, may have forgotten it.
MAX_IDLE = 4.0
_ACCEPT = "text/html,application/xhtml+xml,text/plain;q=0.8,*/*;q=0.1"


class Fetcher:
    """GETs pages over kept-alive connections; one per process, made after the fork.

    It keeps no cookies, reads no proxy or other setting from the environment and follows no redirect. If the server
    just closed a kept connection, the request is sent once more.
    """

    def __init__(
        self,
        *,
        user_agent: str,
        connect_timeout: float = 5.0,
        response_timeout: float = 30.0,
        max_body_bytes: int = 5_000_000,
        allow_private_hosts: tuple[str, ...] = (),
        proxy: str = "",
        proxy_login: str = "",
        ca_file: str = "",
    ) -> None:
        """`proxy` is a URL, `proxy_login` a value of Proxy-Authorization, `ca_file` further authorities in PEM.

        Raises FetchError for a file that has no certificates.
        """
        self._headers = {"User-Agent": user_agent, "Accept": _ACCEPT, "Accept-Encoding": "gzip, deflate"}
        self._connect_timeout = connect_timeout
        self._response_timeout = response_timeout
        self._max_body_bytes = max_body_bytes
        policy = AddressPolicy(allow_private_hosts)
        #: The policy of literal addresses. The proxy resolves names, so those of names are its own concern.
        self._policy_behind_proxy = policy if proxy else None
        try:
            self._pools = guarded_pool(policy, proxy=proxy, proxy_login=proxy_login, ca_file=ca_file)
        except OSError as error:  # ssl.SSLError is one.
            raise FetchError(f"certificate authority {ca_file}: {error}") from error

    @classmethod
    def of(
        cls, settings: Settings, *, user_agent: str = "", proxy: str = "", proxy_login: str = "", ca_file: str = ""
    ) -> Self:
        """Return a fetcher with the limits of the settings, and with their User-Agent if none is given."""
        return cls(
            user_agent=user_agent or settings.user_agent,
            response_timeout=settings.response_timeout,
            max_body_bytes=settings.max_body_bytes,
            allow_private_hosts=settings.allow_private_hosts,
            proxy=proxy,
            proxy_login=proxy_login,
            ca_file=ca_file,
        )

    def get(self, url: str, *, headers: Mapping[str, str] | None = None, max_bytes: int = 0) -> Response:
        """GET an absolute http(s) URL and return the response of whatever status.

        A body over `max_bytes`, by default `max_body_bytes`, received or decompressed, is cut and marked `truncated`.
        Repeated Link headers are joined by ", ", repeated X-Robots-Tag headers by a line feed, since each may address
        its own robot. Of another repeated header the last one counts.
        Raises ForbiddenAddress before anything is sent, ConnectionFailed, and ResponseTimeout when the whole response
        took longer than `response_timeout` seconds; FetchError for a response that is invalid or incomplete.
        """
        try:
            parts = ada_url.URL(url)
        except ValueError as error:
            raise InvalidUrl(f"URL {url!r}: it is not an absolute URL") from error
        port = int(parts.port) if parts.port else None
        # With one sign that encodes nothing in it, urllib3 would encode every sign of a path or a query once more.
        target = _SINGLE_PERCENT.sub("%25", parts.pathname + parts.search)
        if self._policy_behind_proxy is not None:
            self._policy_behind_proxy.check_literal(parts.hostname, port or 0)
            # RFC 9112 section 3.2.2: a proxy gets the absolute form, except in a tunnel.
            target = parts.origin + target if parts.protocol == "http:" else target
        try:
            # The host comes from the parser that checked the scope; another parser could read another host.
            pool = self._pools.connection_from_host(parts.hostname, port, parts.protocol[:-1])
            with closing(
                pool.urlopen(
                    "GET",
                    target,
                    headers={**self._headers, **(headers or {})},
                    timeout=Timeout(connect=self._connect_timeout, total=self._response_timeout),
                    retries=REPEAT_ON_CLOSED,
                    redirect=False,
                    assert_same_host=False,
                    preload_content=False,
                )
            ) as raw:
                body, truncated = read_body(raw, max_bytes=max_bytes or self._max_body_bytes)
        except (HTTPError, http.client.HTTPException, OSError, zlib.error) as error:
            raise fetch_error(f"GET {url}", error) from error
        received = {name.lower(): value for name, value in raw.headers.items()}
        for name, separator in (("link", ", "), ("x-robots-tag", "\n")):
            if name in received:
                received[name] = separator.join(raw.headers.getlist(name))
        return Response(url=url, status=raw.status, headers=received, body=body, truncated=truncated)

    def close(self) -> None:
        """Close every connection."""
        self._pools.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def guarded_pool(
    policy: AddressPolicy,
    *,
    proxy: str = "",
    proxy_login: str = "",
    ca_file: str = "",
    maxsize: int = 8,
) -> urllib3.PoolManager:
    """Return a pool whose every connection checks its peer against `policy` before it sends anything.

    The peer may be any proxy that the caller names. Raises OSError for an invalid `ca_file`.

    Of a host `maxsize` idle connections are kept, and used again within MAX_IDLE seconds.

    Call `urlopen` with a `Timeout` and `preload_content=False`. Head and body together must arrive within the read
    time-out, or within what is left of the total. The pool reads no proxy from the environment.
    """
    pool: urllib3.PoolManager
    if proxy:
        headers = {"Proxy-Authorization": proxy_login} if proxy_login else None
        pool = urllib3.ProxyManager(
            proxy, num_pools=64, maxsize=maxsize, ssl_context=_tls_context(ca_file), proxy_headers=headers
        )
    else:
        pool = urllib3.PoolManager(num_pools=64, maxsize=maxsize, ssl_context=_tls_context(ca_file))
    pool.pool_classes_by_scheme = dict(_pool_classes(ANY_ADDRESS if proxy else policy))
    return pool


@functools.lru_cache(maxsize=64)
def _pool_classes(policy: AddressPolicy) -> Mapping[str, type[HTTPConnectionPool]]:
    """Return classes whose connections check their peer against a policy; to make them takes a millisecond."""
    plain = type("GuardedConnection", (_Guarded, HTTPConnection), {"policy": policy})
    secure = type("GuardedSecureConnection", (_Guarded, HTTPSConnection), {"policy": policy})
    return {
        "http": type("GuardedPool", (HTTPConnectionPool,), {"ConnectionCls": plain}),
        "https": type("GuardedSecurePool", (HTTPSConnectionPool,), {"ConnectionCls": secure}),
    }


@functools.lru_cache(maxsize=64)
def _tls_context(ca_file: str = "") -> ssl.SSLContext:
    """Return the context that trusts the system's certificate authorities, those of certifi, and those of a file."""
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    if ca_file:
        context.load_verify_locations(ca_file)
    return context


if TYPE_CHECKING:  # A mix-in; mypy needs a base that has the connection's attributes.
    _Base = HTTPConnection
else:
    _Base = object


class ClosedMeanwhile(http.client.RemoteDisconnected):
    """The server closed a connection that was kept from an earlier request, and did not answer on it."""


class _RepeatOnClosed(Retry):
    """Repeats a request only if the server closed a kept connection before it answered."""

    def increment(self, *args: Any, **options: Any) -> Self:
        """Return a policy for one more attempt, on another connection, or raise the error."""
        error = options.get("error")
        if isinstance(error, ProtocolError) and isinstance(error.args[-1], ClosedMeanwhile):
            return self
        return super().increment(*args, **options)


REPEAT_ON_CLOSED: Final = _RepeatOnClosed(0, read=False)


class _Guarded(_Base):
    """A connection that checks its peer's address and holds each response to its deadline."""

    policy: AddressPolicy
    #: When the last response on it began; 0 for a connection without one.
    _used = 0.0

    @property
    def is_connected(self) -> bool:
        """Return whether it may be used for one more request."""
        return super().is_connected and time.monotonic() - self._used < MAX_IDLE

    def request(self, *args: Any, **options: Any) -> None:
        """Send a request; raises ClosedMeanwhile."""
        with self._closing_noticed():
            super().request(*args, **options)

    def getresponse(self) -> urllib3.HTTPResponse:  # type: ignore[override]  # The pool closes over the base's type.
        """Return the response; raises ClosedMeanwhile."""
        with self._closing_noticed():
            response = super().getresponse()
        self._used = time.monotonic()
        return response

    def close(self) -> None:
        """Close it; the next request opens another connection."""
        super().close()
        self._used = 0.0

    @contextmanager
    def _closing_noticed(self) -> Iterator[None]:
        was_used = self._used
        try:
            yield
        except ConnectionResetError as error:
            if was_used:
                raise ClosedMeanwhile(str(error)) from error
            raise

    def _new_conn(self) -> socket.socket:
        # The address of the connected socket counts: a name may resolve to another address at each look-up.
        sock: socket.socket = super()._new_conn()
        try:
            self.policy.check(self.host, self.port or 0, sock.getpeername()[0])
        except BaseException:
            sock.close()
            raise
        return sock

    def response_class(  # type: ignore[override]  # A method in place of the class that http.client calls.
        self, sock: socket.socket, *args: Any, **options: Any
    ) -> http.client.HTTPResponse:
        response = _Response(sock, *args, **options)
        seconds = self.timeout if isinstance(self.timeout, int | float) else 0.0
        response.fp = io.BufferedReader(_DeadlineReader(response.fp.detach(), sock, seconds), _READ_SIZE)
        return response


class _Response(http.client.HTTPResponse):
    """A response that skips all informational ones before it. The library takes 103 for the response itself.

    The next request on the connection would then get what belongs to this one.
    """

    def _read_status(self) -> tuple[str, int, str]:
        version, status, reason = super()._read_status()  # type: ignore[misc]  # The library skips those of CONTINUE.
        is_informational = 100 <= status < 200 and status != HTTPStatus.SWITCHING_PROTOCOLS
        return version, HTTPStatus.CONTINUE if is_informational else status, reason


class _DeadlineReader(io.RawIOBase):
    """Reads a socket so that all reads together end at a deadline; a socket time-out bounds only a single read."""

    def __init__(self, raw: Any, sock: socket.socket, seconds: float) -> None:
        self._raw = raw
        self._sock = sock
        self._deadline = time.monotonic() + seconds
        self._seconds = seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"the response took longer than {self._seconds:.1f} s")
        self._sock.settimeout(left)
        count: int | None = self._raw.readinto(buffer)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()
