"""A real worker and real failures: how often each message runs, and where it ends."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
import requests
from kombu import Connection

from app.broker.dead_letters import DeadSets
from app.broker.headers import OUTCOME_TO, REPLAY, REPLAY_HISTORY
from app.broker.publishing import Publisher
from app.private_services import Urls
from app.topology.queues import DEAD_SET
from app.topology.retry_policies import site_policy
from config.settings import Settings
from tests.support.broker import Broker
from tests.support.corner import environment_of, own_vhost, settings_for
from tests.support.waiting import eventually
from tests.support.worker import Worker, worker

pytestmark = pytest.mark.acceptance

#: The budget of these tests: 2 retries, after 100 and 200 ms.
BUDGET = {"RETRY_TIMEOUT_MS": "100", "RETRY_MAX": "2"}


@pytest.fixture(scope="module")
def settings(services: Urls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """One corner for all tests here: they leave nothing in it but the dead, which `dead_set` takes away."""
    with own_vhost(services) as url:
        yield settings_for(tmp_path_factory.mktemp("failures"), url, services.redis_url, services.broker_api_url)


@pytest.fixture(scope="module")
def running(settings: Settings) -> Iterator[Worker]:
    environment = {**environment_of(settings), **BUDGET}
    with worker(environment, settings.data_dir / "worker.log", app="tests.support.failing") as running:
        yield running


@pytest.fixture
def broker(settings: Settings) -> Broker:
    return Broker(settings.broker)


@pytest.fixture
def dead(settings: Settings, broker: Broker) -> Iterator[DeadSets]:
    publisher = Publisher(settings.broker)
    yield DeadSets(site_policy(settings), settings.broker, publisher)
    publisher.close()
    broker.take(DEAD_SET)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def send(broker: Broker, task: str, *, key: str = "site.index", more: Mapping[str, Any] = {}, **kwargs: Any) -> str:
    """Post a task as Celery's protocol 2 has it, with more headers."""
    ident = str(uuid.uuid4())
    body = json.dumps([[], {name: str(v) if isinstance(v, Path) else v for name, v in kwargs.items()}, {}]).encode()
    headers = {"task": task, "id": ident, "lang": "py", "root_id": ident, "retries": 0, **more}
    broker.post(body, key=key, headers=headers, content_type="application/json", content_encoding="utf-8")
    return ident


def runs(journal: Path) -> int:
    return len(journal.read_text().splitlines()) if journal.exists() else 0


@pytest.mark.parametrize(
    ("task", "reason", "exception"),
    [("failing.fail", "exception", "KeyError"), ("failing.leave", "worker-lost", "SystemExit")],
)
def test_each_retry_and_the_death_of_a_message_are_logged_with_its_task_queue_budget_and_error(
    running: Worker, broker: Broker, dead: DeadSets, journal: Path, task: str, reason: str, exception: str
) -> None:
    task_id = send(broker, task, journal=journal)
    eventually(lambda: broker.depth(DEAD_SET) == 1, "it is dead")
    [letter] = dead.letters()
    assert runs(journal) == 3
    lines = [line for line in running.log.splitlines() if f"task_id={task_id} task={task} attempt=" in line]
    for attempt, said in ((1, "Retry 1 of 2 of {} from site.index in 0.1 s"), (3, "Dead-lettered {} from site.index")):
        found = [line for line in lines if said.format(task) in line and f"attempt={attempt}" in line]
        assert [exception in line for line in found] == [True], lines
    assert f"({reason})" in lines[-1]
    assert (letter.reason, letter.cause.exception, letter.cause.attempts) == (reason, exception, 3)


def test_an_expired_message_is_reported_as_revoked_and_not_as_a_success(
    running: Worker, broker: Broker, settings: Settings, journal: Path
) -> None:
    with Connection(settings.broker) as connection, connection.channel() as channel:
        replies = channel.queue_declare("", exclusive=True).queue
        channel.queue_bind(replies, "perennial.outcomes", replies)
        before = datetime.now(UTC) - timedelta(seconds=1)
        more = {"expires": before.isoformat(), OUTCOME_TO: replies}
        more |= {REPLAY: "keep", REPLAY_HISTORY: ["1d6a"]}
        send(broker, "failing.permanent", journal=journal, more=more)
        outcome = eventually(lambda: channel.basic_get(replies, no_ack=True), "an outcome")
    assert json.loads(outcome.body) == {"outcome": "revoked", "text": "expired", "of": "1d6a"}
    assert "Discarding revoked task" not in running.log
    assert "[???]" not in running.log
    assert runs(journal) == 0


def test_a_worker_serves_all_queues_but_one_with_other_arguments_and_that_one_after_it_was_deleted(
    services: Urls, redis_url: str, tmp_path: Path
) -> None:
    with own_vhost(services) as url:
        broker = Broker(url)
        with Connection(url) as connection, connection.channel() as channel:
            channel.queue_declare("site.index", durable=True, auto_delete=False)
            # A tick is worthless when it is late, so its queue is replaced by the worker itself.
            channel.queue_declare("site.tick", durable=True, auto_delete=False)
            environment = environment_of(settings_for(tmp_path, url, redis_url, services.broker_api_url))
            with worker(environment, tmp_path / "worker.log") as running:
                assert "perennial topology check` names the remedy" in running.log
                assert re.search(r"Queue site.index refused, .* next attempt in .* inequivalent arg", running.log)
                assert [broker.consumers(name) for name in ("site.index", "site.crawl", "site.tick")] == [0, 1, 1]
                channel.queue_delete("site.index")
                eventually(lambda: "Queue site.index declared" in running.log, "it is declared again", seconds=60)
                eventually(lambda: broker.consumers("site.index") == 1, "it is served")


def test_celery_declares_none_of_its_own_delay_queues(running: Worker, settings: Settings, broker_api_url: str) -> None:
    assert " ready." in running.log
    vhost = quote(urlsplit(settings.broker).path.removeprefix("/"), safe="")
    answer = requests.get(f"{broker_api_url.rstrip('/')}/queues/{vhost}", timeout=10)
    names = [queue["name"] for queue in answer.json()]
    assert "site.index" in names
    assert not [name for name in names if name.startswith("celery_delayed")]
