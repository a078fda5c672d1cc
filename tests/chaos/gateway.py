"""A gateway before an S3 server that can fail and be slow."""

from __future__ import annotations

import http.client
from contextlib import closing
from urllib.parse import urlsplit

from tests.servers.site import Answer, Request, Site, Wire, head, reply

#: Headers that belong to one connection, and those that are written again.
_OWN_HEADERS = frozenset({"host", "connection", "transfer-encoding", "content-length", "expect"})

_SLOW_DOWN = reply(
    '<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>',
    status=503,
    content_type="application/xml",
)


class StoreGateway(Site):
    """Forwards requests to the S3 server at `url`, which stays reachable without it."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._s3_address = urlsplit(url).netloc
        #: Whether every request is answered with an error.
        self.failing = False
        #: Seconds before each request is forwarded.
        self.delay = 0.0

    def route(self, request: Request) -> Answer:
        """Return how a request is answered now."""
        return _SLOW_DOWN if self.failing else self._forward

    def _forward(self, request: Request, wire: Wire) -> None:
        wire.pause(self.delay)
        headers = {name: value for name, value in request.headers.items() if name not in _OWN_HEADERS}
        with closing(http.client.HTTPConnection(self._s3_address, timeout=30)) as server:
            server.request(request.method, request.path, body=request.body, headers=headers)
            response = server.getresponse()
            body = response.read()
        received = [(name, value) for name, value in response.getheaders() if name.lower() not in _OWN_HEADERS]
        # The length in the response to HEAD is that of the object.
        length = response.getheader("Content-Length", "0") if request.method == "HEAD" else str(len(body))
        wire.send(head(response.status, [*received, ("Content-Length", length)]) + body)
