"""The retry policy of each queue, made from config/routes.py and the settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.broker.errors import InvalidMessage
from app.broker.policies.base import Policy, RetryPolicies
from app.broker.policies.delay_queues import DelayQueues
from app.broker.policies.drop import DropAll
from app.broker.policies.fixed_ttl import FixedTtl
from app.broker.policies.x_death import NO_LIMIT, XDeath
from app.errors import ImageInUse
from config.routes import REQUESTS, ROUTES, SITE, SUBSCRIPTIONS, Route, art_routes
from config.settings import Settings

#: Headers that carry the retry policy of a new message, by message type.
Budgets = Mapping[str, Mapping[str, Any]]

#: Milliseconds that a tick waits in its queue, and a request. Afterwards a tick is obsolete, and the client no
#: longer waits for the reply.
TICK_TTL_MS, REQUEST_TTL_MS = 1_000, 10_000


#: Deliveries of a message to crashing workers before the broker dead-letters it: an argument of the queues.
DELIVERY_LIMIT = 50
#: Milliseconds that a failed event of the search cluster waits: the TTL of the retry queue of each subscriber.
EVENT_RETRY_MS = 5_000


def retry_policies(settings: Settings) -> RetryPolicies:
    """Return the retry policies of all queues that workers consume from."""
    by_queue = {route.queue: route_policy(settings, route) for route in ROUTES}
    by_queue |= {route.queue: subscriber_policy(route.queue, settings) for route in SUBSCRIPTIONS}
    for exchange in settings.art_exchanges:
        by_queue |= {route.queue: art_policy(exchange, settings) for route in art_routes(exchange)}
    by_queue |= dict.fromkeys(settings.receivers, notification_policy(settings))
    by_queue[REQUESTS] = request_policy(settings)
    return RetryPolicies(by_queue, site_policy(settings))


def budgets(settings: Settings) -> Budgets:
    """Return the headers that carry the retry policy of a new message of `site`, by message type."""
    return {route.type: route_policy(settings, route).budget_headers() for route in ROUTES}


def route_policy(settings: Settings, route: Route) -> Policy:
    """Return the policy of a route of `site`."""
    return tick_policy(settings) if route.policy == DropAll.name else site_policy(settings)


def tick_policy(settings: Settings) -> DropAll:
    """Return the policy of ticks: their queue holds one message. It is replicated, or packing would wait for a node."""
    return DropAll(message_ttl_ms=TICK_TTL_MS, max_length=1, queue_type=settings.queue_type)


def request_policy(settings: Settings) -> DropAll:
    """Return the policy of requests. Their queue is replicated, or searching would wait for a node."""
    return DropAll(message_ttl_ms=REQUEST_TTL_MS, queue_type=settings.queue_type)


def site_policy(settings: Settings) -> DelayQueues:
    """Return the policy of `site`."""
    return DelayQueues(
        SITE,
        timeout_ms=settings.retry_timeout_ms,
        retry_max=settings.retry_max,
        exchange=SITE,
        queue_type=settings.queue_type,
        delivery_limit=DELIVERY_LIMIT,
    )


def subscriber_policy(queue: str, settings: Settings) -> XDeath:
    """Return the policy of an event subscriber's queue."""
    return XDeath(
        queue,
        retry_after_ms=EVENT_RETRY_MS,
        retry_max=settings.retry_max,
        queue_type=settings.queue_type,
        delivery_limit=DELIVERY_LIMIT,
    )


def notification_policy(settings: Settings) -> DelayQueues:
    """Return the policy of events that wait for a receiver: that of `site`, without a delivery limit.

    Each failed attempt puts the event back, which counts as a delivery. It may wait for days.
    """
    return replace(site_policy(settings), delivery_limit=NO_LIMIT)


def art_policy(exchange: str, settings: Settings) -> FixedTtl:
    """Return the policy of an art archive, whose queues the Cover Art Archive's document specifies."""
    return FixedTtl(
        exchange,
        {route.queue: route.type for route in art_routes(exchange)},
        ttl_ms=settings.art_retry_ms,
        retry_max=settings.art_retry_max,
        postpone_type=settings.queue_type,
        delivery_limit=DELIVERY_LIMIT,
        fatal=frozenset({InvalidMessage.reason, ImageInUse.reason}),
    )
