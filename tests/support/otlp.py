"""A collector of traces: OTLP over HTTP, in the process of the test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True, slots=True)
class Span:
    """A received span. Ids are hexadecimal, `failed` says whether its status is an error."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    task_id: str
    failed: bool


class Collector:
    """Keeps the spans of all requests; `url` is what OTEL_EXPORTER_OTLP_ENDPOINT names, `received` all bytes."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        self.spans: list[Span] = []
        self.received = b""

    def take(self, body: bytes) -> None:
        """Note the spans of a request."""
        self.received += body
        request = ExportTraceServiceRequest()
        request.ParseFromString(body)
        for resource in request.resource_spans:
            named = {each.key: each.value.string_value for each in resource.resource.attributes}
            for each in (each for scope in resource.scope_spans for each in scope.spans):
                attributes = {pair.key: pair.value.string_value for pair in each.attributes}
                ids = (each.trace_id.hex(), each.span_id.hex(), each.parent_span_id.hex())
                task_id = attributes.get("messaging.message.id") or attributes.get("messaging.message_id", "")
                self.spans.append(Span(named["service.name"], each.name, *ids, task_id, each.status.code == 2))

    def named(self, name: str) -> list[Span]:
        """Return the spans of this name, in the order of their arrival."""
        return [each for each in self.spans if each.name == name]


@contextmanager
def collector() -> Iterator[Collector]:
    """Receive spans for the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.take(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found = Collector(server)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()
