"""Processes of the search cluster: one orchestrator only, searchers with queues of their own, and how they end."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from celery import Celery

from app.broker.errors import Unroutable
from app.broker.rpc.requestor import Requestor
from app.cluster.protocol import ProblemReply, Routes, read
from app.messages.envelopes import request_message
from config.routes import ORCHESTRATOR, REQUESTS
from tests.support.broker import Broker
from tests.support.command import completed
from tests.support.fake_orchestrator import FakeOrchestrator, fake_orchestrator
from tests.support.fleet import fleet, ready
from tests.support.proxy import Proxy
from tests.support.waiting import eventually
from tests.support.worker import worker

pytestmark = pytest.mark.acceptance

SOLO = ("--pool=solo",)
ROUTES = request_message("get_routes", {})


@pytest.fixture
def requestor(broker_url: str) -> Iterator[Requestor]:
    requestor = Requestor(broker_url)
    yield requestor
    requestor.close()


@pytest.fixture
def ear(broker_url: str) -> Iterator[FakeOrchestrator]:
    with fake_orchestrator(broker_url) as found:
        yield found


def orchestrator_id(requestor: Requestor) -> str:
    """Return the id that an orchestrator gives itself when it starts."""
    return read(Routes, requestor.request(ROUTES, deadline=30).body).orchestrator


def is_answered(ear: FakeOrchestrator, searcher_id: str) -> bool:
    """Tell whether a searcher answers a search, here of a domain that it does not have."""
    answer = ear.search(searcher_id, "nowhere.example", "word")
    return isinstance(answer, ProblemReply) and answer.reason == "pack-not-loaded"


def refused(environment: Mapping[str, str], queues: str, *options: str) -> str:
    """Return what a worker says that does not start."""
    command = ["celery", "-A", "app", "worker", "--hostname=refused@%h", f"--queues={queues}", *options]
    done = completed({**os.environ, **environment}, *command)
    assert done.returncode != 0
    return done.stdout + done.stderr


def runs(broker_url: str) -> dict[str, int]:
    """Return how often each task was run by the only worker there is."""
    asker = Celery("asker", broker=broker_url, set_as_current=False)
    with asker.connection() as connection:
        [stats] = asker.control.inspect(timeout=10, connection=connection, limit=1).stats().values()
    return dict(stats["total"])


@pytest.mark.slow
def test_there_is_one_orchestrator_and_the_next_one_takes_over_when_it_is_killed(
    environment: dict[str, str], broker_url: str, requestor: Requestor, tmp_path: Path
) -> None:
    with worker(environment, tmp_path / "first.log", queues=(ORCHESTRATOR,), options=SOLO) as first:
        first_id = orchestrator_id(requestor)
        second = refused(environment, ORCHESTRATOR, *SOLO)
        assert "AlreadyRunning: another orchestrator runs on amqp://" in second
        # A request that is not JSON and one that cannot be decompressed do not stop it.
        broker = Broker(broker_url)
        broker.post(b"bad", exchange="perennial.requests", key="search")
        broker.post(
            b"zipped?", exchange="perennial.requests", key="search", headers={"compression": "application/x-gzip"}
        )
        assert orchestrator_id(requestor) == first_id
        assert broker.depths([REQUESTS, "site.dead"]) == [0, 0]
        assert "Undecodable" in first.log
        assert "its body cannot be decoded" in first.log
        first.kill()
    with worker(environment, tmp_path / "next.log", queues=(ORCHESTRATOR,), options=SOLO) as successor:
        assert orchestrator_id(requestor) != first_id
        successor.leave()


def test_a_searcher_waits_for_its_broker_reconnects_with_its_queue_and_drains_when_it_is_stopped(
    environment: dict[str, str], broker_url: str, ear: FakeOrchestrator, tmp_path: Path
) -> None:
    proxy = Proxy(broker_url)
    proxy.cut(reopen=False)
    with fleet({**environment, "BROKER_URL": proxy.url, "HEARTBEAT": "0.5"}, tmp_path / "logs") as crew:
        searcher = crew.searcher()
        eventually(lambda: searcher.log.count("lost, again in") > 1, "it has tried twice", seconds=60)
        proxy.reopen()
        ready(searcher)
        ident = ear.receive("register").report.searcher_id
        assert is_answered(ear, ident)
        # The broker still believes in the first connection, to which it would send every second request.
        for half in (True, False):
            mark = ear.mark()
            proxy.cut(half=half)
            assert ear.receive("register", after=mark).report.searcher_id == ident
            assert all(is_answered(ear, ident) for _ in range(4))
        # After a connection that worked, the backoff begins again.
        assert re.search(r"lost, again in 0\.(0\d|10) s", searcher.log.partition("ready.")[2])
        # A stopping searcher answers until it has deleted its queue; later requests are returned at once.
        searcher.process.send_signal(signal.SIGTERM)
        ear.receive("register", condition=lambda each: each.report.leaving)
        assert is_answered(ear, ident)
        assert searcher.process.wait(60) == 0
        assert f"Searcher {ident} stopped" in searcher.log
        with pytest.raises(Unroutable):
            is_answered(ear, ident)
    proxy.close()


def test_the_orchestrator_refuses_a_pool_that_does_not_share_its_state(environment: dict[str, str]) -> None:
    said = refused(environment, ORCHESTRATOR)
    assert "WorkerMisconfigured: queue orchestrator: " in said
    assert "--pool=solo" in said


def test_an_event_is_retried_dead_lettered_with_its_reply_address_and_never_replied_to(
    environment: dict[str, str], broker_url: str, tmp_path: Path
) -> None:
    quick = {**environment, "RETRY_MAX": "1"}
    with worker(quick, tmp_path / "client.log", queues=(ORCHESTRATOR,), options=SOLO):
        broker = Broker(broker_url)
        broker.bind_new("replies")
        broker.bind_new(ORCHESTRATOR, exchange="others.events", key="news")
        address = {"reply_to": "replies", "correlation_id": "c-1", "content_type": "application/json"}
        understood = b'{"type": "update", "domain": "site.gov"}'
        broker.post(understood, exchange="perennial.events", key="update", **address)
        broker.post(understood, exchange="others.events", key="news", **address)
        broker.post(b'{"type": "novelty", "of": 1}', exchange="perennial.events", key="update", **address)
        broker.post(b'{"type": "novelty", "of": 2}', exchange="others.events", key="news", **address)
        eventually(lambda: broker.depth("orchestrator.error") == 2, "both ended in the error queue", seconds=60)
        buried = broker.take("orchestrator.error")
        assert sorted(message.body for message in buried) == [b'{"type": "novelty", "of": %d}' % of for of in (1, 2)]
        for message in buried:
            assert (message.properties["reply_to"], message.properties["correlation_id"]) == ("replies", "c-1")
            assert message.headers["retry_info"]
        assert runs(broker_url) == {"orchestrator.update": 2}
        assert broker.depths(["replies", ORCHESTRATOR, "orchestrator.retry"]) == [0, 0, 0]
