"""Every exchange, queue and binding as kombu objects, in reading order."""

from __future__ import annotations

from typing import Any

from kombu import Exchange, Queue, binding

from config.routes import ALIASES, INDEX, POLICY_OF_QUEUE, ROUTES, TICK
from config.settings import Settings, get_settings

#: Durations of a postponement, in ms. Few, so that their queues are few; doubling, so that any wait is a few hops.
POSTPONE_LADDER_MS = (250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000, 256_000, 512_000)

#: RabbitMQ keeps a TTL in 32 bits.
MAX_TTL_MS = 2**31 - 1

DEAD = "site.dead"

#: What failed for good, or could not be routed, rests here.
dead_exchange = Exchange(DEAD, type="fanout", durable=True)

#: Every message type and every queue name is a key; what has another key goes to the dead set, not to nowhere.
site_exchange = Exchange("site", type="direct", durable=True, arguments={"alternate-exchange": DEAD})

#: What happened, for whoever binds a queue: `update` says that a pack was written.
events_exchange = Exchange("perennial.events", type="topic", durable=True)


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


def work_queues(settings: Settings) -> list[Queue]:
    """Return the instant queues of the `site` group."""
    names = [name for name in dict.fromkeys(POLICY_OF_QUEUE) if name != TICK]
    # A tick that waited is worth nothing: its queue holds one, for a second, and buries none.
    tick = _work_queue(TICK, {"x-message-ttl": 1_000, "x-max-length": 1})
    return [*(_work_queue(name, _work_arguments(settings)) for name in names), tick]


def dead_queue() -> Queue:
    """Return the dead set: a classic queue, since looking into a quorum queue counts as a delivery."""
    return Queue(DEAD, exchange=dead_exchange, routing_key="", durable=True)


def delay_name(delay_ms: int) -> str:
    """Return the name of the exchange and queue in which a message waits `delay_ms`."""
    return f"site.delay.{delay_ms}"


def delay_queue(delay_ms: int, settings: Settings) -> Queue:
    """Return the queue that holds a message for `delay_ms` and gives it back to `site` with its routing key.

    The duration is part of the name: a new value is a new queue, and the old one drains by itself. The exchange in
    front is a fanout, so that the routing key of the work queue survives the wait.
    """
    if not 0 < delay_ms <= MAX_TTL_MS:
        raise ValueError(f"delay of {delay_ms} ms: expected 1 to {MAX_TTL_MS} ms")
    arguments: dict[str, Any] = {"x-message-ttl": delay_ms, "x-dead-letter-exchange": site_exchange.name}
    if settings.queue_type == "quorum":
        arguments |= {
            "x-queue-type": "quorum",
            "x-overflow": "reject-publish",
            "x-dead-letter-strategy": "at-least-once",
        }
    exchange = Exchange(delay_name(delay_ms), type="fanout", durable=True)
    return Queue(delay_name(delay_ms), exchange=exchange, routing_key="", durable=True, queue_arguments=arguments)


def few_digits(delay_ms: int) -> int:
    """Round a duration up to two significant digits.

    Durations that clients ask for are thereby capped in number (90 a decade), and so are the queues they make.
    """
    step = int(10 ** max(0, len(str(delay_ms)) - 2))
    return -(-delay_ms // step) * step


def retry_delays_ms(settings: Settings) -> list[int]:
    """Return the default delays of `delay_queues`: RETRY_TIMEOUT_MS doubled RETRY_MAX times, as they are waited."""
    return [few_digits(settings.retry_timeout_ms << iteration) for iteration in range(settings.retry_max)]


def all_queues(settings: Settings | None = None) -> list[Queue]:
    """Return every queue that `perennial topology apply` declares, work queues first."""
    settings = settings or get_settings()
    delays = sorted({*POSTPONE_LADDER_MS, *retry_delays_ms(settings)})
    return [*work_queues(settings), *(delay_queue(ms, settings) for ms in delays), dead_queue()]


#: The queue of a message that names none.
DEFAULT_QUEUE = INDEX
