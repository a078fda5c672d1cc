"""One GET: to public addresses only, never redirected, bounded in time and size, whole or an error."""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
import zlib
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, Protocol, Self

import ada_url
import certifi
import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    NewConnectionError,
    ProtocolError,
    ReadTimeoutError,
    SSLError,
)
from urllib3.util import Timeout

from app.crawl.peers import AddressRule
from app.crawl.values import Response
from app.errors import ConnectionFailed, FetchError, InvalidUrl, ResponseTimeout
from config.settings import Settings

_READ_SIZE = 65_536
#: Content codings that are undone here; `Accept-Encoding` asks for no other (RFC 9110 section 8.4.1).
_ZLIB_CODINGS = frozenset({"gzip", "x-gzip", "deflate"})
_ACCEPT = "text/html,application/xhtml+xml,text/plain;q=0.8,*/*;q=0.1"


class Fetcher:
    """GETs pages over kept-alive connections; one per process, made after the fork.

    It keeps no cookies, reads no proxy or other setting from the environment and follows no redirect.
    """

    def __init__(
        self,
        *,
        user_agent: str,
        connect_timeout: float = 5.0,
        response_timeout: float = 30.0,
        max_body_bytes: int = 5_000_000,
        allow_private_hosts: tuple[str, ...] = (),
    ) -> None:
        self._headers = {"User-Agent": user_agent, "Accept": _ACCEPT, "Accept-Encoding": "gzip, deflate"}
        self._connect_timeout = connect_timeout
        self._response_timeout = response_timeout
        self._max_body_bytes = max_body_bytes
        self._pools = _pools(AddressRule(allow_private_hosts))

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return a fetcher as the settings say."""
        return cls(
            user_agent=settings.user_agent,
            connect_timeout=settings.connect_timeout,
            response_timeout=settings.response_timeout,
            max_body_bytes=settings.max_body_bytes,
            allow_private_hosts=settings.allow_private_hosts,
        )

    def get(self, url: str, *, headers: Mapping[str, str] | None = None) -> Response:
        """GET an absolute http(s) URL and return what came, of whatever status.

        A body over `max_body_bytes`, on the wire or decompressed, is cut and marked `truncated`. Repeated headers
        are joined by ", ", repeated X-Robots-Tag ones by a line feed, since each may name its own robot.
        Raises ForbiddenAddress before anything is sent, ConnectionFailed, ResponseTimeout once the whole
        took longer than `response_timeout`, and FetchError for what is not an HTTP answer or breaks off.
        """
        try:
            with closing(self._open(url, headers or {})) as raw:
                body, truncated = self._read(raw)
        except (HTTPError, http.client.HTTPException, OSError, zlib.error) as error:
            raise _translated(url, error) from error
        return Response(url=url, status=raw.status, headers=_headers_of(raw), body=body, truncated=truncated)

    def _open(self, url: str, headers: Mapping[str, str]) -> urllib3.BaseHTTPResponse:
        scheme, host, port, target = _parts(url)
        return self._pools.connection_from_host(host, port, scheme).urlopen(
            "GET",
            target,
            headers={**self._headers, **headers},
            timeout=Timeout(connect=self._connect_timeout, total=self._response_timeout),
            retries=False,
            redirect=False,
            assert_same_host=False,
            preload_content=False,
        )

    def _read(self, raw: urllib3.BaseHTTPResponse) -> tuple[bytes, bool]:
        """Return the decoded body and whether it was cut; raises FetchError for one that is not whole."""
        decode = _decoder(raw.headers.get("content-encoding", ""))
        parts: list[bytes] = []
        size = received = 0
        while data := raw.read1(_READ_SIZE, decode_content=False):
            received += len(data)
            part = decode.decompress(data, self._max_body_bytes - size + 1)
            parts.append(part)
            size += len(part)
            if max(size, received) > self._max_body_bytes:
                return b"".join(parts)[: self._max_body_bytes], True
        if received and not decode.eof:
            raise zlib.error("the compressed body breaks off")
        return b"".join(parts), False

    def close(self) -> None:
        """Close every connection."""
        self._pools.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _parts(url: str) -> tuple[str, str, int | None, str]:
    """Return scheme, host, port and request target, read by the parser that checked the scope."""
    try:
        parts = ada_url.URL(url)
    except ValueError as error:
        raise InvalidUrl(f"URL {url!r}: it is no absolute URL") from error
    return parts.protocol[:-1], parts.hostname, int(parts.port) if parts.port else None, parts.pathname + parts.search


def _headers_of(raw: urllib3.BaseHTTPResponse) -> dict[str, str]:
    headers = {name.lower(): value for name, value in raw.headers.items()}
    if "x-robots-tag" in headers:
        headers["x-robots-tag"] = "\n".join(raw.headers.getlist("x-robots-tag"))
    return headers


def _translated(url: str, error: Exception) -> FetchError:
    """Return the error of ours that says what happened to the GET of `url`."""
    # A protocol error tells in its second argument what broke: the connection, or what came over it.
    cause = error.args[1] if isinstance(error, ProtocolError) and len(error.args) > 1 else error
    message = f"GET {url}: {cause or type(cause).__name__}"
    if isinstance(cause, ConnectTimeoutError | NewConnectionError | SSLError):
        return ConnectionFailed(message)
    if isinstance(cause, ReadTimeoutError | TimeoutError):
        return ResponseTimeout(message)
    if isinstance(cause, OSError):
        return ConnectionFailed(message)
    return FetchError(message)


# Content codings


class _Decoder(Protocol):
    """Undoes a content coding; `eof` is false while its end has not come."""

    eof: bool

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _Identity:
    """No coding."""

    eof = True

    def decompress(self, data: bytes, _: int, /) -> bytes:
        return data


class _Inflate:
    """gzip, zlib, and the bare deflate that some servers send in place of zlib (RFC 9110 section 8.4.1.2)."""

    def __init__(self) -> None:
        self._inflate: Any = None
        self.eof = False

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        if self._inflate is None:
            self._inflate = zlib.decompressobj(_window_bits(data))
        part: bytes = self._inflate.decompress(data, max_length)
        while self._inflate.unused_data.startswith(b"\x1f\x8b") and len(part) < max_length:  # gzip of several members.
            rest = self._inflate.unused_data
            self._inflate = zlib.decompressobj(31)
            part += self._inflate.decompress(rest, max_length - len(part))
        self.eof = self._inflate.eof
        return part


def _window_bits(data: bytes) -> int:
    """Return what zlib needs to know: gzip or zlib by their own header (47), else bare deflate (-15)."""
    zlib_header = len(data) > 1 and data[0] & 15 == 8 and int.from_bytes(data[:2]) % 31 == 0
    return 47 if zlib_header or data[:1] == b"\x1f" else -15


def _decoder(coding: str) -> _Decoder:
    name = coding.strip().lower()
    if name in ("", "identity"):
        return _Identity()
    if name in _ZLIB_CODINGS:
        return _Inflate()
    raise HTTPError(f"unasked content coding {coding!r}")


# Connections


class _DeadlineReader(io.RawIOBase):
    """Reads a socket so that all reads together end at a deadline, which a time-out per read does not do."""

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


if TYPE_CHECKING:  # A mix-in of connections, which the checker may take for one.
    _Base = HTTPConnection
else:
    _Base = object


class _Guarded(_Base):
    """Checks whom it is connected to before anything is sent, and holds each response to its deadline."""

    rule: AddressRule

    def _new_conn(self) -> socket.socket:
        # The peer of the connection, not an earlier look-up of the name: a name may be answered anew each time.
        sock: socket.socket = super()._new_conn()
        try:
            self.rule.check(self.host, self.port or 0, sock.getpeername()[0])
        except BaseException:
            sock.close()
            raise
        return sock

    def response_class(  # type: ignore[override]  # A method in place of the class that http.client calls.
        self, sock: socket.socket, *args: Any, **options: Any
    ) -> http.client.HTTPResponse:
        # `timeout` is by now what is left of the total; the buffered reader of http.client is put on ours.
        response = http.client.HTTPResponse(sock, *args, **options)
        seconds = self.timeout if isinstance(self.timeout, int | float) else 0.0
        response.fp = io.BufferedReader(_DeadlineReader(response.fp.detach(), sock, seconds), _READ_SIZE)
        return response


def _pools(rule: AddressRule) -> urllib3.PoolManager:
    """Return connection pools whose every connection obeys the rule."""
    plain = type("GuardedConnection", (_Guarded, HTTPConnection), {"rule": rule})
    secure = type("GuardedSecureConnection", (_Guarded, HTTPSConnection), {"rule": rule})
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    pools = urllib3.PoolManager(num_pools=64, maxsize=2, ssl_context=context)
    pools.pool_classes_by_scheme = {
        "http": type("GuardedPool", (HTTPConnectionPool,), {"ConnectionCls": plain}),
        "https": type("GuardedSecurePool", (HTTPSConnectionPool,), {"ConnectionCls": secure}),
    }
    return pools
