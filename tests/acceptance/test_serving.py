"""Workers that answer requests: the only orchestrator, searchers with queues of their own, and how they end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from celery import Celery

from app.broker.errors import Unroutable
from app.broker.publishing import Outgoing
from app.broker.rpc.requestor import Requestor
from app.envelopes import request
from config.routes import ORCHESTRATOR, REQUESTS, SEARCHER
from config.settings import ROOT
from tests.support.broker import Broker
from tests.support.proxy import Proxy
from tests.support.waiting import eventually
from tests.support.worker import Worker, worker

pytestmark = pytest.mark.acceptance

ECHO = {"app": "tests.support.echoing", "options": ("--pool=solo",)}
ROUTES = request("get_routes", {})


@pytest.fixture
def requestor(broker_url: str) -> Iterator[Requestor]:
    requestor = Requestor(broker_url)
    yield requestor
    requestor.close()


def own_queue(searcher: Worker) -> str:
    [queue] = set(re.findall(r"\.> (site\.searcher\.[0-9a-f-]{36}) ", searcher.log))
    return str(queue)


def to(queue: str, body: bytes = b'{"type": "echo"}', **properties: str) -> Outgoing:
    return Outgoing(exchange="", routing_key=queue, body=body, properties=properties)


def refused(environment: Mapping[str, str], queues: str, *options: str) -> str:
    """Return what a worker says that does not start."""
    command = [sys.executable, "-m", "celery", "-A", "app", "worker", "--hostname=refused@%h", f"--queues={queues}"]
    done = subprocess.run(
        [*command, *options],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode != 0
    return done.stdout + done.stderr


def runs(broker_url: str) -> dict[str, int]:
    """Return how often each task was run by the only worker there is."""
    asker = Celery("asker", broker=broker_url, set_as_current=False)
    with asker.connection() as connection:
        [told] = asker.control.inspect(timeout=10, connection=connection, limit=1).stats().values()
    return dict(told["total"])


def test_there_is_one_orchestrator_and_the_next_one_takes_over_when_it_is_killed(
    environment: dict[str, str], broker_url: str, requestor: Requestor, tmp_path: Path
) -> None:
    with worker(environment, tmp_path / "first.log", queues=(ORCHESTRATOR, REQUESTS), **ECHO) as first:  # type: ignore[arg-type]
        assert requestor.request(ROUTES, deadline=30).body == f"{first.process.pid} ".encode() + ROUTES.body
        second = refused(environment, f"{ORCHESTRATOR},{REQUESTS}", "--pool=solo")
        assert "AlreadyRunning: another orchestrator runs on amqp://" in second
        # One message that its service refuses, and one that cannot be decompressed, stop nothing.
        broker = Broker(broker_url)
        broker.post(b"bad", exchange="perennial.requests", key="search")
        broker.post(
            b"zipped?", exchange="perennial.requests", key="search", headers={"compression": "application/x-gzip"}
        )
        assert requestor.request(ROUTES, deadline=30).body.endswith(ROUTES.body)
        assert broker.depths([REQUESTS, "site.dead"]) == [0, 0]
        assert "is not taken: ValueError('a bad message')" in first.log
        assert "cannot be decompressed" in first.log
        first.kill()
    with worker(environment, tmp_path / "next.log", queues=(ORCHESTRATOR, REQUESTS), **ECHO) as successor:  # type: ignore[arg-type]
        reply = requestor.request(ROUTES, deadline=30)
        assert reply.body.startswith(f"{successor.process.pid} ".encode())
    assert "echo: closed" in (tmp_path / "next.log").read_text()


def test_a_searcher_has_its_queue_again_after_the_connection_broke_and_leaves_in_order(
    environment: dict[str, str], broker_url: str, requestor: Requestor, tmp_path: Path
) -> None:
    proxy = Proxy(broker_url)
    away = {**environment, "BROKER_URL": proxy.url, "ECHO_LINGER": "1.5"}
    with worker(away, tmp_path / "searcher.log", queues=(SEARCHER,), **ECHO) as searcher:  # type: ignore[arg-type]
        queue = own_queue(searcher)
        assert f"echo: made for {queue.removeprefix('site.searcher.')}" in searcher.log
        assert requestor.request(to(queue), deadline=30).body.endswith(b'{"type": "echo"}')
        proxy.cut(half=True)
        eventually(lambda: "belongs to another connection" in searcher.log, "it waits for the broker to notice")
        proxy.cut()
        eventually(lambda: searcher.log.count("echo: connected") == 2, "it consumes again")
        assert requestor.request(to(queue), deadline=30).body.endswith(b'{"type": "echo"}')
        # Told to end, it answers until it has let go of its queue; what comes then is returned at once.
        searcher.process.send_signal(signal.SIGTERM)
        eventually(lambda: "echo: closing" in searcher.log, "it says farewell")
        assert requestor.request(to(queue), deadline=30).body.endswith(b'{"type": "echo"}')
        assert searcher.process.wait(30) == 0
        assert "echo: closed" in searcher.log
        with pytest.raises(Unroutable):
            requestor.request(to(queue), deadline=600)
    proxy.close()


def test_two_searchers_hear_the_same_event_and_the_queue_of_a_killed_one_is_gone(
    environment: dict[str, str], broker_url: str, requestor: Requestor, tmp_path: Path
) -> None:
    with (
        worker(environment, tmp_path / "one.log", queues=(SEARCHER,), **ECHO) as one,  # type: ignore[arg-type]
        worker(environment, tmp_path / "two.log", queues=(SEARCHER,), **ECHO) as two,  # type: ignore[arg-type]
    ):
        assert own_queue(one) != own_queue(two)
        Broker(broker_url).post(b"bad", exchange="perennial.events", key="register_again")
        eventually(lambda: "a bad message" in one.log and "a bad message" in two.log, "both heard of it")
        one.kill()
        with pytest.raises(Unroutable):
            # Until the broker has noticed, a request may still be taken by the queue.
            eventually(lambda: requestor.request(to(own_queue(one)), deadline=0.2) is None, "it is returned")
        assert requestor.request(to(own_queue(two)), deadline=30).body.startswith(f"{two.process.pid} ".encode())


def test_a_worker_that_could_not_serve_its_queues_does_not_start(environment: dict[str, str]) -> None:
    said = refused(environment, f"{ORCHESTRATOR},{REQUESTS}")
    assert "NotWired: queues orchestrator, orchestrator.requests: " in said
    assert "start it with --pool=solo" in said


@pytest.mark.parametrize("backend", ["", "rpc://"])
def test_an_event_is_retried_buried_with_its_address_and_never_replied_to(
    environment: dict[str, str], broker_url: str, tmp_path: Path, backend: str
) -> None:
    quick = {**environment, "EVENT_RETRY_MS": "200", "RETRY_MAX": "2", "RESULT_BACKEND": backend}
    with worker(quick, tmp_path / "client.log", queues=(ORCHESTRATOR, REQUESTS), options=("--pool=solo",)):
        broker = Broker(broker_url)
        broker.bind_new("replies")
        broker.bind_new(ORCHESTRATOR, exchange="others.events", key="news")
        address = {"reply_to": "replies", "correlation_id": "c-1", "content_type": "application/json"}
        understood = b'{"type": "update", "domain": "site.gov"}'
        broker.post(understood, exchange="perennial.events", key="update", **address)
        broker.post(understood, exchange="others.events", key="news", **address)
        broker.post(b'{"type": "novelty", "of": 1}', exchange="perennial.events", key="update", **address)
        broker.post(b'{"type": "novelty", "of": 2}', exchange="others.events", key="news", **address)
        eventually(lambda: broker.depth("orchestrator.error") == 2, "both ended in the error queue")
        buried = broker.take("orchestrator.error")
        assert sorted(message.body for message in buried) == [b'{"type": "novelty", "of": %d}' % of for of in (1, 2)]
        for message in buried:
            assert (message.properties["reply_to"], message.properties["correlation_id"]) == ("replies", "c-1")
            assert message.headers["retry_info"]
        assert runs(broker_url) == {"orchestrator.update": 2}
        assert broker.depths(["replies", ORCHESTRATOR, "orchestrator.retry"]) == [0, 0, 0]
