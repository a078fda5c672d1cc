"""The guarded urllib3 pool: each connection checks its peer's address, each response has one deadline.

It relies on two details of urllib3 2: `HTTPConnection._new_conn` returns the connected socket before TLS and before
anything is sent, and `conn.timeout` holds the rest of `Timeout.total` when the response object is made. They are
checked by tests/integration/test_fetch.py.
"""

from __future__ import annotations

import functools
import http.client
import io
import socket
import ssl
import time
from typing import TYPE_CHECKING, Any

import certifi
import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from app.http.addresses import AddressPolicy

_READ_SIZE = 65_536


def guarded_pool(policy: AddressPolicy) -> urllib3.PoolManager:
    """Return a pool whose every connection checks its peer against `policy` before it sends anything.

    Call `urlopen` with a `Timeout` and `preload_content=False`: the head and the body together must arrive within the
    read time-out, or within what is left of the total. The pool reads no proxy from the environment.
    """
    plain = type("GuardedConnection", (_Guarded, HTTPConnection), {"policy": policy})
    secure = type("GuardedSecureConnection", (_Guarded, HTTPSConnection), {"policy": policy})
    pool = urllib3.PoolManager(num_pools=64, maxsize=2, ssl_context=_tls_context())
    pool.pool_classes_by_scheme = {
        "http": type("GuardedPool", (HTTPConnectionPool,), {"ConnectionCls": plain}),
        "https": type("GuardedSecurePool", (HTTPSConnectionPool,), {"ConnectionCls": secure}),
    }
    return pool


@functools.cache
def _tls_context() -> ssl.SSLContext:
    """Return the context that trusts the system's certificate authorities and those of certifi."""
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    return context


if TYPE_CHECKING:  # A mix-in; mypy needs a base that has the connection's attributes.
    _Base = HTTPConnection
else:
    _Base = object


class _Guarded(_Base):
    """A connection that checks its peer's address and holds each response to its deadline."""

    policy: AddressPolicy

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
        response = http.client.HTTPResponse(sock, *args, **options)
        seconds = self.timeout if isinstance(self.timeout, int | float) else 0.0
        response.fp = io.BufferedReader(_DeadlineReader(response.fp.detach(), sock, seconds), _READ_SIZE)
        return response


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
