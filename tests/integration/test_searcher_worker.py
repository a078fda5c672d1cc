"""A searcher's process with a real broker: registration, orders, queries, drain and restart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from app.broker.errors import Unroutable
from app.broker.publishing import Publisher
from app.cluster.protocol import Load, ProblemReply, SearcherReport, to_payload
from app.cluster.searcher.reporter import Reporter
from app.counters import SEARCHER_QUERIES, SEARCHER_SECONDS, read_counts
from app.search.contract import SearchReply
from app.storage.layout import manifest_key
from app.storage.open import open_store
from app.topology.queues import queries_exchange
from config.routes import REGISTER_AGAIN, SEARCHER
from config.settings import Settings
from tests.support.fake_orchestrator import FakeOrchestrator, answer_of, fake_orchestrator, searcher_message
from tests.support.fleet import Fleet, Packs, fleet, pages_of, ready, title_of
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

DOMAIN, OTHER = "alpha.example", "beta.example"


@pytest.fixture
def ours(settings: Settings, environment: dict[str, str], tmp_path: Path) -> Iterator[Fleet]:
    with fleet({**environment, "HEARTBEAT": "0.5"}, tmp_path / "logs") as found:
        yield found


@pytest.fixture
def ear(settings: Settings) -> Iterator[FakeOrchestrator]:
    with fake_orchestrator(settings.broker) as found:
        yield found


@pytest.fixture
def packs(settings: Settings, tmp_path: Path) -> Packs:
    return Packs(settings, tmp_path / "packs")


def load_of(settings: Settings, domain: str) -> Load:
    """Return the order to load the store's version of a domain's pack."""
    manifest = json.loads(open_store(settings.store).get(manifest_key(domain)).data)
    return Load(domain=domain, sha256=manifest["sha256"], generation=manifest["generation"], size_mb=1)


def found(answer: SearchReply | ProblemReply) -> tuple[str, int]:
    """Return the title that all hits share, and their number."""
    assert isinstance(answer, SearchReply), answer
    (title,) = {hit.title for hit in answer.results.hits}
    return title, answer.results.total


def reason_of(answer: SearchReply | ProblemReply) -> str:
    assert isinstance(answer, ProblemReply), answer
    return answer.reason


def test_a_searcher_registers_loads_answers_and_drains_and_the_next_one_recovers_its_packs(
    settings: Settings, ours: Fleet, ear: FakeOrchestrator, packs: Packs
) -> None:
    first = ours.searcher(disk_mb=20)
    registered = ear.receive("register").value
    me = registered.searcher_id
    assert (registered.capacity, registered.free_space, registered.pack_versions) == (20, 20, ())

    packs.publish(DOMAIN, 1)
    packs.publish(OTHER, 1)
    # An order through the exchange of clients comes before the real ones, and is refused.
    forged = searcher_message(me, "load", **to_payload(load_of(settings, OTHER)))
    ear.publisher.publish([replace(forged, exchange=queries_exchange.name)])
    loaded = ear.order(me, load_of(settings, DOMAIN))
    assert "an order came from perennial.queries, to which clients publish" in first.log
    assert loaded.type == "loaded"
    assert (loaded.value.held.domain, loaded.value.held.sha256) == (DOMAIN, loaded.value.sha256)
    assert loaded.report.changes == registered.changes + 1
    assert loaded.report.free_space == 19
    assert ear.order(me, load_of(settings, OTHER)).type == "loaded"
    failed = ear.order(me, replace(load_of(settings, DOMAIN), sha256="0" * 64, generation=99))
    assert (failed.type, failed.value.held, failed.report.changes) == ("failed", loaded.value.held, 2)
    assert "older than 99" in failed.value.reason
    assert found(ear.search(me, DOMAIN, "alpha")) == (title_of(DOMAIN, 1), pages_of(1))
    assert found(ear.search(me, OTHER, "version1", limit=1)) == (title_of(OTHER, 1), pages_of(1))
    suggested = ear.requestor.request(searcher_message(me, "suggest", domain=DOMAIN, q="alp"), deadline=20)
    assert "alpha" in json.loads(suggested.body)[0]

    assert reason_of(ear.search(me, "gamma.example", "word")) == "pack-not-loaded"
    assert reason_of(ear.search(me, DOMAIN, "-word")) == "invalid-query"
    assert reason_of(ear.search(me, DOMAIN, "word", offset=-1)) == "invalid-query"
    nonsense = ear.requestor.request(searcher_message(me, "sing"), deadline=20)
    assert "expected one of search, suggest, load, unload" in nonsense.body.decode()
    garbled = replace(searcher_message(me, "search"), body=b"\xff")
    assert "not utf-8 JSON" in ear.requestor.request(garbled, deadline=20).body.decode()
    half_a_pair = ear.requestor.request(searcher_message(me, "search", domain=DOMAIN, q="\ud800"), deadline=20)
    assert json.loads(half_a_pair.body)["reason"] == "invalid-query"
    ear.publisher.publish([searcher_message(me, "load", domain=DOMAIN)])

    # A heartbeat counts the changes of packs, and expires after three intervals.
    beat = ear.receive("heartbeat", after=ear.mark())
    assert beat.report.seq > failed.report.seq
    assert (beat.report.changes, beat.value.loading) == (2, ())
    assert beat.properties["expiration"] == "1500"
    assert beat.properties["delivery_mode"] == 1
    mark = ear.mark()
    # The orchestrator requests it of all searchers, or of one from which a message is missing.
    ear.request_registration()
    assert len(ear.receive("register", after=mark).value.pack_versions) == 2
    mark = ear.mark()
    ear.publisher.publish([searcher_message(me, REGISTER_AGAIN)])
    again = ear.receive("register", after=mark)
    assert [version.domain for version in again.value.pack_versions] == [DOMAIN, OTHER]
    assert again.report.changes == 2
    # It declares its queue again after an operator deleted it.
    mark = ear.mark()
    ear.channel.queue_delete(f"{SEARCHER}.{me}")
    declared = ear.receive("register", after=mark).value
    assert (declared.searcher_id, declared.pack_versions) == (me, again.value.pack_versions)
    assert found(ear.search(me, DOMAIN, "alpha")) == (title_of(DOMAIN, 1), pages_of(1))
    mark = ear.mark()
    ear.request_registration()
    ear.receive("register", after=mark)

    first.process.terminate()
    leaving = ear.receive("register", condition=lambda each: each.report.leaving, after=mark)
    assert leaving.report.searcher_id == me
    # A client that does not know yet still gets replies.
    assert found(ear.search(me, DOMAIN, "alpha"))[0] == title_of(DOMAIN, 1)
    assert first.process.wait(60) == 0
    counted = read_counts(settings.redis)
    expected = {("search", "ok"): 4, ("suggest", "ok"): 1, ("search", "pack-not-loaded"): 1}
    assert {key: counted[SEARCHER_QUERIES][key] for key in expected} == expected
    assert counted[SEARCHER_SECONDS][("suggest",)] > 0
    with pytest.raises(Unroutable):
        ear.search(me, DOMAIN, "alpha")

    for ending in ("killed", "left alone"):
        mark = ear.mark()
        next_one = ours.searcher(disk_mb=20)
        registered = ear.receive("register", after=mark).value
        assert registered.searcher_id != me
        assert [version.domain for version in registered.pack_versions] == [DOMAIN, OTHER]
        assert found(ear.search(registered.searcher_id, OTHER, "beta"))[0] == title_of(OTHER, 1)
        if ending == "killed":
            next_one.kill()
    assert not [each for each in ear.received[mark:] if each.type in ("loaded", "failed")]


def test_a_searcher_that_has_a_reason_sends_no_heartbeats(ear: FakeOrchestrator, settings: Settings) -> None:
    trouble = [""]
    posts = Publisher(settings.broker), Publisher(settings.broker)
    state = SearcherReport(searcher_id="it", seq=0, changes=0, free_space=1)
    reporter = Reporter(
        events=posts[0],
        heartbeats=posts[1],
        published=lambda: None,
        every=0.1,
        report=lambda: state,
        registration=lambda: state,
        silence_reason=lambda: trouble[0],
    )
    with closing(reporter):
        reporter.register()
        first = ear.receive("register")
        ear.receive("heartbeat")
        trouble[0] = "the broker is unreachable"
        eventually(lambda: reporter._silent, "it has noticed")
        mark = ear.mark()
        last = ear.received[-1].report.seq
        reporter.register()
        eventually(lambda: reporter._silent, "it has noticed again")
        assert ear.mark() == mark
        trouble[0] = ""
        again = ear.receive("register", after=mark)
        assert again.report.seq == last + 1 > first.report.seq


def test_queries_beyond_the_backlog_are_refused_at_once_and_the_others_answered(
    settings: Settings, environment: dict[str, str], tmp_path: Path, ear: FakeOrchestrator, packs: Packs
) -> None:
    with fleet({**environment, "SEARCHER_PROCESSES": "1"}, tmp_path / "logs") as ours:
        ready(ours.searcher())
        me = ear.receive("register").report.searcher_id
        packs.publish(DOMAIN, 40)
        assert ear.order(me, load_of(settings, DOMAIN)).type == "loaded"
        request = searcher_message(me, "search", domain=DOMAIN, q="alpha version40 one of its pages", limit=100)
        futures = [ear.requestor.send(request, deadline=30) for _ in range(500)]
        answers = [answer_of(future.result().body) for future in futures]
        refused = [answer for answer in answers if isinstance(answer, ProblemReply)]
        assert {problem.reason for problem in refused} == {"searcher-busy"}
        assert 0 < len(refused) < 500
        assert found(ear.search(me, DOMAIN, "alpha"))[0] == title_of(DOMAIN, 40)
