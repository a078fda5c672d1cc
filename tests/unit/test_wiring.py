"""What `install` sets up stays, in whichever order an application is configured."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from celery import Celery
from celery import Task as CeleryTask
from kombu import Queue

from app.broker.errors import WorkerMisconfigured
from app.broker.policies.base import RetryPolicies
from app.broker.policies.delay_queues import DelayQueues
from app.broker.policies.x_death import XDeath
from app.broker.worker.install import install
from config.settings import ROOT

pytestmark = pytest.mark.unit

MAIL = DelayQueues("mail")
THEIRS = {"task_acks_late": False, "task_create_missing_queues": True, "task_default_queue": "mail"}


@pytest.mark.parametrize("configured", ["never", "before", "after", "both"])
@pytest.mark.parametrize("looked", [False, True])
def test_an_applications_own_configuration_does_not_undo_install(configured: str, looked: bool) -> None:
    app = Celery("post", set_as_current=False)
    if configured in ("before", "both"):
        app.config_from_object(dict(THEIRS))
    if looked:
        assert app.conf.worker_consumer == "celery.worker.consumer:Consumer"
    install(app, RetryPolicies({"mail": MAIL}, default=MAIL))
    if looked:
        assert app.conf.worker_consumer == "app.broker.worker.consumer:Consumer"
    if configured in ("after", "both"):
        app.config_from_object(dict(THEIRS))
    assert app.conf.worker_consumer == "app.broker.worker.consumer:Consumer"
    assert app.conf.task_acks_late
    assert app.conf.worker_proc_alive_timeout == 60
    assert not app.conf.task_create_missing_queues
    assert app.conf.task_default_queue == ("celery" if configured == "never" else "mail")


def nothing() -> None:
    """Do nothing; a task has to be a function with a name."""


@pytest.mark.parametrize(
    ("options", "queue", "why"),
    [
        ({"base": CeleryTask}, "orders", "task mine.post: its base Task is not app.broker.worker.task.Task"),
        ({"acks_late": False}, "orders", "task mine.post: acks_late is off"),
        ({}, "mail", "queue mail: its policy x_death rejects"),
    ],
)
def test_a_worker_that_would_lose_messages_does_not_start(options: dict[str, Any], queue: str, why: str) -> None:
    app, orders = Celery("post", broker="amqp://127.0.0.1:1//", set_as_current=False), XDeath("orders")
    app.conf.task_queues = [orders.work_queue("orders"), Queue("mail")]
    install(app, orders)
    # Not shared: Celery would give the task of one test to the application of the next.
    app.task(name="mine.post", shared=False, **options)(nothing)
    with pytest.raises(WorkerMisconfigured, match=why):
        app.WorkController(pool="solo", queues=[queue])


def test_a_worker_imports_no_library_that_only_some_queues_need_and_its_pool_seldom_looks_for_garbage() -> None:
    script = (
        "import gc, sys\n"
        "import app.celery\n"
        "from celery.signals import worker_process_init\n"
        "app.celery.app.loader.import_default_modules()\n"
        "assert 'coverart.index' in app.celery.app.tasks and 'orchestrator.update' in app.celery.app.tasks\n"
        "print([name for name in ('boto3', 'pika', 'psycopg', 'fastapi', 'lxml') if name in sys.modules])\n"
        "for receiver, result in worker_process_init.send(sender=None):\n"
        "    assert not isinstance(result, Exception), result\n"
        # It never looks among what was loaded before.
        "assert gc.get_freeze_count() > 10_000\n"
        "assert gc.isenabled() and gc.get_threshold()[0] == app.celery.GARBAGE_THRESHOLD > 700\n"
    )
    assert _printed(script) == "[]\n"


def test_without_a_collector_and_a_dsn_no_process_imports_an_extra() -> None:
    # redis-py imports the SDK of OpenTelemetry where it finds it.
    script = (
        "import sys, app.celery, app.web.__main__, app.cluster.searcher.__main__, app.messages.art_event_reader\n"
        "from app import error_reports, tracing\n"
        "from config.settings import Settings\n"
        "error_reports.begin('worker', Settings())\n"
        "tracing.begin('worker', '')\n"
        "extras = ('opentelemetry.instrumentation', 'opentelemetry.exporter', 'sentry')\n"
        "print([name for name in sys.modules if name.startswith(extras)])"
    )
    assert _printed(script) == "[]\n"


def _printed(script: str) -> str:
    """Return what a script prints in a process of its own."""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout
