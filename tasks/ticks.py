"""What each tick does, and what it publishes when that is due: tick, sweep, tidy."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from celery.utils.log import get_task_logger

from app.broker.connection import connection_to
from app.broker.worker.task import Task
from app.crawl.frontier.values import Admitted, Refill
from app.crawl.page import complete_lost
from app.crawl.record.crawls import read_crawl
from app.crawl.record.keys import CrawlRef
from app.crawl.urls import parse_message_domain
from app.messages.crawl_messages import page_messages
from app.messages.dead_sets import new_export
from app.messages.envelopes import queue_message, site_message
from app.sites.scheduler import START_LOST
from app.sites.sweep import Sweep
from app.storage.damage import isolated
from app.timers.stored import delete_stored_timers
from app.timers.timers import Timer
from config.routes import CRAWL, INDEX, PAGE
from tasks.base import context, is_due, task
from tasks.notify import publish_due_notifications
from tasks.site import publish_end
from tasks.traces import trace_of

logger = get_task_logger(__name__)

#: Seconds in which one tick fires timers; the next one goes on.
_FIRING = 1.0

#: Seconds without a finished page after which open messages of a crawl are published again. Only a broker
#: that lost what it confirmed makes this necessary.
STALLED = 3_600.0
#: Seconds between two looks for crawls that are due, and between two tidyings of dead sets, of all processes together.
_READ_SITES_EVERY = 5.0
_TIDY_EVERY = 300.0
#: Seconds between two sweeps of one domain.
_SWEEP_EVERY = 60.0
#: Scheduled crawls that one tick starts; the next look starts the others.
_MAX_STARTS = 100

#: Messages of a crawl that a log line names.
_SHOWN = 5

#: The log line of a crawl for which a tick failed.
_CANNOT_GO_ON = "%s: crawl %s cannot go on; next attempt at the next tick"

#: Times that the open messages of a crawl without progress are published again; then they count as lost.
_MAX_ROUNDS = 3


@task("tick", Task)
def tick() -> None:
    """Fire the timers that are due, and admit pages of crawls that have room: publish confirmed, then note it."""
    process = context()
    until = time.monotonic() + _FIRING
    while timers := process.timers.claim_due():
        _fire(timers)
        if time.monotonic() >= until:
            break
    for refill in process.frontier.refill(stalled=STALLED):
        with isolated(process.store, _CANNOT_GO_ON, refill.domain, refill.crawl_id), trace_of(refill.crawl_id):
            # Pages that it admits, its end, or the pages of one without progress again.
            if refill.admitted.urls:
                process.publisher.publish(
                    page_messages(refill.domain, refill.crawl_id, refill.admitted, process.budgets)
                )
                process.frontier.confirm_refill(refill)
            elif refill.ended:
                publish_end(refill.domain, refill.crawl_id)
            else:
                _republish_stalled(refill)
    _republish_after_restart()
    process.ticks.note()
    publish_due_notifications()
    publish_due_tidy()
    # Last: it reads the store, which may be slow or away.
    start_due_crawls()


# Events once a second would hide those of the pages in Flower.
tick.send_events = False


@task("sweep", Task)
def sweep(**message: Any) -> None:
    """Begin again what Redis lost of a domain, or of all: crawls, packs and timers."""
    domain = parse_message_domain(message) if message.get("domain") or message.get("url") else ""
    process = context()
    sweeper = Sweep(process.store, process.frontier, process.timers, process.recorder, process.settings.timer_timeout)
    for action in sweeper.run(domain):
        logger.warning("Sweep of %s", action)


@task("tidy", Task)
def tidy() -> None:
    """Export and drop the dead letters that the settings do not keep, as an act of the system."""
    # Imported here because every worker imports this module, and few need what operators do.
    from app.operations.context import OperatorContext
    from app.operations.letters import tidy_dead_sets
    from app.operations.operators import system_operator

    settings = context().settings
    export = new_export(settings)
    _, dropped = tidy_dead_sets(OperatorContext(settings, system_operator()), export)
    if dropped.done:
        logger.info("Dead letters exported to %s and dropped, by the settings: %d", export, len(dropped.done))
    if dropped.stopped:
        logger.warning("The retention of dead letters stopped: %s; next attempt in %d s", dropped.stopped, _TIDY_EVERY)


def publish_due_tidy() -> None:
    """Publish `tidy` once in five minutes of all processes, if the settings limit dead letters."""
    process = context()
    if process.settings.dead_max_letters and is_due("tidied", _TIDY_EVERY):
        process.publisher.publish([site_message("tidy", process.budgets)])


def _fire(timers: Sequence[Timer]) -> None:
    """Publish the callbacks of claimed timers together, and delete the timers whose callbacks are confirmed.

    Timers of domains with an unfinished crawl are put off, and one that cannot fire is due again when its claim
    expires. The message of a crawl belongs to the crawl's trace. Raises PublishFailed.
    """
    process = context()
    crawled = process.frontier.crawled([timer.domain for timer in timers])
    process.timers.rearm([timer for timer in timers if timer.domain in crawled])
    firing = process.timers.unchanged([timer for timer in timers if timer.domain not in crawled])
    messages = []
    for timer in firing:
        message = timer.callback.message
        with trace_of(str(message.get("crawl_id") or "")):
            messages.append(queue_message(timer.callback.queue, message, process.budgets))
    failures = process.publisher.publish_each(messages)
    fired = process.timers.remove([timer for number, timer in enumerate(firing) if number not in failures])
    if fired:
        delete_stored_timers(process.store, [timer.domain for timer in fired])
    for failure in failures.values():
        raise failure


def _republish_stalled(refill: Refill) -> None:
    """Publish the open messages of a crawl again: nothing was completed for long, and no message waits in a queue."""
    process = context()
    retried = process.frontier.last_attempt(refill.crawl_id, retry_ms=process.settings.retry_timeout_ms)
    if time.time() < retried + STALLED:
        return
    with connection_to(process.settings.broker) as connection:
        channel = connection.channel()
        # With a message in a queue of pages, no worker is free, or other messages are first.
        if any(channel.queue_declare(name, passive=True).message_count for name in (PAGE, INDEX, CRAWL)):
            return
    messages, rounds = process.frontier.begin_republishing(refill.crawl_id)
    if rounds > _MAX_ROUNDS:
        logger.error("%s: %d open messages of crawl %s are lost", refill.domain, len(messages), refill.crawl_id)
        complete_lost(process.frontier, refill.domain, refill.crawl_id, messages)
        return
    logger.warning(
        "%s: crawl %s made no progress for %.0f s and no message of it waits; %d open messages are published again: %s",
        *(refill.domain, refill.crawl_id, refill.idle, len(messages)),
        ", ".join(each.url for each in messages[:_SHOWN]),
    )
    process.publisher.publish(page_messages(refill.domain, refill.crawl_id, Admitted(messages), process.budgets))


def start_due_crawls() -> None:
    """Publish `index+crawl` for each site whose crawl is due, confirmed, then note it; one process at a time looks.

    After a crash between the two, the message is published again: it names the same crawl. An outage of the store
    ends the tick, and opens the store's circuit breaker.
    """
    process = context()
    if process.store_breaker.seconds_open() or not is_due("sites:read", _READ_SITES_EVERY):
        return
    now = datetime.now(UTC)
    for crawl in islice(process.scheduler.due(now), _MAX_STARTS):
        domain, former = crawl.site.domain, crawl.former
        with isolated(process.store, "%s: its crawl that is due cannot start", domain):
            # The message of its former start may still wait.
            is_starting = (
                former is not None
                and former.crawl_id
                and now - former.at < START_LOST
                and read_crawl(process.store, CrawlRef(domain, former.crawl_id)) is None
            )
            if is_starting or process.recorder.has_unfinished(domain):
                process.scheduler.postpone(crawl, now=now)
                continue
            logger.info("%s: its crawl %s was due at %s and starts", domain, crawl.crawl_id, crawl.due)
            named = {"url": crawl.site.seeds[0], "domain": domain, "crawl_id": crawl.crawl_id}
            process.publisher.publish([site_message("index+crawl", process.budgets, **named, scheduled=True)])
            process.scheduler.note_started(crawl, at=now)


def _republish_after_restart() -> None:
    """Publish what a Redis that was started again or emptied may lack, and sweeps of crawls that were restored.

    A Redis that was started again may lack its last writes: a page that was completed in them is open again, without a
    message.
    """
    process = context()
    if change := process.run_id.change():
        logger.warning("Redis is new or was started again: crawls, packs and timers are compared with the store")
        for each in process.frontier.active() if change == "restarted" else ():
            messages = process.frontier.forget_lost_requests(each.id)
            with trace_of(each.id):
                process.publisher.publish(page_messages(each.domain, each.id, Admitted(messages), process.budgets))
        process.publisher.publish([site_message("sweep", process.budgets)])
        process.run_id.note()
    for crawl_id in process.frontier.restored():
        crawl = process.frontier.crawl(crawl_id)
        if crawl is not None and is_due(f"swept:{crawl.domain}", _SWEEP_EVERY):
            process.publisher.publish([site_message("sweep", process.budgets, domain=crawl.domain)])
