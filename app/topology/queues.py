"""Exchanges, work queues and their bindings as kombu objects. The retry policies give every argument of a queue."""

from __future__ import annotations

from collections.abc import Iterable

from kombu import Exchange, Queue, binding

from app.broker.policies.base import Policy
from app.topology.retry_policies import (
    art_policy,
    notification_policy,
    request_policy,
    site_policy,
    subscriber_policy,
    tick_policy,
)
from config.routes import (
    ALIASES,
    HEARTBEAT,
    ORCHESTRATOR,
    POLICY_OF_QUEUE,
    REGISTER_AGAIN,
    REQUEST_TYPES,
    REQUESTS,
    ROUTES,
    SEARCHER_QUEUE,
    SITE,
    SUBSCRIPTIONS,
    TICK,
)
from config.settings import Settings

#: The dead set: an exchange and its queue, for messages whose budget is spent and for unroutable ones.
DEAD_SET = "site.dead"

#: Bound by every message type and every queue name. A message with another key is unroutable.
site_exchange = Exchange(SITE, type="direct", durable=True, arguments={"alternate-exchange": DEAD_SET})

#: Events by their type, for every subscriber that binds a queue: `update` announces a new pack.
events_exchange = Exchange("perennial.events", type="topic", durable=True)

#: Requests by their type. Each gets a reply.
requests_exchange = Exchange("perennial.requests", type="direct", durable=True)

#: Queries of clients, by the name of a searcher's queue. Its own exchange, so that the account of a client needs no
#: permission for the default exchange, which reaches every queue.
queries_exchange = Exchange("perennial.queries", type="direct", durable=True)

#: Milliseconds after which the broker deletes the queue of a searcher that has never had a consumer.
SEARCHER_EXPIRES_MS = 60_000


def _site_queue(name: str, policy: Policy) -> Queue:
    """Return a queue of `site`, bound by its own name, by its message types and by the reference document's names."""
    keys = [name, *(route.type for route in ROUTES if route.queue == name)]
    keys += [alias for alias, target in ALIASES.items() if target == name]
    bindings = [binding(site_exchange, routing_key=key) for key in keys]
    return _queue(name, policy, bindings)


def _queue(name: str, policy: Policy, bindings: Iterable[binding]) -> Queue:
    """Return a queue with the arguments of its policy."""
    # Celery adds a binding by `routing_key`, and replaces an empty key with that of its default queue.
    arguments = dict(policy.work_arguments())
    return Queue(name, routing_key=name, bindings=bindings, queue_arguments=arguments, durable=True)


def work_queues(settings: Settings) -> list[Queue]:
    """Return the work queues of the `site` group."""
    names = [name for name in dict.fromkeys(POLICY_OF_QUEUE) if name != TICK]
    policy = site_policy(settings)
    return [*(_site_queue(name, policy) for name in names), _site_queue(TICK, tick_policy(settings))]


def art_queues(exchange: str, settings: Settings) -> list[Queue]:
    """Return the work queues of an art archive: direct, durable and without arguments, as MusicBrainz declares them."""
    policy = art_policy(exchange, settings)
    return [policy.work_queue(queue) for queue in policy.keys]


def subscriber_queue(name: str, settings: Settings) -> Queue:
    """Return the queue of an event subscriber, bound to its events and to the exchange of its retried messages."""
    policy = subscriber_policy(name, settings)
    bindings = [binding(events_exchange, routing_key=route.type) for route in SUBSCRIPTIONS if route.queue == name]
    return _queue(name, policy, [*bindings, *policy.client.bindings])


def request_queue(settings: Settings) -> Queue:
    """Return the queue of requests and heartbeats; late ones expire in it."""
    bindings = [binding(requests_exchange, routing_key=key) for key in REQUEST_TYPES]
    bindings.append(binding(events_exchange, routing_key=HEARTBEAT))
    return _queue(REQUESTS, request_policy(settings), bindings)


def searcher_queue(searcher_id: str) -> Queue:
    """Return the queue of one searcher. It is deleted with its consumer: later requests are returned as unroutable.

    It is transient: it is also deleted with its node, and the searcher declares it again on another one. The exchanges
    are declared before, since a searcher's account may not.
    """
    name = SEARCHER_QUEUE.format(searcher_id)
    events, queries = (
        Exchange(each.name, type=each.type, durable=True, no_declare=True)
        for each in (events_exchange, queries_exchange)
    )
    return Queue(
        name,
        routing_key=name,
        bindings=[binding(events, routing_key=REGISTER_AGAIN), binding(queries, routing_key=name)],
        queue_arguments={"x-expires": SEARCHER_EXPIRES_MS},
        durable=False,
        auto_delete=True,
        # Unanswered requests are deleted with the queue anyway, so acknowledgements would have no effect.
        no_ack=True,
    )


def notification_queues(settings: Settings) -> list[Queue]:
    """Return the queue of each receiver, bound to the events that it gets, and to `site` by its name for replays."""
    keys = ("crawl.*", "pack.*", "site.*", "dead_set.*", "doctor.*")
    events = [binding(events_exchange, routing_key=key) for key in keys]
    policy = notification_policy(settings)
    return [_queue(name, policy, [*events, binding(site_exchange, routing_key=name)]) for name in settings.receivers]


def orchestrator_queues(settings: Settings) -> list[Queue]:
    """Return the orchestrator's queues."""
    return [subscriber_queue(ORCHESTRATOR, settings), request_queue(settings)]


def task_queues(settings: Settings) -> list[Queue]:
    """Return every queue that workers consume from."""
    art = (queue for exchange in settings.art_exchanges for queue in art_queues(exchange, settings))
    return [*work_queues(settings), *orchestrator_queues(settings), *art]
