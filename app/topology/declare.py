"""All that stands on our broker: the queues and exchanges of config, and what their retry policies wait and end in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from amqp.exceptions import PreconditionFailed
from kombu import Queue

from app.broker.errors import TopologyDiffers
from app.broker.policies.base import Policy
from app.broker.policies.delay_queues import DelayQueues, budget_of
from app.broker.policies.drop import DropAll
from app.broker.policies.fixed_ttl import FixedTtl
from app.broker.policies.registry import Policies
from app.broker.policies.waiting import delay_queue
from app.broker.policies.x_death import XDeath
from app.envelopes import Budgets
from app.topology.queues import events_exchange, requests_exchange, site_exchange, task_queues
from config.routes import REQUESTS, ROUTES, SITE, SUBSCRIPTIONS, Route, art_routes
from config.settings import Settings

#: How a policy that config/routes.py names is made.
_MAKERS: dict[str, Callable[[Settings, Route | None], Policy]] = {
    "delay_queues": lambda settings, route: site_policy(settings, route),
    "drop": lambda _settings, _route: DropAll(),
}


def policies(settings: Settings) -> Policies:
    """Return the retry policies of our queues, as config/routes.py names them."""
    by_queue = {route.queue: _MAKERS[route.policy](settings, None) for route in ROUTES}
    by_queue |= {route.queue: subscriber_policy(route.queue, settings) for route in SUBSCRIPTIONS}
    by_queue |= {route.queue: art_policy(exchange, settings) for exchange, route in _art(settings)}
    by_queue[REQUESTS] = DropAll()
    by_task = {(route.queue, route.task): _MAKERS[route.policy](settings, route) for route in ROUTES}
    return Policies(by_queue, site_policy(settings, None), by_task)


def budgets(settings: Settings) -> Budgets:
    """Return the headers by which its retry policy travels with a new message, by the message's type."""
    ours = policies(settings)
    return {route.type: budget_of(ours.policy_for(route.queue, route.task)) for route in ROUTES}


def all_queues(settings: Settings) -> list[Queue]:
    """Return every queue that `perennial topology apply` declares: work queues first, dead sets last."""
    ours = policies(settings)
    work, ends = task_queues(settings), ours.dead_sets()
    there = {queue.name for queue in work} | set(ends)
    waiting = [queue for queue in ours.queues() if queue.name not in there]
    waiting += coalescing_queues(settings)
    return [*work, *waiting, *(policy.dead for policy in ends.values() if policy.dead is not None)]


def base_queues(settings: Settings) -> list[Queue]:
    """Return what a client needs: the dead sets and the work queues.

    The dead sets come first: a dead-letter target that is not there loses messages silently.
    """
    ends = (policy.dead for policy in policies(settings).dead_sets().values())
    return [*(dead for dead in ends if dead is not None), *task_queues(settings)]


def declare_base(channel: Any, settings: Settings) -> None:
    """Declare the work queues, the dead sets and the exchanges of events and requests: what a client needs."""
    events_exchange(channel).declare()
    requests_exchange(channel).declare()
    _declare(channel, base_queues(settings))


def declare_all(channel: Any, settings: Settings) -> int:
    """Declare everything, the usual delay queues included; return the number of queues."""
    declare_base(channel, settings)
    queues, there = all_queues(settings), {queue.name for queue in base_queues(settings)}
    _declare(channel, (queue for queue in queues if queue.name not in there))
    return len(queues)


def declare_for_process(channel: Any, settings: Settings) -> None:
    """Declare everything; raises TopologyDiffers, which ends the process, where a queue has other arguments."""
    try:
        declare_all(channel, settings)
    except PreconditionFailed as error:
        raise TopologyDiffers(f"{error.reply_text}; perennial topology check says what to do") from error


def _declare(channel: Any, queues: Iterable[Queue]) -> None:
    for queue in queues:
        queue(channel).declare()


def art_policy(exchange: str, settings: Settings) -> FixedTtl:
    """Return the policy of an art archive, under whose queues the document's own stand."""
    return FixedTtl(
        exchange,
        {route.queue: route.type for route in art_routes(exchange)},
        ttl_ms=settings.art_retry_ms,
        retry_max=settings.art_retry_max,
        fail_fast=settings.art_fail_fast,
        postpone_type=settings.queue_type,
    )


def coalescing_queues(settings: Settings) -> list[Queue]:
    """Return the queues in which equal messages of each archive are gathered."""
    delay_ms = round(settings.art_window * 1_000)
    if not delay_ms:
        return []
    return [
        delay_queue(exchange, delay_ms, back_to=exchange, queue_type=settings.queue_type)
        for exchange in settings.art_exchanges
    ]


def subscriber_policy(queue: str, settings: Settings) -> XDeath:
    """Return the policy of an event subscriber's queue."""
    return XDeath(
        queue,
        retry_after_ms=settings.event_retry_ms,
        retry_max=settings.retry_max,
        queue_type=settings.queue_type,
        delivery_limit=settings.delivery_limit,
    )


def _art(settings: Settings) -> Iterator[tuple[str, Route]]:
    """Yield exchange and route of every art job that is served."""
    for exchange in settings.art_exchanges:
        for route in art_routes(exchange):
            yield exchange, route


def site_policy(settings: Settings, route: Route | None = None) -> DelayQueues:
    """Return the policy of `site`; a route may have numbers of its own."""
    timeout_ms = route.retry_timeout_ms if route else None
    retry_max = route.retry_max if route else None
    return DelayQueues(
        SITE,
        timeout_ms=settings.retry_timeout_ms if timeout_ms is None else timeout_ms,
        retry_max=settings.retry_max if retry_max is None else retry_max,
        exchange=site_exchange.name,
        queue_type=settings.queue_type,
        delivery_limit=settings.delivery_limit,
    )
