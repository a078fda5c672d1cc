"""Retention of dead letters: tidy exports and drops those that the settings do not keep."""

from __future__ import annotations

from celery.utils.log import get_task_logger

from app.broker.worker.task import Task
from app.messages.dead_sets import new_export
from app.messages.envelopes import site_message
from app.redis_state.client import PREFIX
from tasks.base import context, task

logger = get_task_logger(__name__)

#: While Redis has this key, the retention is not due; and its seconds.
_TIDIED = f"{PREFIX}tidied"
TIDY_EVERY = 300


@task("tidy", Task)
def tidy() -> None:
    """Export and drop the dead letters that the settings do not keep, as an act of the system."""
    # Imported here because every worker imports this module, and few need what operators do.
    from app.operations.letters import tidy_dead_sets
    from app.operations.operations import Operations
    from app.operations.operators import system_operator

    settings = context().settings
    export = new_export(settings)
    _, dropped = tidy_dead_sets(Operations(settings, system_operator()), export)
    if dropped.done:
        logger.info("Dead letters exported to %s and dropped, by the settings: %d", export, len(dropped.done))
    if dropped.stopped:
        logger.warning("The retention of dead letters stopped: %s; next attempt in %d s", dropped.stopped, TIDY_EVERY)


def publish_due_tidy() -> None:
    """Publish `tidy` once in five minutes of all processes, if the settings limit dead letters."""
    process = context()
    if process.settings.dead_max_letters and process.redis.set(_TIDIED, 1, nx=True, ex=TIDY_EVERY):
        process.publisher.publish([site_message("tidy", process.budgets)])
