"""Which workers run the orchestrator's tasks, and which consumer they get."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from celery import Celery

import app.celery
from app.cluster.client.cluster import DEADLINE
from app.cluster.orchestrator.worker import OrchestratorConsumer
from app.topology.policies import REQUEST_TTL_MS
from config.routes import ORCHESTRATOR, REQUESTS

pytestmark = pytest.mark.unit


def started(*queues: str) -> Celery:
    """Return a Celery application as a worker with `--queues` finds it after its first signal."""
    fresh = Celery("fresh", set_as_current=False)
    queues_of_app = app.celery.app.conf.task_queues
    fresh.conf.update(task_queues=queues_of_app, worker_consumer="app.messages.consumer:EnvelopeConsumer")
    app.celery._choose_consumer(instance=SimpleNamespace(app=fresh), options={"queues": queues or None})
    return fresh


def test_a_worker_without_queues_takes_all_tasks_but_the_orchestrators() -> None:
    fresh = started()
    taken = set(fresh.amqp.queues.consume_from)
    assert {"site.index", "site.pack", "site.tick"} <= taken
    assert not {ORCHESTRATOR, REQUESTS} & taken
    assert fresh.conf.worker_consumer == "app.messages.consumer:EnvelopeConsumer"


def test_a_worker_of_the_orchestrators_queue_is_the_orchestrator() -> None:
    fresh = started("site.tick", ORCHESTRATOR)
    fresh.amqp.queues.select(["site.tick", ORCHESTRATOR])
    assert set(fresh.amqp.queues.consume_from) == {"site.tick", ORCHESTRATOR}
    module, _, name = fresh.conf.worker_consumer.partition(":")
    assert (module, name) == (OrchestratorConsumer.__module__, OrchestratorConsumer.__name__)


def test_search_requests_are_not_celery_tasks() -> None:
    assert REQUESTS not in started().amqp.queues


def test_a_request_whose_deadline_has_passed_is_in_no_queue() -> None:
    assert DEADLINE * 1_000 < REQUEST_TTL_MS
