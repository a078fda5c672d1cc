"""Debounce timers: start_timer and reset_timer."""

from __future__ import annotations

from typing import Any

from app.crawl.urls import parse_message_domain
from app.timers.stored import StoredTimer, store_timer
from app.timers.timers import callback_of, full_pack_callback, incremental_pack_callback, timeout_of
from tasks.base import DomainTask, context, task


@task("start_timer", DomainTask)
def start_timer(**message: Any) -> None:
    """Start a domain's timer, or start it again.

    Keys: `timeout` (s), `callback_queue`, `callback_msg`. The default callback is a full pack.
    """
    domain, process = parse_message_domain(message), context()
    timeout = timeout_of(message, default=process.settings.timer_timeout)
    given = callback_of(message, domain)
    if given is not None:
        store_timer(process.store, StoredTimer(domain, timeout, given))
    process.timers.start(domain, timeout=timeout, callback=given or full_pack_callback(domain))


@task("reset_timer", DomainTask)
def reset_timer(**message: Any) -> None:
    """Set a domain's timer back to its stored timeout; without one, start it with the message's callback."""
    domain, process = parse_message_domain(message), context()
    timeout = timeout_of(message, default=process.settings.timer_timeout)
    given = callback_of(message, domain)
    if given is not None and process.timers.running(domain) is None:
        store_timer(process.store, StoredTimer(domain, timeout, given))
    process.timers.reset(domain, timeout=timeout, callback=given or incremental_pack_callback(domain))
