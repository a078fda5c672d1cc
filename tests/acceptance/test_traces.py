"""Traces: one of a crawl with a retry, a dead letter and its replay, from `index+crawl` to the searcher of its pack."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from app.topology.queues import DEAD_SET
from config.settings import Settings
from tests.servers.site import Site, document, failure, reply
from tests.support.command import perennial
from tests.support.fleet import fleet, ready
from tests.support.system import running_system
from tests.support.waiting import eventually
from tests.support.web import web_process

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]

#: The trace of a client, and the span in which it publishes.
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


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
    """Receive spans for the block, as OTLP over HTTP."""

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


def test_one_trace_shows_a_crawl_with_its_retries_dead_letters_and_replays_up_to_its_pack(
    environment: dict[str, str], settings: Settings, tmp_path: Path
) -> None:
    start = reply(document("Start", "all about amber", links=["/well", "/broken"]))
    routes = {"/": start, "/well": reply(document("Well", "amber")), "/broken": failure(500)}
    with collector() as received, Site(routes) as site:
        traced = {
            **environment,
            "OTEL_EXPORTER_OTLP_ENDPOINT": received.url,
            "OTEL_BSP_SCHEDULE_DELAY": "200",
            "RETRY_TIMEOUT_MS": "100",
            "RETRY_MAX": "1",
            "TIMER_TIMEOUT": "6",
        }
        with (
            running_system(traced, settings, tmp_path) as system,
            fleet({**traced, "HEARTBEAT": "0.5", "REPLICAS": "1"}, tmp_path / "logs") as processes,
            web_process(traced, tmp_path / "web.log") as (_, address),
        ):
            ready(processes.orchestrator(), processes.searcher())
            body = json.dumps({"type": "index+crawl", "url": site.at("/")}).encode()
            system.broker.post(body, message_id="crawl", headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
            eventually(lambda: system.broker.depth(DEAD_SET) == 1, "the page is dead-lettered", seconds=60)
            site.set("/broken", reply(document("Repaired", "amber again")))
            replayed = perennial({**os.environ, **traced}, "dead", "replay", "--all")
            assert replayed.returncode == 0, replayed.stderr
            assert system.packed(site.domain).pages == 3
            query = {"domain": site.domain, "q": "amber"}
            found = eventually(lambda: _total(address, query) == 3, "the pack is searched", seconds=60)
            assert found
            names = {"run/site.index_and_crawl", "run/site.pack_full", "run/orchestrator.update"}
            eventually(lambda: names <= {each.name for each in received.spans}, "the spans of the crawl arrive")
            # A search is a trace of its own, from the web process to a searcher.
            eventually(lambda: _has_parents(received, "query", of="/api/v1/search"), "the spans of searches arrive")
        crawl = [each for each in received.spans if each.trace == TRACE]
    of_crawl = {"run/site.index_and_crawl", "run/site.page", "run/site.end_crawl", "run/site.pack_full"}
    assert of_crawl | {"run/orchestrator.update"} <= {each.name for each in crawl}
    assert not [each for each in received.spans if each.name in of_crawl and each.trace != TRACE]
    # Every span leads to that of the client.
    ids = {each.id for each in crawl} | {PARENT}
    assert [each for each in crawl if each.parent not in ids] == []
    # The first run, its retry as the dead letter, and the replay have one message and one parent.
    [broken] = [runs for runs in _runs(crawl).values() if len(runs) == 3]
    assert [each.failed for each in broken] == [False, True, False]
    assert len({each.parent for each in broken}) == 1
    # What people search for is private.
    assert b"amber" not in received.received
    assert {"perennial-web", "perennial-searcher", "perennial-worker", "perennial-beat"} == {
        each.service for each in received.spans
    }


def _total(address: str, query: dict[str, str]) -> int:
    answer = httpx.get(f"{address}/api/v1/search", params=query, timeout=30)
    return int(answer.json().get("total", 0))


def _has_parents(received: Collector, name: str, *, of: str) -> bool:
    """Return whether there are spans of a name, and the parent of each has the other name."""
    parents = {each.parent for each in received.named(name)}
    return bool(parents) and parents <= {each.id for each in received.named(of)}


def _runs(spans: list[Span]) -> dict[str, list[Span]]:
    """Return the runs of pages by the ids of their messages."""
    runs: dict[str, list[Span]] = {}
    for each in spans:
        if each.name == "run/site.page":
            runs.setdefault(each.task_id, []).append(each)
    return runs
