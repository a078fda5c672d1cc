"""Finding over a real broker: searchers that answer, are silent, busy or gone, an orchestrator that comes and goes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import pytest

from app.cluster.client import cluster, hedging
from app.cluster.client.cluster import MAX_AGE, ClusterSearchClient
from app.cluster.protocol import Routes, to_json
from app.errors import PackNotFound, SearchUnavailable
from app.search.contract import Hit, PackHits, PackInfo, SearchReply, SearchRequest, SearchResult
from app.search.snippet import Snippet
from app.topology.queues import searcher_queue
from tests.support.peers import Peer, Script, orchestrator, peer, route, routes, silence
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration


def says(name: str) -> Script:
    """Answer every search with one hit that is called so, and every beginning of a word with two ends."""

    def answer(request: dict[str, Any]) -> bytes:
        if request["type"] == "suggest":
            return to_json((f"{request['q']} {name}", f"{request['q']} more"))
        domain = request["domain"]
        hit = Hit(
            url=f"https://{domain}/{name}", path="/", title=name, snippet=Snippet(""), headings=(), lang="", score=0.5
        )
        results = PackHits(total=1, estimated=False, reachable=1, relaxed=False, hits=(hit,), score_bound=1.0)
        return to_json(SearchReply(info=PackInfo(domain=domain, generation="1", built_at="", pages=1), results=results))

    return answer


class World:
    """The peers of a test: searchers by name, and an orchestrator that replies with `routes`."""

    def __init__(self, url: str, stack: ExitStack) -> None:
        self.routes: Routes | None = routes()
        self._url = url
        self._stack = stack

    def orchestrator(self) -> Peer:
        found: Peer = self._stack.enter_context(orchestrator(self._url, lambda: self.routes))
        return found

    def searcher(self, name: str, script: Script | None = None) -> Peer:
        return self._stack.enter_context(peer(self._url, searcher_queue(name), script or says(name)))

    def client(self, *, deadline: float = 60.0) -> ClusterSearchClient:
        """Return a client. A busy machine answers late: a tenth of the deadline is waited for it."""
        return self._stack.enter_context(closing(ClusterSearchClient(self._url, deadline=deadline)))


@pytest.fixture
def world(broker_url: str) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(broker_url, stack)


def ask(client: ClusterSearchClient, *domains: str) -> SearchResult:
    """Search from an event loop, as the web does: before the client has routes, a thread requests them."""
    return asyncio.run(client.asearch(SearchRequest(q="words", domains=domains or ("a.example",))))


def titles(found: SearchResult) -> list[str]:
    return [hit.title for hit in found.hits]


def soon(client: ClusterSearchClient, domain: str) -> list[str]:
    """Return the titles found once the routes have the domain."""
    try:
        return titles(ask(client, domain))
    except (SearchUnavailable, PackNotFound):
        return []


def test_several_domains_give_one_result_and_interleaved_suggestions(world: World) -> None:
    world.routes = routes(route("a.example", "one"), route("b.example", "two"))
    world.orchestrator(), world.searcher("one"), world.searcher("two")
    client = world.client()
    found = ask(client, "B.example", "a.example")
    assert (titles(found), found.total, found.silent) == (["two", "one"], 2, ())
    assert [info.domain for info in found.sources] == ["b.example", "a.example"]
    assert client.suggest(["a.example", "b.example"], "tea", limit=3) == ("tea one", "tea two", "tea more")


def test_a_silent_replica_is_hedged_and_comes_last_from_then_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hedging, "_SILENT_SECONDS", 60.0)
    world.routes = routes(route("a.example", "one", "two"))
    world.orchestrator(), world.searcher("two")
    silent = world.searcher("one", silence)
    client = world.client(deadline=20.0)
    assert {titles(ask(client))[0] for _ in range(10)} == {"two"}
    assert len(silent.requests) == 1
    assert client.counts()["hedged"] == 1


def test_a_late_reply_is_dropped_and_its_searcher_is_used_again(world: World) -> None:
    world.routes = routes(route("a.example", "slow", "quick"))
    world.orchestrator(), world.searcher("quick")
    wake, slow = threading.Event(), says("slow")

    def answer(request: dict[str, Any]) -> bytes | None:
        wake.wait(30)
        return slow(request)

    world.searcher("slow", answer)
    client = world.client(deadline=20.0)
    assert titles(ask(client)) == ["quick"]
    wake.set()
    eventually(lambda: client.counts()["late"] == 1, "the late answer is counted")
    assert {titles(ask(client))[0] for _ in range(4)} == {"slow"}


def test_cached_routes_are_used_while_the_orchestrator_is_away(world: World) -> None:
    world.routes = routes(route("a.example", "one"))
    keeper = world.orchestrator()
    world.searcher("one")
    # A lookup fails after it.
    client = world.client(deadline=3.0)
    assert titles(ask(client)) == ["one"]
    keeper.close()
    while not client.counts()["lookups_failed"]:
        assert titles(ask(client)) == ["one"]
    assert titles(ask(client)) == ["one"]
    with pytest.raises(SearchUnavailable, match=r"whether never\.example was indexed"):
        ask(client, "never.example")
    world.routes = routes(route("a.example", "one"), route("new.example", "one"), ready=False)
    world.orchestrator()  # A new one, that still gathers.
    assert titles(ask(client)) == ["one"]
    world.routes = routes(route("a.example", "one"), route("new.example", "one"))
    assert eventually(lambda: soon(client, "new.example"), "the new orchestrator is asked") == ["one"]


def test_a_pack_that_moved_is_found_along_newer_routes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "PATIENCE", 60.0)
    began = time.monotonic()
    world.routes = routes(route("a.example", "one"))
    keeper = world.orchestrator()
    first = world.searcher("one")
    world.searcher("two")
    client = world.client()
    assert titles(ask(client)) == ["one"]
    world.routes = routes(route("a.example", "two"))
    first.close()
    assert titles(ask(client)) == ["two"]
    assert client.counts()["returned"] == 1
    world.routes = routes(route("a.example", "two"), route("b.example", "two"))
    assert eventually(lambda: soon(client, "b.example"), "routes that know of it") == ["two"]
    assert len(keeper.requests) <= 4 + (time.monotonic() - began) / MAX_AGE


def test_a_domain_without_answer_is_silent_if_another_one_answers(world: World) -> None:
    world.routes = routes(route("a.example", "one"), route("b.example", "gone"), route("c.example"))
    world.orchestrator(), world.searcher("one")
    found = ask(world.client(), "c.example", "a.example", "b.example")
    assert titles(found) == ["one"]
    assert [domain for domain, _ in found.silent] == ["c.example", "b.example"]
    assert {why for _, why in found.silent} == {
        "b.example is on no searcher at the moment",
        "c.example is on no searcher at the moment",
    }


def test_an_unknown_domain_is_an_error_although_another_one_answers(world: World) -> None:
    world.routes = routes(route("a.example", "one"))
    world.orchestrator(), world.searcher("one")
    with pytest.raises(PackNotFound, match=r"^never\.example has no pack: it was never indexed, or is not packed yet$"):
        ask(world.client(), "a.example", "never.example")


def test_without_an_orchestrator_search_is_unavailable_with_the_reason(world: World) -> None:
    with pytest.raises(SearchUnavailable, match="there is no orchestrator"):
        ask(world.client())
    world.routes = None
    world.orchestrator()
    silent = world.client(deadline=1.0)
    began = time.monotonic()
    with pytest.raises(SearchUnavailable, match="the orchestrator did not answer within 1 s"):
        silent.routes()
    assert time.monotonic() - began >= 1.0
    nowhere = ClusterSearchClient("amqp://127.0.0.1:1//", deadline=1.0)
    with closing(nowhere), pytest.raises(SearchUnavailable, match="Connection refused"):
        ask(nowhere)


def test_a_client_without_reconnections_does_not_wait_for_a_broker_until_the_deadline() -> None:
    nowhere = ClusterSearchClient("amqp://127.0.0.1:1//", deadline=600.0, reconnects=False)
    with ThreadPoolExecutor() as pool, closing(nowhere):
        error = pool.submit(ask, nowhere).exception(60)
    assert isinstance(error, SearchUnavailable)
    assert "Connection refused" in str(error)


def test_the_first_search_waits_for_settled_routes(world: World) -> None:
    world.routes = routes(route("a.example"), ready=False)
    keeper = world.orchestrator()
    world.searcher("one")
    client = world.client(deadline=30.0)
    with ThreadPoolExecutor() as pool:
        search_due = pool.submit(ask, client)
        eventually(lambda: len(keeper.requests) > 3, "it asks again")
        assert not search_due.done()
        world.routes = routes(route("a.example", "one"))
        assert titles(search_due.result(30)) == ["one"]
