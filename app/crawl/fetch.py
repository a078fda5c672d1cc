"""Get one page over kept-alive connections: allowed addresses only, no redirects, bounded in time and size."""

from __future__ import annotations

import http.client
import zlib
from collections.abc import Mapping
from contextlib import closing
from typing import Self

import ada_url
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
        """Return a fetcher with the limits of the settings."""
        return cls(
            user_agent=settings.user_agent,
            connect_timeout=settings.connect_timeout,
            response_timeout=settings.response_timeout,
            max_body_bytes=settings.max_body_bytes,
            allow_private_hosts=settings.allow_private_hosts,
        )

    def get(self, url: str, *, headers: Mapping[str, str] | None = None) -> Response:
        """GET an absolute http(s) URL and return the response of whatever status.

        A body over `max_body_bytes`, received or decompressed, is cut and marked `truncated`. Repeated headers are
        joined by ", ", repeated X-Robots-Tag headers by a line feed, since each may address its own robot.
        Raises ForbiddenAddress before anything is sent, ConnectionFailed, ResponseTimeout when the whole response took
        longer than `response_timeout` seconds, and FetchError for a response that is invalid or incomplete.
        """
        try:
            parts = ada_url.URL(url)
        except ValueError as error:
            raise InvalidUrl(f"URL {url!r}: it is not an absolute URL") from error
        port = int(parts.port) if parts.port else None
        try:
            # The host comes from the parser that checked the scope; another parser could read another host.
            pool = self._pools.connection_from_host(parts.hostname, port, parts.protocol[:-1])
            with closing(
                pool.urlopen(
                    "GET",
                    parts.pathname + parts.search,
                    headers={**self._headers, **(headers or {})},
                    timeout=Timeout(connect=self._connect_timeout, total=self._response_timeout),
                    retries=False,
                    redirect=False,
                    assert_same_host=False,
                    preload_content=False,
                )
            ) as raw:
                body, truncated = read_body(raw, max_bytes=self._max_body_bytes)
        except (HTTPError, http.client.HTTPException, OSError, zlib.error) as error:
            raise fetch_error(f"GET {url}", error) from error
        received = {name.lower(): value for name, value in raw.headers.items()}
        if "x-robots-tag" in received:
            received["x-robots-tag"] = "\n".join(raw.headers.getlist("x-robots-tag"))
        return Response(url=url, status=raw.status, headers=received, body=body, truncated=truncated)

    def close(self) -> None:
        """Close every connection."""
        self._pools.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
