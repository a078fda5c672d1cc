"""Debounce timers: start_timer, reset_timer, tick."""

from __future__ import annotations

from typing import Any

from celery.utils.log import get_task_logger

from app.broker.errors import PublishFailed
from app.broker.worker.task import Task
from app.envelopes import queue_message
from app.timers.arguments import callback_of, full_pack, incremental_pack, timeout_of
from app.timers.timers import Callback, Timer
from config.routes import PACK
from tasks.base import DomainTask, domain_of, task
from tasks.context import context

logger = get_task_logger(__name__)


@task("start_timer", DomainTask)
def start_timer(**message: Any) -> None:
    """(Re)start a domain's clock; keys `timeout` (s), `callback_queue`, `callback_msg`. Default: a full pack."""
    domain = domain_of(message)
    timeout = timeout_of(message, default=context().settings.timer_timeout)
    callback = callback_of(message, domain) or full_pack(domain)
    context().timers.start(domain, timeout=timeout, callback=callback)


@task("reset_timer", DomainTask)
def reset_timer(**message: Any) -> None:
    """Set a domain's clock back to its stored timeout; no timer: start one, with the message's own callback if any."""
    domain = domain_of(message)
    timeout = timeout_of(message, default=context().settings.timer_timeout)
    callback = callback_of(message, domain) or incremental_pack(domain)
    context().timers.reset(domain, timeout=timeout, callback=callback)


@task("tick", Task)
def tick() -> None:
    """Fire the timers that are due: publish each callback confirmed, then forget the timer."""
    for timer in context().timers.claim_due():
        try:
            _fire(timer)
        except PublishFailed:
            raise
        except Exception:
            # It is due again when its claim ends; those behind it must not wait for it.
            logger.exception("%s: its timer cannot fire", timer.domain)


# Once a second: in Flower they would hide what happens to the pages.
tick.send_events = False


def _fire(timer: Timer) -> None:
    here = context()
    callback = timer.callback
    if here.frontier.outstanding(timer.domain):
        idle = here.frontier.progress(timer.domain).idle
        if idle < max(here.settings.timer_max_wait, timer.timeout):
            here.timers.rearm(timer)
            return
        callback = _after_max_wait(timer, idle)
    here.publisher.publish([queue_message(callback.queue, callback.message, here.budgets)])
    here.timers.forget(timer)


def _after_max_wait(timer: Timer, idle: float) -> Callback:
    """Return what to post for a domain with work that nobody does: lost, or buried by the broker itself.

    Where the work is another crawl's, the one that the timer is for is whole. The lost work is given up, so that it
    does not hold back the domain's next packs, too.
    """
    here, crawl_id = context(), str(timer.callback.message.get("crawl_id") or "")
    whole = bool(crawl_id) and not here.frontier.open_of(crawl_id)
    here.frontier.give_up(timer.domain)
    if whole:
        logger.warning("%s: work of other crawls is lost; packed after %.0f s", timer.domain, idle)
        return timer.callback
    logger.warning("%s: no page finished for %.0f s with work open: packed without deletions", timer.domain, idle)
    return Callback(PACK, {"type": "pack_incremental", "domain": timer.domain, "deletions": False})
