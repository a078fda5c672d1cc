"""One HTTP request to a server that we trust but not its manners: bounded, and no secret in an error."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self

import requests
import urllib3
from requests.auth import AuthBase
from urllib3.exceptions import MaxRetryError, NewConnectionError, ReadTimeoutError

from app.errors import ConnectionFailed, FetchError, ResponseTimeout
from app.http.response import retry_after
from config.settings import Settings

_CHUNK = 65_536
#: A Retry-After beyond this many seconds is taken for this.
_MAX_RETRY_AFTER = 86_400.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, of whatever status. Header names are lower case; `body` is whole."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def ok(self) -> bool:
        """Whether the status is 2xx."""
        return 200 <= self.status < 300

    @property
    def text(self) -> str:
        """The body as text, whatever bytes it has."""
        return self.body.decode("utf-8", "replace")

    @property
    def retry_after(self) -> float | None:
        """Seconds that a Retry-After asks for; None for none or an unreadable one (RFC 9110 section 10.2.3)."""
        return retry_after(self.headers.get("retry-after", ""), cap=_MAX_RETRY_AFTER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """Sends requests. It holds no connection, so that it may be made before a fork; time-outs are in seconds.

    Each request has a connection of its own: a kept one, which the server has just closed, would cost a retry, and
    that is hours away.
    """

    user_agent: str
    connect_timeout: float = 10.0
    read_timeout: float = 30.0
    #: Bytes of a body; of a longer one nothing is believed.
    max_body: int = 16_000_000
    #: Whether redirects are followed; never with `auth`, which would go to whoever a server names.
    redirects: bool = False
    auth: AuthBase | None = field(default=None, repr=False)

    @classmethod
    def of(cls, settings: Settings, *, redirects: bool = False) -> Self:
        """Return a client with the user agent and the time-outs of the settings."""
        return cls(
            user_agent=settings.user_agent,
            connect_timeout=settings.archive_connect_timeout,
            read_timeout=settings.archive_read_timeout,
            redirects=redirects,
        )

    def send(self, method: str, url: str, *, headers: Mapping[str, str] | None = None, body: bytes = b"") -> Answer:
        """Send one request and return the answer; a redirect that is not followed is an answer too.

        The whole body must come within `read_timeout`, counted from its head. Raises ConnectionFailed when no
        connection could be made, ResponseTimeout, and FetchError when it broke off or what came is no HTTP.
        """
        try:
            with self._session() as session, self._opened(session, method, url, headers or {}, body) as response:
                return Answer(
                    status=response.status_code,
                    headers={name.lower(): value for name, value in response.headers.items()},
                    body=self._read(response),
                )
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            failure = _translated(f"{method} {url}", error)
        # Raised out here, since the library's error has the request, and that has its Authorization.
        raise failure

    def _session(self) -> requests.Session:
        session = requests.Session()
        # Proxies and passwords of the environment (`HTTP_PROXY`, `~/.netrc`) are not for us.
        session.trust_env = False
        session.headers.clear()
        session.headers["User-Agent"] = self.user_agent
        return session

    @contextmanager
    def _opened(
        self, session: requests.Session, method: str, url: str, headers: Mapping[str, str], body: bytes
    ) -> Iterator[requests.Response]:
        with session.request(
            method,
            url,
            headers=dict(headers),
            data=body,
            auth=self.auth,
            timeout=(self.connect_timeout, self.read_timeout),
            allow_redirects=self.redirects and self.auth is None,
            stream=True,
        ) as response:
            yield response

    def _read(self, response: requests.Response) -> bytes:
        """Return the body. Nothing waits for more than has come, so that a slow drip meets the deadline, too."""
        if coding := response.headers.get("content-encoding"):
            raise requests.RequestException(f"unasked content coding {coding[:40]!r}")
        deadline = time.monotonic() + self.read_timeout
        body = bytearray()
        while part := response.raw.read1(_CHUNK, decode_content=False):
            body += part
            if len(body) > self.max_body:
                raise requests.RequestException(f"a body of over {self.max_body} bytes")
            if time.monotonic() > deadline:
                raise requests.Timeout(f"the body took longer than {self.read_timeout:g} s")
        return bytes(body)


def _translated(what: str, error: Exception) -> FetchError:
    """Return the error of ours that says what happened, as text only."""
    message = f"{what}: {_innermost(error)}"
    causes = [error, *error.args[:1]]
    causes += [cause.reason for cause in causes if isinstance(cause, MaxRetryError)]
    for cause in causes:
        if isinstance(cause, requests.exceptions.SSLError | requests.ConnectTimeout | NewConnectionError):
            return ConnectionFailed(message)
        if isinstance(cause, requests.Timeout | ReadTimeoutError):
            return ResponseTimeout(message)
    return FetchError(message)


def _innermost(error: Exception) -> str:
    """Return what broke without the libraries' envelopes, which have addresses of objects in their text."""
    cause: BaseException = error
    while isinstance(inner := getattr(cause, "reason", None) or next(iter(cause.args), None), Exception):
        cause = inner
    if isinstance(cause, urllib3.exceptions.ProtocolError) and isinstance(cause.args[-1], Exception):
        cause = cause.args[-1]
    return str(cause)[:300] or type(cause).__name__
