"""A crawl with a page that dies and is replayed, as operators follow it: by log lines, Sentry and traces."""

from __future__ import annotations

import io
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from urllib3 import HTTPResponse

from app.private_services import Urls
from app.topology.queues import DEAD_SET
from config.settings import Settings
from tests.servers.site import Site, document, failure, reply
from tests.support.command import perennial
from tests.support.corner import environment_of, own_settings
from tests.support.fleet import fleet, ready
from tests.support.system import running_system
from tests.support.waiting import eventually
from tests.support.web import web_process

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]

#: Pages of the crawl that are well.
PAGES = 20

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


@dataclass
class Collector:
    """Keeps the spans of all requests, and all bytes that were `received`."""

    spans: list[Span] = field(default_factory=list)
    received: bytes = b""

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
def receiver(take: Callable[[bytes], object]) -> Iterator[str]:
    """Yield `host:port` of a server that takes the body of each POST, decompressed."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            encoded = io.BytesIO(self.rfile.read(int(self.headers["Content-Length"])))
            take(HTTPResponse(encoded, {"Content-Encoding": self.headers.get("Content-Encoding", "")}).data)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@dataclass(frozen=True)
class Followed:
    """What is left of the crawl of a site, of which the page `broken` died once, when all processes have ended."""

    settings: Settings
    domain: str
    broken: str
    lines: list[dict[str, Any]]
    events: list[dict[str, Any]]
    collector: Collector


@pytest.fixture(scope="module")
def followed(services: Urls, tmp_path_factory: pytest.TempPathFactory) -> Followed:
    """Crawl a site with a page that is dead-lettered, replay it, search the pack, and end all processes."""
    folder, events, collector = tmp_path_factory.mktemp("followed"), list[dict[str, Any]](), Collector()
    leaves = [f"/{number}" for number in range(PAGES)]
    pages = {leaf: reply(document(f"Page {leaf}", f"amber about {leaf}")) for leaf in leaves}
    start = reply(document("Start", "all about amber", links=[*leaves, "/broken"]))

    def take_envelope(body: bytes) -> None:
        # Headers and items of Sentry's envelope, each in a line. Of all of them an event alone has its platform.
        events.extend(each for each in map(json.loads, filter(None, body.splitlines())) if "platform" in each)

    with (
        own_settings(services, folder) as settings,
        receiver(take_envelope) as sentry,
        receiver(collector.take) as traces,
        Site({"/": start, "/broken": failure(500), **pages}) as site,
    ):
        environment = {
            **environment_of(settings),
            "LOG_FORMAT": "json",
            "SENTRY_DSN": f"http://key4711@{sentry}/1",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{traces}",
            "OTEL_BSP_SCHEDULE_DELAY": "200",
            "RETRY_TIMEOUT_MS": "100",
            "RETRY_MAX": "3",
            "TIMER_TIMEOUT": "6",
        }
        with (
            running_system(environment, settings, folder) as system,
            fleet({**environment, "HEARTBEAT": "0.5", "REPLICAS": "1"}, folder / "logs") as processes,
            web_process(environment, folder / "web.log") as (_, address),
        ):
            ready(processes.orchestrator(), processes.searcher())
            # The first tick after a start of Redis publishes the open pages of crawls again.
            eventually(lambda: "Redis is new" in system.worker.log, "the first tick")
            body = json.dumps({"type": "index+crawl", "url": site.at("/")}).encode()
            traced = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
            system.broker.post(body, message_id="crawl-4711", headers=traced)
            eventually(lambda: system.broker.depth(DEAD_SET) == 1, "the page is dead-lettered", seconds=60)
            site.set("/broken", reply(document("Repaired", "amber again")))
            replayed = perennial(environment, "dead", "replay", "--all")
            assert replayed.returncode == 0, replayed.stderr
            assert system.packed(site.domain).pages == PAGES + 2
            # A pack is in the store before the worker logs it.
            eventually(lambda: '"Pack of ' in system.worker.log, "the packer's line")
            query = {"domain": site.domain, "q": "amber"}
            eventually(lambda: _total(address, query) == PAGES + 2, "the pack is searched", seconds=60)
            names = {"run/site.index_and_crawl", "run/site.pack_full", "run/orchestrator.update"}
            eventually(lambda: names <= {each.name for each in collector.spans}, "the spans of the crawl arrive")
            # A search is a trace of its own, from the web process to a searcher.
            eventually(lambda: _has_parents(collector, "query", of="/api/v1/search"), "the spans of searches arrive")
            # Celery's banner is text.
            lines = [json.loads(line) for line in system.worker.log.splitlines() if line.startswith("{")]
    return Followed(settings, site.domain, site.at("/broken"), lines, events, collector)


def test_a_crawl_is_followed_by_its_id_and_its_page_through_three_retries(followed: Followed) -> None:
    lines = followed.lines
    crawl = [line for line in lines if line.get("crawl_id") == "crawl-4711"]
    assert all({"task", "task_id", "attempt", "domain", "process"} <= line.keys() for line in crawl)
    assert {line["domain"] for line in crawl} == {followed.domain}
    subjects = [line["message"].partition(" of ")[0] for line in crawl]
    assert (subjects[0], subjects[-2:]) == ("Crawl", ["Crawl", "Pack"])
    # All other lines are about the page that failed, and each line about it is one of the crawl. Before its replay the
    # crawl has ended once, and a first attempt beside other pages is logged by their run.
    alone = [line for line in crawl[1:-2] if line["task"] != "site.end_crawl"]
    beside = [line for line in alone if "which failed beside others" in line["message"]]
    alone = [line for line in alone if line not in beside]
    [page] = {line["task_id"] for line in alone if line.get("url") == followed.broken}
    about = [line for line in lines if line.get("task_id") == page]
    assert about == alone
    first = 2 if beside else 1
    assert [line["attempt"] for line in about if line["logger"].endswith("failures")] == [*range(first, 5)]
    # Celery's own line of the last run is one of the pool's process.
    [traceback] = [line for line in about if "exception" in line]
    assert (traceback["attempt"], traceback["task"]) == (4, "site.page")
    # A line for each page, or each second, would be here more often.
    assert max(Counter(_shape(line) for line in lines).values()) < 10


def test_a_dead_letter_is_one_event_with_its_page_and_crawl_and_without_a_secret(followed: Followed) -> None:
    [event] = followed.events
    [error] = event["exception"]["values"][-1:]
    assert (error["type"], followed.broken in error["value"]) == ("ServerError", True)
    expected = {"task": "site.page", "domain": followed.domain, "crawl_id": "crawl-4711", "process": "worker"}
    assert event["tags"] | expected == event["tags"]
    assert (event["tags"]["attempt"], event["extra"]["url"]) == (4, followed.broken)
    text = json.dumps(event)
    assert not [each for each in ("key4711", urlsplit(followed.settings.broker).password) if str(each) in text]


def test_one_trace_shows_a_crawl_with_its_retries_dead_letters_and_replays_up_to_its_pack(followed: Followed) -> None:
    spans = followed.collector.spans
    crawl = [each for each in spans if each.trace == TRACE]
    of_crawl = {"run/site.index_and_crawl", "run/site.page", "run/site.end_crawl", "run/site.pack_full"}
    assert of_crawl | {"run/orchestrator.update"} <= {each.name for each in crawl}
    assert not [each for each in spans if each.name in of_crawl and each.trace != TRACE]
    # Every span leads to that of the client.
    ids = {each.id for each in crawl} | {PARENT}
    assert [each for each in crawl if each.parent not in ids] == []
    # The first run, its retries, the last of which is the dead letter, and the replay have one message and one parent.
    [broken] = [runs for runs in _runs(crawl).values() if len(runs) > 1]
    assert [each.failed for each in broken] == [False, False, False, True, False]
    assert len({each.parent for each in broken}) == 1
    # What people search for is private.
    assert b"amber" not in followed.collector.received
    assert {"perennial-web", "perennial-searcher", "perennial-worker", "perennial-beat"} == {
        each.service for each in spans
    }


def _shape(line: dict[str, Any]) -> str:
    """Return the beginning of a message without numbers, which all lines of one kind share."""
    return " ".join(word for word in line["message"].split()[:4] if not any(letter.isdigit() for letter in word))


def _total(address: str, query: dict[str, str]) -> int:
    answer = httpx.get(f"{address}/api/v1/search", params=query, timeout=30)
    return int(answer.json().get("total", 0))


def _has_parents(collector: Collector, name: str, *, of: str) -> bool:
    """Return whether there are spans of a name, and the parent of each has the other name."""
    parents = {each.parent for each in collector.named(name)}
    return bool(parents) and parents <= {each.id for each in collector.named(of)}


def _runs(spans: list[Span]) -> dict[str, list[Span]]:
    """Return the runs of pages by the ids of their messages."""
    runs: dict[str, list[Span]] = {}
    for each in spans:
        if each.name == "run/site.page":
            runs.setdefault(each.task_id, []).append(each)
    return runs
