"""Debounce timers: start_timer, reset_timer, tick."""

from __future__ import annotations

from typing import Any

from celery.utils.log import get_task_logger

from app.broker.errors import PublishFailed
from app.broker.worker.task import Task
from app.envelopes import queue_message
from app.timers.timers import Timer, callback_of, decide_firing, full_pack, incremental_pack, timeout_of
from tasks.base import DomainTask, context, domain_of, task

logger = get_task_logger(__name__)


@task("start_timer", DomainTask)
def start_timer(**message: Any) -> None:
    """Start a domain's timer, or start it again.

    Keys: `timeout` (s), `callback_queue`, `callback_msg`. The default callback is a full pack.
    """
    domain = domain_of(message)
    timeout = timeout_of(message, default=context().settings.timer_timeout)
    callback = callback_of(message, domain) or full_pack(domain)
    context().timers.start(domain, timeout=timeout, callback=callback)


@task("reset_timer", DomainTask)
def reset_timer(**message: Any) -> None:
    """Set a domain's timer back to its stored timeout; without one, start it with the message's callback."""
    domain = domain_of(message)
    timeout = timeout_of(message, default=context().settings.timer_timeout)
    callback = callback_of(message, domain) or incremental_pack(domain)
    context().timers.reset(domain, timeout=timeout, callback=callback)


@task("tick", Task)
def tick() -> None:
    """Fire the timers that are due: publish each callback confirmed, then delete the timer."""
    for timer in context().timers.claim_due():
        try:
            _fire(timer)
        except PublishFailed:
            raise
        except Exception:
            # The next timers must not wait for this one, which is due again when its claim expires.
            logger.exception("%s: the timer cannot fire; next attempt when its claim expires", timer.domain)
    context().ticks.note()


# Events once a second would hide those of the pages in Flower.
tick.send_events = False


def _fire(timer: Timer) -> None:
    process = context()
    firing = decide_firing(
        timer,
        open_messages=process.frontier.open_messages(timer.domain),
        open_in_own_crawl=process.frontier.open_messages_of(str(timer.callback.message.get("crawl_id") or "")),
        idle=process.frontier.progress(timer.domain).idle,
        max_wait=process.settings.timer_max_wait,
    )
    if firing.callback is None:
        process.timers.rearm(timer)
        return
    process.publisher.publish([queue_message(firing.callback.queue, firing.callback.message, process.budgets)])
    if firing.lost:
        logger.warning("%s: its timer fires in spite of open messages: %s", timer.domain, firing.lost)
        process.frontier.forget_open_messages(timer.domain)
    process.timers.remove(timer)
