"""Install the retry policies in a Celery application with one call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .. import amqp_internals
from ..policies.registry import RetryPolicies
from .celery_internals import use_classes


@dataclass(frozen=True, slots=True)
class Retries:
    """What `install` leaves at `app.retries`.

    `publish_timeout` is in seconds; `confirm` says whether a client waits for the broker's confirm by default.
    """

    policies: RetryPolicies
    publish_timeout: float = 5.0
    confirm: bool = True


def install(
    app: Any,
    policies: RetryPolicies,
    *,
    publish_timeout: float = 5.0,
    confirm: bool = True,
    consumer: str = f"{__package__}.consumer:Consumer",
) -> None:
    """Let the policies decide on every failure in the workers of a Celery application.

    Call it when the application is created, before its tasks are. It replaces the base class of tasks, the consumer,
    and the sending of tasks and events. It also sets settings, which take precedence over those of the application.
    `consumer` names a subclass of this package's Consumer. With `confirm`, `delay()` of a client waits for the broker's
    confirm, unless the call says otherwise.
    """
    amqp_internals.install()
    app.retries = Retries(policies, publish_timeout, confirm)
    use_classes(
        app,
        amqp=f"{__package__}.producer:AMQP",
        task=f"{__package__}.task:Task",
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
    if app.configured:
        app.conf.add_defaults(settings)
    # A later `config_from_object` starts again from nothing, and would drop what was added before.
    app.on_after_configure.connect(lambda source, **_: source.add_defaults(settings), weak=False)
