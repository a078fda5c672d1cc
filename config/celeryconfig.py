"""Celery's own settings, and why each differs from its default."""

from __future__ import annotations

from typing import Any

from config.routes import (
    INDEX,
    POLICY_OF_QUEUE,
    PREFETCH_MULTIPLIER,
    ROUTE_BY_TASK,
    ROUTE_BY_TYPE,
    ROUTES,
    SITE,
    SUBSCRIPTIONS,
)
from config.settings import get_settings

_settings = get_settings()

broker_url = _settings.broker
broker_connection_retry_on_startup = True
broker_connection_timeout = 5.0
# What a task did is in the store or in the next message; nothing waits for a result.
task_ignore_result = True

imports = (
    "tasks.site",
    "tasks.ticks",
    "tasks.timers",
    "tasks.pack",
    "tasks.coverart",
    "tasks.orchestrator",
    "tasks.notify",
)


def _route_by_exchange(name: str, _args: Any, _kwargs: Any, options: dict[str, Any], **_: Any) -> dict[str, str] | None:
    """Return the address of a task's message on the exchange `site`.

    Celery would use the default exchange, which reaches every queue: an account that may publish to it may control all
    workers.
    """
    if name not in ROUTE_BY_TASK:
        return None
    queue = str(getattr(options.get("queue"), "name", ROUTE_BY_TASK[name].queue))
    return {"queue": queue} | ({"exchange": SITE, "routing_key": queue} if queue in POLICY_OF_QUEUE else {})


_by_queue = {route.task: {"queue": route.queue} for route in (*ROUTES, *SUBSCRIPTIONS)}
task_routes = (_by_queue if _settings.declare_topology else _route_by_exchange,)
task_default_queue = INDEX
task_default_exchange = SITE

# app/broker/worker/install.py sets when messages are acknowledged.
# Quorum queues support prefetch per consumer only.
worker_prefetch_multiplier = PREFETCH_MULTIPLIER
worker_concurrency = _settings.worker_concurrency
worker_detect_quorum_queues = True

# JSON only: a pickle from the broker could run code in a worker.
task_serializer = result_serializer = event_serializer = "json"
accept_content = result_accept_content = ["json"]

beat_schedule = {
    # No `expires`: a worker compares it with its own clock, and one that is ahead would discard every tick. The TTL of
    # the queue measures the wait on the broker alone.
    "fire the timers that are due": {"task": ROUTE_BY_TYPE["tick"].task, "schedule": 1.0},
}
beat_scheduler = "app.broker.worker.celery_internals:BeatScheduler"
beat_schedule_filename = str(_settings.data_dir / "beat-schedule")
worker_send_task_events = True
worker_enable_remote_control = True
worker_hijack_root_logger = True
worker_redirect_stdouts = False
# On SIGQUIT running tasks get this many seconds; then their messages go back to their queues.
worker_soft_shutdown_timeout = 3.0
worker_enable_soft_shutdown_on_idle = False
enable_utc = True
