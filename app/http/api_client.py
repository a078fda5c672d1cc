"""Requests to APIs: a `requests` session on the guarded pool, for servers that the user's own settings name."""

from __future__ import annotations

import contextlib
import functools
import http.client
import os
import zlib
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from http.cookiejar import DefaultCookiePolicy
from typing import Any
from urllib.parse import urljoin

import requests
import urllib3
from requests.adapters import HTTPAdapter

from app.errors import FetchError, ForbiddenAddress
from app.http.addresses import ANY_ADDRESS, AddressPolicy
from app.http.fetcher import REPEAT_ON_CLOSED, guarded_pool
from app.http.response import REDIRECTS, Response, fetch_error, read_body
from app.http.urls import without_credentials

#: Idle connections to a host that are kept: those of as many threads.
_MAX_KEPT = 64

#: Redirects that one request follows.
_MAX_REDIRECTS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiClient:
    """Sends requests to one API. It has no state and may be made before a fork.

    Each request has a connection of its own, or with `keeps_connections` one that this process kept for some seconds.
    If the server just closed that one, the request is sent once more: all of its requests must bear that.
    Proxies and passwords of the environment (`HTTP_PROXY`, `~/.netrc`) are not used; `user:password@` in a URL is
    sent as basic authentication, and never shown.

        client = ApiClient(user_agent=settings.user_agent, response_timeout=10.0)
        response = client.send("GET", "http://user:password@127.0.0.1:15672/api/overview")
        if not response.ok: raise ManagementFailed(f"overview: {response.status}")
        response.json()
    """

    user_agent: str = "Perennial"
    #: Seconds until the connection must be made.
    connect_timeout: float = 10.0
    #: Seconds from the end of the request until the whole response must have arrived.
    response_timeout: float = 30.0
    #: Whether the body of a response is read. If not, it is empty, and the status alone counts.
    reads_body: bool = True
    #: Bytes of a body; a longer one is an error, since nothing can be concluded from a part.
    max_body_bytes: int = 16_000_000
    keeps_connections: bool = False
    #: Whether GET and HEAD follow redirects, to any server and with the same headers: none of them may be secret.
    follow_redirects: bool = False
    policy: AddressPolicy = field(default=ANY_ADDRESS, repr=False)

    def send(self, method: str, url: str, *, headers: Mapping[str, str] | None = None, body: bytes = b"") -> Response:
        """Send one request and return the response of whatever status; its `url` is that of the last redirect.

        Raises ConnectionFailed when no connection was made, ResponseTimeout and ForbiddenAddress. Raises FetchError
        when the connection broke later, or the response is invalid, too long, or in a content coding.
        """
        follow = self.follow_redirects and method in ("GET", "HEAD")
        with (
            nullcontext(_kept_session(os.getpid(), self.policy))
            if self.keeps_connections
            else _Session(self.policy) as session
        ):
            for _ in range(_MAX_REDIRECTS + 1):
                response = self._send_once(session, method, url, headers or {}, body)
                location = response.headers.get("location")
                if not follow or response.status not in REDIRECTS or not location:
                    return response
                try:
                    url = urljoin(response.url, location)
                except ValueError as error:
                    raise FetchError(f"{method} {without_credentials(url)}: redirected to {location!r:.300}") from error
        raise FetchError(f"{method} {without_credentials(url)}: more than {_MAX_REDIRECTS} redirects")

    def _send_once(
        self, session: requests.Session, method: str, url: str, headers: Mapping[str, str], body: bytes
    ) -> Response:
        request = f"{method} {without_credentials(url)}"
        try:
            with contextlib.closing(
                session.request(
                    method,
                    url,
                    headers={"User-Agent": self.user_agent, **headers},
                    data=body,
                    timeout=(self.connect_timeout, self.response_timeout),
                    allow_redirects=False,
                    stream=True,
                )
            ) as answer:
                return self._whole(answer, url)
        except requests.RequestException as error:
            cause = next(iter(error.args), None)
            if isinstance(cause, Exception):
                failure = fetch_error(request, cause, broken=FetchError)
            else:
                failure = FetchError(f"{request}: {error}")
        except (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError, zlib.error) as error:
            failure = fetch_error(request, error, broken=FetchError)
        # Raised outside of the handler: the library's error holds the request with its Authorization header.
        raise failure

    def _whole(self, answer: requests.Response, url: str) -> Response:
        headers = {name.lower(): value for name, value in answer.headers.items()}
        if not self.reads_body:
            return Response(url=url, status=answer.status_code, headers=headers, body=b"")
        # `identity` is no coding (RFC 9110 section 8.4), and some servers name it nevertheless.
        if (coding := (headers.get("content-encoding") or "identity").lower()) != "identity":
            raise requests.RequestException(f"content coding {coding[:40]!r} was not requested")
        content, truncated = read_body(answer.raw, max_bytes=self.max_body_bytes)
        if truncated:
            raise requests.RequestException(f"the body is longer than {self.max_body_bytes} bytes")
        return Response(url=url, status=answer.status_code, headers=headers, body=content)


def answering_scheme(url: str, client: ApiClient) -> str | None:
    """Return the scheme that the host of `url` answers to: https if both do, None if neither does.

    Raises ForbiddenAddress, which says more than that no scheme answers.
    """
    for scheme in ("https", "http"):
        try:
            client.send("HEAD", f"{scheme}://{url.partition('://')[2]}")
        except ForbiddenAddress:
            raise
        except FetchError:
            continue
        return scheme
    return None


class _Session(requests.Session):
    """A session on the guarded pool, without settings of the environment and without headers of its own.

    It leaves redirects to ApiClient: requests would read the body of each without a limit.
    """

    def __init__(self, policy: AddressPolicy) -> None:
        super().__init__()
        self.trust_env = False
        self.headers.clear()
        self.cookies.set_policy(DefaultCookiePolicy(allowed_domains=()))
        adapter = _GuardedAdapter(policy)
        for scheme in ("http://", "https://"):
            self.mount(scheme, adapter)

    def get_redirect_target(self, resp: requests.Response) -> str | None:  # noqa: ARG002
        """Return None, which requests reads as: not a redirect."""
        return None


@functools.lru_cache(maxsize=8)
def _kept_session(process: int, policy: AddressPolicy) -> _Session:  # noqa: ARG001 - A child has its own.
    return _Session(policy)


class _GuardedAdapter(HTTPAdapter):
    """Connects through the guarded pool, whose TLS context decides which certificates are trusted."""

    def __init__(self, policy: AddressPolicy) -> None:
        self._policy = policy
        super().__init__(max_retries=REPEAT_ON_CLOSED)

    def init_poolmanager(self, *_args: Any, **_options: Any) -> None:
        """Use the guarded pool in place of a pool of the adapter's own."""
        self.poolmanager = guarded_pool(self._policy, maxsize=_MAX_KEPT)

    def cert_verify(self, *_args: Any, **_options: Any) -> None:
        """Leave the pool's TLS context as it is."""
