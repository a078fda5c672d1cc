"""Exchanges, work queues and their bindings as kombu objects; where failures wait and end, app/retry says."""

from __future__ import annotations

from typing import Any

from kombu import Exchange, Queue, binding

from config.routes import (
    ALIASES,
    ORCHESTRATOR,
    POLICY_OF_QUEUE,
    REGISTER_AGAIN,
    REQUEST_TYPES,
    REQUESTS,
    ROUTES,
    SITE,
    SUBSCRIPTIONS,
    TICK,
    art_routes,
    searcher_queue_name,
)
from config.settings import Settings

#: Where what failed for good, or could not be routed, goes: an exchange and the queue in which it rests.
DEAD = "site.dead"

#: Every message type and every queue name is a key; what has another key goes to the dead set, not to nowhere.
site_exchange = Exchange(SITE, type="direct", durable=True, arguments={"alternate-exchange": DEAD})

#: What happened, for whoever binds a queue: `update` says that a pack was written.
events_exchange = Exchange("perennial.events", type="topic", durable=True)

#: What somebody wants an answer to, by its type.
requests_exchange = Exchange("perennial.requests", type="direct", durable=True)

#: Milliseconds that a request waits to be taken; by then nobody waits for its answer.
REQUEST_TTL_MS = 10_000
#: Milliseconds that the queue of a searcher stays where none ever consumed from it.
SEARCHER_EXPIRES_MS = 60_000


def _work_queue(name: str, arguments: dict[str, Any]) -> Queue:
    """Return a queue of `site`, bound by its own name, by the types it serves and by the document's names for it."""
    keys = [name, *(route.type for route in ROUTES if route.queue == name)]
    keys += [alias for alias, target in ALIASES.items() if target == name]
    bindings = [binding(site_exchange, routing_key=key) for key in keys]
    # Celery adds a binding of its own, by `routing_key`; an empty one it would fill with that of its default queue.
    return Queue(name, routing_key=name, bindings=bindings, queue_arguments=arguments, durable=True)


def _work_arguments(settings: Settings) -> dict[str, Any]:
    """Return the arguments of an instant queue.

    A worker that dies under a message again and again is counted by the broker (`x-delivery-limit`), and the message
    goes to the dead set: RabbitMQ 4 would drop it after 20 deliveries, RabbitMQ 3 never.
    """
    arguments = {"x-dead-letter-exchange": DEAD}
    if settings.queue_type == "classic":
        return arguments
    return arguments | {
        "x-queue-type": "quorum",
        "x-delivery-limit": settings.delivery_limit,
        "x-overflow": "reject-publish",
        "x-dead-letter-strategy": "at-least-once",
    }


#: Arguments of a quorum queue that loses nothing.
_SAFE = ("x-queue-type", "x-overflow", "x-dead-letter-strategy")


def work_queues(settings: Settings) -> list[Queue]:
    """Return the instant queues of the `site` group."""
    names = [name for name in dict.fromkeys(POLICY_OF_QUEUE) if name != TICK]
    # A tick that waited is worth nothing: its queue holds one, for a second, and buries none.
    tick = _work_queue(TICK, {"x-message-ttl": 1_000, "x-max-length": 1})
    return [*(_work_queue(name, _work_arguments(settings)) for name in names), tick]


def art_queues(exchange: str) -> list[Queue]:
    """Return the work queues of an art archive: direct, durable and without arguments, as MusicBrainz has them."""
    direct = Exchange(exchange, type="direct", durable=True)
    return [Queue(route.queue, exchange=direct, routing_key=route.type, durable=True) for route in art_routes(exchange)]


def subscriber_queue(name: str, settings: Settings) -> Queue:
    """Return the queue of an event subscriber, bound to what it is subscribed to.

    Its arguments are those that the policy `x_death` asks for; a test holds the two together.
    """
    arguments: dict[str, Any] = {"x-dead-letter-exchange": f"{name}.retry"}
    if settings.queue_type == "quorum":
        # No limit that a message reaches: the policy counts, and buries.
        limit = {"x-delivery-limit": 2**31 - 1}
        arguments |= limit | {key: value for key, value in _work_arguments(settings).items() if key in _SAFE}
    keys = [route.type for route in SUBSCRIPTIONS if route.queue == name]
    bindings = [binding(events_exchange, routing_key=key) for key in keys]
    # What failed comes back by it, as the AMQP clients document has it.
    bindings.append(binding(Exchange(f"{name}.retry-requeue", type="fanout", durable=True), routing_key="#"))
    return Queue(name, routing_key=name, bindings=bindings, queue_arguments=arguments, durable=True)


def request_queue() -> Queue:
    """Return the queue of requests: in memory as far as the broker can, and of what is late nothing is kept."""
    bindings = [binding(requests_exchange, routing_key=key) for key in REQUEST_TYPES]
    arguments = {"x-message-ttl": REQUEST_TTL_MS}
    return Queue(REQUESTS, routing_key=REQUESTS, bindings=bindings, queue_arguments=arguments, durable=True)


def searcher_queue(searcher_id: str) -> Queue:
    """Return the queue of one searcher, which goes with it: what is sent there afterwards is returned at once."""
    name = searcher_queue_name(searcher_id)
    return Queue(
        name,
        routing_key=name,
        bindings=[binding(events_exchange, routing_key=REGISTER_AGAIN)],
        queue_arguments={"x-expires": SEARCHER_EXPIRES_MS},
        durable=True,
        auto_delete=True,
        # What is not answered goes with the queue in any case: an acknowledgement would only cost.
        no_ack=True,
    )


def orchestrator_queues(settings: Settings) -> list[Queue]:
    """Return the orchestrator's queues."""
    return [subscriber_queue(ORCHESTRATOR, settings), request_queue()]


def task_queues(settings: Settings) -> list[Queue]:
    """Return every queue that workers consume from, but for those of searchers."""
    art = (queue for exchange in settings.art_exchanges for queue in art_queues(exchange))
    return [*work_queues(settings), *orchestrator_queues(settings), *art]
