"""Another Celery application, which sends tasks."""

from __future__ import annotations

from typing import Any

from celery import Celery
from kombu import Queue

from app.broker.policies.base import RetryPolicies
from app.broker.policies.delay_queues import DelayQueues
from app.broker.worker.install import install

#: Seconds to wait for a confirm, of an application whose broker gives none.
TIMEOUT = 1.0


def post(number: int = 0) -> None:
    """Do nothing; a task has to be a function with a name."""


def application(broker_url: str, *, confirm: bool = True, timeout: float = 60.0) -> Any:
    """Return a task of another application, which waits `timeout` seconds for a connection and for a confirm."""
    app = Celery("post", broker=broker_url, set_as_current=False)
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}
    app.conf.task_queues = [Queue("mail", routing_key="mail"), Queue("full", routing_key="full", queue_arguments=full)]
    app.conf.task_default_queue = "mail"
    app.conf.task_ignore_result = True
    app.conf.broker_connection_timeout = timeout
    mail = DelayQueues("mail", timeout_ms=250, retry_max=3)
    install(app, RetryPolicies({"mail": mail}, default=mail), publish_timeout=timeout, confirm=confirm)
    # Not shared: Celery would give the task to applications of other tests.
    return app.task(name="post.send", shared=False)(post)
