"""HTTP clients of one process: requests to a site have its headers, its proxy and its certificate authority."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import ada_url

from app.crawl.policy import RequestOptions
from app.http.fetcher import Fetcher
from app.http.response import Response
from config.settings import Settings

#: Clients that a process keeps. Each has connections of its own.
_KEPT = 64


class SiteClient:
    """Gets URLs with the options of one site."""

    def __init__(self, settings: Settings, options: RequestOptions) -> None:
        self._options = options
        self._fetcher = Fetcher.of(
            settings,
            user_agent=options.user_agent,
            proxy=options.proxy,
            proxy_login=options.proxy_login,
            ca_file=options.ca_file,
        )

    def get(self, url: str, *, headers: Mapping[str, str] | None = None, max_bytes: int = 0) -> Response:
        """Return what `Fetcher.get` returns; raises what it raises. Secrets go to the origins of the site only."""
        own = headers_for(url, self._options)
        return self._fetcher.get(url, headers={**(headers or {}), **own}, max_bytes=max_bytes)

    def close(self) -> None:
        """Close every connection."""
        self._fetcher.close()


def headers_for(url: str, options: RequestOptions) -> dict[str, str]:
    """Return the headers of a request to an absolute URL: secrets go to the origins of the site only."""
    if not options.headers or ada_url.URL(url).origin not in options.origins:
        return {}
    return dict(options.headers)


class SiteClients:
    """The clients by their options; domains with the same options share one. Safe for use by several threads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._kept: dict[RequestOptions, SiteClient] = {}
        self._lock = threading.Lock()

    def of(self, options: RequestOptions) -> SiteClient:
        """Return the client with these options, made on the first call; raises FetchError for an invalid CA file."""
        with self._lock:
            client = self._kept.get(options)
            if client is None:
                if len(self._kept) >= _KEPT:
                    self._kept.pop(next(iter(self._kept))).close()
                client = self._kept[options] = SiteClient(self._settings, options)
            return client
