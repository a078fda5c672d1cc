"""One GET: to public addresses only, never redirected, bounded in time and size, whole or an error."""

from __future__ import annotations

import http.client
import zlib
from collections.abc import Mapping
from contextlib import closing
from typing import Self

import ada_url
import urllib3
from urllib3.exceptions import HTTPError
from urllib3.util import Timeout

from app.errors import InvalidUrl
from app.http.addresses import AddressPolicy
from app.http.pool import guarded_pool
from app.http.response import Response, fetch_error, read_body
from config.settings import Settings

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
        self._pools = guarded_pool(AddressPolicy(allow_private_hosts))

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
                body, truncated = read_body(raw, max_bytes=self._max_body_bytes)
        except (HTTPError, http.client.HTTPException, OSError, zlib.error) as error:
            raise fetch_error(f"GET {url}", error) from error
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
