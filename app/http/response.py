"""HTTP responses: the value, its bounded body, its Retry-After, and the error in place of one."""

from __future__ import annotations

import email.utils
import io
import re
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from typing import Any, Protocol

import urllib3
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    MaxRetryError,
    NewConnectionError,
    ProtocolError,
    ReadTimeoutError,
    SSLError,
)

from app.broker.nesting import read_json
from app.errors import ConnectionFailed, FetchError, ResponseTimeout

#: Statuses of a redirect to the URL in the Location header.
REDIRECTS = frozenset({301, 302, 303, 307, 308})
#: How urllib3 begins errors of a pool or a connection.
_CONNECTION = re.compile(r"\A\w+\(host=.*?, port=\w+\): ", re.DOTALL)
#: Members of a gzip body. Each costs a copy of what was received after it.
MAX_MEMBERS = 10_000

_READ_SIZE = 65_536
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Response:
    """One HTTP response of any status. Header names are lower case; `body` is decompressed.

    `truncated` marks a body that was cut at the size limit.
    """

    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes
    truncated: bool = False

    @property
    def ok(self) -> bool:
        """Whether the status is 2xx."""
        return 200 <= self.status < 300

    @property
    def text(self) -> str:
        """The body as UTF-8; invalid bytes become U+FFFD."""
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """Return the body as JSON; raises ValueError, also for one that is nested too deeply."""
        return read_json(self.body)

    def retry_after(self, *, cap: float) -> float | None:
        """Return the seconds of the Retry-After header, at most `cap`; None without a valid one."""
        return retry_after(self.headers.get("retry-after", ""), cap=cap)


def retry_after(value: str, *, cap: float, now: float | None = None) -> float | None:
    """Return the seconds that a Retry-After value asks for, at most `cap`; None for an empty or invalid one.

    The value is seconds or an HTTP date (RFC 9110 section 10.2.3); `now` is in seconds since the epoch.
    """
    if value.strip().isdecimal():
        return min(float(value), cap)
    try:
        date = email.utils.parsedate_to_datetime(value)
        # HTTP's dates are UTC, and one of its three forms names no zone (RFC 9110 section 5.6.7).
        then = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
    return min(max(then - (time.time() if now is None else now), 0.0), cap)


def read_body(raw: urllib3.BaseHTTPResponse, *, max_bytes: int) -> tuple[bytes, bool]:
    """Return the decompressed body of a streamed response, and whether it was cut at `max_bytes`.

    The limit holds for the bytes received and for the bytes decompressed; a gzip body is also cut after MAX_MEMBERS. No
    read waits for more than has arrived, so that a slow drip meets the pool's deadline. Raises HTTPError for a content
    coding other than gzip and deflate, zlib.error for a compressed body that is damaged or incomplete.

    A name that is no coding, such as `utf-8`, is ignored (https://fetch.spec.whatwg.org/#handle-content-codings).
    """
    named = raw.headers.get("content-encoding", "").lower()
    coding = ", ".join(each for each in map(str.strip, named.split(",")) if each in _DECODERS or each in _UNREQUESTED)
    if coding and coding not in _DECODERS:
        raise HTTPError(f"content coding {coding[:40]!r} was not requested")
    decoder = _DECODERS[coding]() if coding else _Identity()
    # Its value shares its memory: a body of 50 MB is not copied.
    body = io.BytesIO()
    received = 0
    while data := raw.read1(_READ_SIZE, decode_content=False):
        received += len(data)
        body.write(decoder.decompress(data, max_bytes - body.tell() + 1))
        if max(body.tell(), received) > max_bytes or decoder.members > MAX_MEMBERS:
            body.truncate(max_bytes)
            return body.getvalue(), True
    if received and not decoder.eof:
        raise zlib.error("the compressed body is incomplete")
    return body.getvalue(), False


class _Decoder(Protocol):
    """Undoes a content coding; `eof` is true when the coded data is complete, `members` the number of its parts."""

    eof: bool
    members: int

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _Identity:
    """No coding."""

    eof = True
    members = 1

    def decompress(self, data: bytes, _: int, /) -> bytes:
        return data


class _Inflate:
    """gzip of one or more members, zlib, and raw deflate, which some servers send in place of zlib.

    What follows the coded data is ignored.
    """

    def __init__(self) -> None:
        self._inflate: Any = None
        self.eof = False
        self.members = 0
        #: The first bytes of coded data that has not begun, or after it: one byte does not show what it is.
        self._rest = b""

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        part, data = b"", self._rest + data
        while data and len(part) < max_length and self.members <= MAX_MEMBERS:
            is_between = self._inflate is None or self.eof
            if is_between and (len(data) == 1 or (self.eof and not data.startswith(_GZIP))):
                self._rest = data[:2]
                return part
            if is_between:
                self.members += 1
                zlib_header = len(data) > 1 and data[0] & 15 == 8 and int.from_bytes(data[:2]) % 31 == 0
                # 47 reads a gzip or zlib header, -15 raw deflate.
                self._inflate = zlib.decompressobj(47 if zlib_header or data[:1] == _GZIP[:1] else -15)
            part += self._inflate.decompress(data, max_length - len(part))
            self.eof = self._inflate.eof
            data = self._inflate.unused_data
        self._rest = b""
        return part


#: Content codings that `read_body` undoes (RFC 9110 section 8.4.1).
_DECODERS: dict[str, type[_Decoder]] = {
    "identity": _Identity,
    "gzip": _Inflate,
    "x-gzip": _Inflate,
    "deflate": _Inflate,
}
#: The other ones of https://www.iana.org/assignments/http-parameters.
_UNREQUESTED = frozenset({"aes128gcm", "br", "compress", "dcb", "dcz", "exi", "pack200-gzip", "x-compress", "zstd"})


def fetch_error(request: str, error: Exception, *, broken: type[FetchError] = ConnectionFailed) -> FetchError:
    """Return the application's error for an error of urllib3, http.client or zlib during `request`, "GET https://...".

    ConnectionFailed: no connection was made. ResponseTimeout: the deadline passed. `broken`: the connection broke after
    it was made. FetchError: the response is not valid HTTP. The message holds no object of the library.
    """
    cause = error
    if isinstance(cause, MaxRetryError) and cause.reason is not None:
        cause = cause.reason
    if isinstance(cause, ProtocolError) and isinstance(cause.args[-1], Exception):
        cause = cause.args[-1]
    # The last argument without the connection, whose host the request names: it begins `GuardedPool(host=…, port=…): `.
    text = str(cause.args[-1]) if isinstance(cause, ConnectTimeoutError) else str(cause)
    message = f"{request}: {_CONNECTION.sub('', text)[:300] or type(cause).__name__}"
    if isinstance(cause, ConnectTimeoutError | NewConnectionError | SSLError):
        return ConnectionFailed(message)
    if isinstance(cause, ReadTimeoutError | TimeoutError):
        return ResponseTimeout(message)
    return broken(message) if isinstance(cause, OSError) else FetchError(message)
