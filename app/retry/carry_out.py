"""Carries a decision out: the one place that publishes a replacement. Acknowledging the original is the caller's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.amqp.delivery import Delivery
from app.amqp.publish import Outgoing, Publisher
from app.retry.policy import Dead, Decision, Drop, Postponed, Retry
from config.settings import Settings
from config.topology import DEAD, POSTPONE_LADDER_MS, dead_queue, delay_name, delay_queue


def carry_out(decision: Decision, delivery: Delivery, *, publisher: Publisher, settings: Settings) -> None:
    """Publish what the decision asks for, confirmed; raises PublishFailed, and then nothing may be acknowledged."""
    match decision:
        case Retry(delay_ms, headers):
            _wait(delivery, delay_ms, headers, publisher=publisher, settings=settings)
        case Postponed(delay_ms):
            _wait(delivery, delay_ms, {}, publisher=publisher, settings=settings)
        case Dead(headers):
            publisher.declare([dead_queue()])
            publisher.publish([replacement(delivery, exchange=DEAD, headers=headers)])
        case Drop():
            return


def replacement(delivery: Delivery, *, exchange: str, headers: Mapping[str, Any]) -> Outgoing:
    """Return the message again, body untouched, broker headers stripped.

    Its key is the name of the queue it was consumed from, which `site` binds: the key of a delivery through the
    default exchange means nothing to a delay queue's dead-letter exchange.
    """
    return Outgoing(
        exchange=exchange,
        routing_key=delivery.queue,
        body=delivery.body,
        headers=_celery_retries(delivery.own_headers() | dict(headers)),
        properties=delivery.kept_properties(),
        content_type=delivery.content_type,
        content_encoding=delivery.content_encoding,
    )


def on_ladder(seconds: float) -> int:
    """Return the longest rung in ms that is not longer than the wait, or the shortest rung."""
    wait_ms = seconds * 1_000
    return max((rung for rung in POSTPONE_LADDER_MS if rung <= wait_ms), default=POSTPONE_LADDER_MS[0])


def _wait(
    delivery: Delivery, delay_ms: int, headers: Mapping[str, Any], *, publisher: Publisher, settings: Settings
) -> None:
    publisher.declare([delay_queue(delay_ms, settings)])
    publisher.publish([replacement(delivery, exchange=delay_name(delay_ms), headers=headers)])


def _celery_retries(headers: dict[str, Any]) -> dict[str, Any]:
    """Keep Celery's own counter true where the message is Celery's."""
    if "task" in headers and "current-iteration" in headers:
        headers["retries"] = headers["current-iteration"]
    return headers
