"""One call hands a Celery application's failures over to the broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .. import amqp_internals
from ..policies.registry import Policies


@dataclass(frozen=True, slots=True)
class Retries:
    """What an application acts on failures with: the policies, the seconds to wait for a confirm, and whether a
    client waits for one where the call does not say.
    """

    policies: Policies
    publish_timeout: float = 5.0
    confirm: bool = True


def install(
    app: Any,
    policies: Policies,
    *,
    publish_timeout: float = 5.0,
    confirm: bool = True,
    consumer: str = f"{__package__}.consumer:Consumer",
) -> None:
    """Let the policies answer for every failure in the workers of a Celery application.

    Call it when the application is made, before its tasks are. It changes what Celery would acknowledge, requeue for
    ever or keep in a worker's memory: the base class of tasks, the consumer (`consumer` names a subclass of ours), the
    way to the broker (with `confirm`, a client's `delay()` waits for the broker unless the call says otherwise), and
    settings, which stand above those of the application.
    """
    amqp_internals.install()
    app.retries = Retries(policies, publish_timeout, confirm)
    app.amqp_cls = f"{__package__}.producer:AMQP"
    app.__dict__.pop("amqp", None)
    app.task_cls = f"{__package__}.task:Task"
    app.__dict__.pop("Task", None)
    settings = _settings(consumer)
    if app.configured:
        app.conf.add_defaults(settings)
    # A later `config_from_object` begins anew, and would leave nothing of what was added before.
    app.on_after_configure.connect(lambda source, **_: source.add_defaults(settings), weak=False)


def _settings(consumer: str) -> dict[str, Any]:
    return {
        "worker_consumer": consumer,
        "worker_pool": f"{__package__}.pool:TaskPool",
        # A message leaves the broker when its work is done, and not before.
        "task_acks_late": True,
        "task_acks_on_failure": True,
        # Requeueing would loop for ever.
        "task_reject_on_worker_lost": False,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        # A mistyped queue is an error at the call, never a new queue that nobody reads.
        "task_create_missing_queues": False,
    }
