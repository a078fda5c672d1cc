"""Install the retry policies in a Celery application with one call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kombu.utils.imports import symbol_by_name

from .. import amqp_internals
from ..connection import BROKER_TIMEOUT
from ..dead_letters import DeadSets
from ..policies.base import Policy, RetryPolicies
from ..publishing import get_publisher
from .celery_internals import use_classes
from .failures import OnOutcome
from .task import Task


@dataclass(frozen=True, slots=True)
class Retries:
    """What `install` leaves at `app.retries`.

    `publish_timeout` is in seconds; `confirm` says whether a client waits for the broker's confirm by default.
    `on_outcome` is called in a worker with each run.
    """

    policies: RetryPolicies
    publish_timeout: float = BROKER_TIMEOUT
    confirm: bool = True
    on_outcome: OnOutcome | None = None


def install(
    app: Any,
    policies: RetryPolicies | Policy,
    *,
    publish_timeout: float = BROKER_TIMEOUT,
    confirm: bool = True,
    on_outcome: OnOutcome | None = None,
    consumer: str = f"{__package__}.consumer:Consumer",
) -> None:
    """Let the policies decide on every failure in the workers of a Celery application.

    Call it when the application is created, before its tasks are. It replaces the base class of tasks, the consumer,
    and the sending of tasks and events; a base class of the application's own still wraps each run. It also sets
    settings, which take precedence over those of the application. Without `task_queues` there is a queue for each
    policy; a single policy is for Celery's default queue. `consumer` names a subclass of this package's Consumer. With
    `confirm`, `delay()` of a client waits for the broker's confirm, unless the call says otherwise. `on_outcome` is
    called in a worker's main process for each run, with task, queue, outcome and reason code.
    """
    amqp_internals.install()
    chosen = RetryPolicies({}, default=policies) if isinstance(policies, Policy) else policies
    app.retries = Retries(chosen, publish_timeout, confirm, on_outcome)
    task = symbol_by_name(app.task_cls)
    if not issubclass(task, Task):
        # This package's class comes before the one that the application has.
        task = Task if issubclass(Task, task) else type(task.__name__, (Task, task), {"abstract": True})
    use_classes(
        app,
        amqp=f"{__package__}.producer:AMQP",
        task=task,
        event_dispatcher=f"{__package__}.celery_internals:EventDispatcher",
    )
    settings = {
        "worker_consumer": consumer,
        "worker_pool": f"{__package__}.celery_internals:TaskPool",
        # A message leaves the broker when its work is done, and not before.
        "task_acks_late": True,
        "task_acks_on_failure": True,
        # Requeueing would loop forever.
        "task_reject_on_worker_lost": False,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        # On a busy machine Celery's 4 s kill a process that is starting, and the message given to it spends a run.
        "worker_proc_alive_timeout": 60.0,
        # A closed channel concerns one queue, such as one whose node died: connect again instead of ending.
        "broker_channel_error_retry": True,
        # Threads that send while the broker takes nothing would wait for each other's connections without end.
        "broker_pool_acquire_timeout": publish_timeout,
        # A mistyped queue is an error at the call, and not a new queue without a consumer.
        "task_create_missing_queues": False,
    }

    def add(conf: Any) -> None:
        conf.add_defaults(settings)
        if not conf.task_queues:
            policies = app.retries.policies
            queues = policies.work_queues() or [policies.default.work_queue(conf.task_default_queue)]
            conf.add_defaults({"task_queues": queues})

    if app.configured:
        add(app.conf)
    # A later `config_from_object` starts again from nothing, and would drop what was added before.
    app.on_after_configure.connect(lambda source, **_: add(source), weak=False)


def broker_url(app: Any) -> str:
    """Return the URL of the broker that an application sends to, with all its nodes."""
    url = app.conf.broker_write_url or "amqp://"
    return url if isinstance(url, str) else ";".join(url)


def dead_sets(app: Any) -> DeadSets:
    """Return the dead sets of an application that called `install`."""
    url, retries = broker_url(app), app.retries
    return DeadSets(retries.policies, url, get_publisher(url, timeout=retries.publish_timeout))
