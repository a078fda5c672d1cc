"""Traces: one of a crawl with a retry, a dead letter and its replay, from `index+crawl` to the searcher of its pack."""

from __future__ import annotations

import json
import os
from pathlib import Path

import httpx
import pytest

from app.topology.queues import DEAD_SET
from config.settings import Settings
from tests.servers.site import Site, document, failure, reply
from tests.support.command import perennial
from tests.support.fleet import fleet, ready
from tests.support.otlp import Collector, Span, collector
from tests.support.system import running_system
from tests.support.waiting import eventually
from tests.support.web import web_process

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]

#: The trace of a client, and the span in which it publishes.
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


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
