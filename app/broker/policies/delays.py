"""Delay queues, one for each duration, and durations: what the retry policies share."""

from __future__ import annotations

import math
from typing import Any, Literal

from kombu import Exchange, Queue

QueueType = Literal["quorum", "classic"]

#: Durations of a hop of a postponement, in ms. They double: there are few queues, and any wait takes few hops.
POSTPONE_LADDER_MS = (250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000, 256_000, 512_000)

#: The durations of a decade to which those of clients are rounded. Doublings of 1 (1, 2, 4, ...) are mostly exact.
_STEPS = (10, 13, 16, 20, 25, 32, 40, 50, 64, 80)

#: The argument that names where the broker sends expired and rejected messages.
DEAD_LETTER_EXCHANGE = "x-dead-letter-exchange"

#: The largest TTL that RabbitMQ accepts in all its versions, in ms.
MAX_TTL_MS = 2**31 - 1


def delay_name(namespace: str, delay_ms: int) -> str:
    """Return the name of the exchange and queue in which a message waits `delay_ms`."""
    return f"{namespace}.delay.{delay_ms}"


def delay_queue(namespace: str, delay_ms: int, *, back_to: str, queue_type: QueueType) -> Queue:
    """Return the queue that holds a message for `delay_ms`, then sends it to the exchange `back_to` with its own key.

    The duration is part of the name: a new value is a new queue, and the old one drains by itself. The exchange in
    front is a fanout, so that the message keeps its routing key. Raises ValueError for an invalid TTL.
    """
    if not 0 < delay_ms <= MAX_TTL_MS:
        raise ValueError(f"delay of {delay_ms} ms: expected 1 to {MAX_TTL_MS} ms")
    name = delay_name(namespace, delay_ms)
    arguments = {"x-message-ttl": delay_ms, DEAD_LETTER_EXCHANGE: back_to, **safe_arguments(queue_type)}
    return Queue(name, exchange=Exchange(name, type="fanout"), routing_key="", durable=True, queue_arguments=arguments)


def safe_arguments(queue_type: QueueType) -> dict[str, Any]:
    """Return the arguments under which a queue loses no message on the way to its dead-letter exchange.

    At-least-once dead-lettering needs a quorum queue and `reject-publish`.
    """
    if queue_type == "classic":
        return {}
    return {"x-queue-type": "quorum", "x-overflow": "reject-publish", "x-dead-letter-strategy": "at-least-once"}


def two_digits(delay_ms: int) -> int:
    """Round a duration up to two significant digits."""
    step = int(10 ** max(0, len(str(delay_ms)) - 2))
    return -(-delay_ms // step) * step


def rounded_up(delay_ms: int) -> int:
    """Round a duration up by at most 30 %, to one of ten a decade.

    This bounds the delay queues that clients make by the durations they choose: a delay queue is never deleted.
    """
    scale = int(10 ** max(0, len(str(delay_ms)) - 2))
    steps = (*range(1, 10), *_STEPS, 100) if scale == 1 else (*_STEPS, 100)
    longest = MAX_TTL_MS if delay_ms <= MAX_TTL_MS else delay_ms
    rounded: int = next(step * scale for step in steps if step * scale >= delay_ms)
    return min(rounded, longest)


def delay_for(seconds: float, *, exactly: bool) -> int:
    """Return the ms of the next hop: the whole wait if `exactly`, or else one rung of the ladder."""
    return min(max(1, round(seconds * 1_000)), MAX_TTL_MS) if exactly else ladder_rung(seconds)


def ladder_rung(seconds: float) -> int:
    """Return the longest rung in ms that is not longer than the wait, which is rounded up to whole shortest rungs.

    A hop that is some ms late leaves a wait just below a rung. Without rounding that wait would take several hops more,
    and end at the same time.
    """
    shortest = POSTPONE_LADDER_MS[0]
    wait_ms = max(1, math.ceil(seconds * 1_000 / shortest)) * shortest
    return max(rung for rung in POSTPONE_LADDER_MS if rung <= wait_ms)
