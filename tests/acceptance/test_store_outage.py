"""An outage of the store, or a store that hangs: messages wait unspent, the log says so once, requests are answered."""

from __future__ import annotations

import itertools
import json
import socket
from contextlib import closing
from pathlib import Path

import psutil
import pytest
import redis
from kombu import Connection

from app.broker.delivery import Delivery
from app.broker.publishing import Publisher
from app.broker.rpc.requestor import Requestor
from app.cluster.protocol import Routes, read
from app.messages.envelopes import TaskMessage, call_of_envelope, event_message, request_message, to_task_message
from app.storage.open import open_store
from app.storage.outage import FIRST_PAUSE, store_breaker
from app.timers.timers import Timers
from app.topology.declare import all_queues
from app.topology.queues import DEAD_SET, requests_exchange
from config.routes import ORCHESTRATOR
from config.settings import Settings
from tests.servers.site import Site, page
from tests.support.broker import Broker
from tests.support.hung_disk import hung_disk
from tests.support.system import running_system
from tests.support.waiting import eventually
from tests.support.worker import worker

pytestmark = pytest.mark.acceptance

#: Properties of a task's message.
_JSON = {"content_type": "application/json", "content_encoding": "utf-8"}

PAGES = [f"/{number}" for number in range(12)]


def test_a_crawl_waits_while_the_store_is_away_and_spends_no_retry(
    settings: Settings, environment: dict[str, str], tmp_path: Path
) -> None:
    store, away = Path(settings.store.removeprefix("file://")), tmp_path / "away"
    routes = {path: page(path, f"words of {path}", links=[after]) for path, after in itertools.pairwise([*PAGES, "/"])}
    routes["/"] = page("Home", "welcome", links=PAGES)
    fast = {**environment, "RETRY_TIMEOUT_MS": "100", "RETRY_MAX": "1"}
    with (
        Site(routes) as site,
        redis.Redis.from_url(settings.redis) as client,
        running_system(fast, settings, tmp_path) as system,
    ):
        store.rename(away)
        store.mkdir()
        system.post("index+crawl", url=site.at("/"))
        eventually(lambda: "The store does not answer" in system.worker.log, "pages are not consumed")
        # A tick that is the trial is not seen in the log: its queue is consumed throughout.
        eventually(lambda: store_breaker(client).seconds_open() > FIRST_PAUSE, "it is tried again, in vain")
        store.rmdir()
        away.rename(store)
        assert system.packed(site.domain, seconds=120).pages == len(PAGES) + 1
        assert sorted(site.paths()) == sorted({"/robots.txt", "/sitemap.xml", "/", *PAGES})
        assert system.broker.depth(DEAD_SET) == 0
        assert "Retry " not in system.worker.log
        assert system.worker.log.count("WARNING") < 20


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["soft", "hard"])
def test_a_run_that_meets_its_time_limit_waits_while_the_store_is_away(
    settings: Settings, environment: dict[str, str], tmp_path: Path, limit: str
) -> None:
    changed = settings.model_copy(update={"retry_max": 0})
    waiting = [queue.name for queue in all_queues(changed) if ".delay." in queue.name]
    with Site({"/": page("Home", "welcome")}) as site, redis.Redis.from_url(settings.redis) as client:
        log, broker = tmp_path / "worker.log", Broker(settings.broker)
        with worker({**environment, "RETRY_MAX": "0"}, log, queues=["site.index"], concurrency=1) as running:
            envelope = json.dumps({"type": "index", "url": site.at("/")}).encode()
            broker.post(envelope)
            eventually(lambda: any(open_store(settings.store).list("content/")), "the page is stored")
            # A write waits only if it replaces an object.
            site.set("/", page("Home", "welcome again"))
            with hung_disk(Path(settings.store.removeprefix("file://"))):
                message = task_message(envelope, soft_limit=6, hard_limit=9)
                broker.post(message.body.encode(), headers=message.headers, **_JSON)
                eventually(lambda: site.paths().count("/") == 2, "the page was fetched again, and its write hangs")
                if limit == "hard":
                    # The soft limit cannot interrupt a process that waits for a disk. A stopped one ignores it, too.
                    for child in psutil.Process(running.process.pid).children():
                        child.suspend()
                store_breaker(client).fail(reason="the disk hangs", retry_after=120)
                eventually(lambda: sum(broker.depths(waiting)) == 1, "the message waits", seconds=60)
            running.kill()
        [postponed] = [each for queue in waiting for each in broker.take(queue)]
        assert "current-iteration" not in postponed.headers
        assert broker.depth(DEAD_SET) == 0


def test_a_queue_that_the_broker_refuses_after_an_outage_does_not_stop_the_other_queues_of_its_worker(
    settings: Settings, environment: dict[str, str], tmp_path: Path
) -> None:
    broker, log = Broker(settings.broker), tmp_path / "worker.log"
    with (
        worker(environment, log, queues=["site.index", "site.timer"], concurrency=1) as running,
        redis.Redis.from_url(settings.redis, decode_responses=True) as client,
    ):
        store_breaker(client).fail(reason="the store is away", retry_after=3)
        eventually(lambda: broker.consumers("site.index") == 0, "the queue is not consumed")
        with Connection(settings.broker) as connection, connection.channel() as channel:
            channel.queue_delete("site.index")
            channel.queue_declare("site.index", durable=True, auto_delete=False)
        eventually(lambda: "Queue site.index refused" in running.log, "the queue is refused", seconds=60)
        broker.post(json.dumps({"type": "start_timer", "domain": "site.example"}).encode(), key="start_timer")
        eventually(lambda: Timers(client).running("site.example"), "the other queue is served")
        assert running.process.poll() is None
        assert "Error in timer" not in running.log, running.log[-4000:]


def task_message(envelope: bytes, *, soft_limit: int, hard_limit: int) -> TaskMessage:
    """Return the message of the task of an envelope, with other time limits than its own."""
    delivery = Delivery(envelope, {}, {}, "application/json", "utf-8", queue="site.index")
    message = to_task_message(delivery, call_of_envelope(delivery))
    message.headers["timelimit"] = [hard_limit, soft_limit]
    return message


def test_requests_are_answered_while_the_store_hangs(
    settings: Settings, environment: dict[str, str], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.listen(64)
        own = {
            **environment,
            "STORE_URL": f"s3://bucket?endpoint=http://127.0.0.1:{silent.getsockname()[1]}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        log = tmp_path / "orchestrator.log"
        impatient = "tests.support.impatient_store"
        with worker(own, log, app=impatient, queues=[ORCHESTRATOR], options=["--pool=solo"], concurrency=1) as running:
            publisher, requestor = Publisher(settings.broker), Requestor(settings.broker, exchanges=[requests_exchange])
            with closing(publisher), closing(requestor):
                publisher.publish([event_message("update", {"domain": "site.example"})])
                silent.settimeout(60)
                connection, _ = silent.accept()
                with connection:
                    reply = requestor.request(request_message("get_routes", {}), deadline=10)
                    assert read(Routes, reply.body).routes == ()
                    assert "announced pack" not in running.log, "the store still hangs"
                    eventually(lambda: "announced pack" in running.log, "it reports the slow store", seconds=60)
                assert "Retry " not in running.log, "the message of an update spends no retry on the store"
            running.kill()
