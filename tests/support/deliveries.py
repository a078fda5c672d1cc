"""Deliveries and failures to ask policies about, and a small model of what the broker does with their answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from app.broker.delivery import Delivery, own_headers
from app.broker.failure import Failure
from app.broker.policies.base import Dead, Drop, Policy, Postponed, Reject, Retry

FAILURE = Failure(reason="exception", exception="KeyError", message="boom", at=1_000.0, worker="w")


def delivery(queue: str = "site.index", *, body: bytes = b"{}", routing_key: str = "", **headers: Any) -> Delivery:
    """Return a delivery from a queue with these headers."""
    return Delivery(
        body=body,
        headers=headers,
        properties={},
        content_type=None,
        content_encoding=None,
        queue=queue,
        routing_key=routing_key,
    )


@dataclass(slots=True)
class Life:
    """What a message went through: runs, delays between them in ms, whether it died, its headers at the end."""

    runs: int = 0
    delays: list[int] = field(default_factory=list)
    died: bool = False
    headers: dict[str, Any] = field(default_factory=dict)


def live(policy: Policy, outcomes: Sequence[bool | None], came: Delivery, failure: Failure = FAILURE) -> Life:
    """Run a message to its end: True succeeds, False fails, None is a postponement."""
    life = Life(headers=dict(came.headers))
    for outcome in outcomes:
        life.runs += outcome is not None
        if outcome:
            return life
        now = replace(came, headers=life.headers)
        decision = policy.postpone(now, 1.0) if outcome is None else policy.decide(now, failure)
        match decision:
            case Retry(delay_ms=delay_ms, headers=added):
                life.delays.append(delay_ms)
                life.headers = own_headers(now.headers) | dict(added)
            case Postponed(headers=added):
                life.headers = own_headers(now.headers) | dict(added)
            case Reject(delay_ms=delay_ms):
                life.delays.append(delay_ms)
                life.headers = life.headers | {"x-death": _rejected(life.headers.get("x-death", []), came.queue)}
            case Dead(headers=added):
                life.died, life.headers = True, own_headers(now.headers) | dict(added)
                return life
            case Drop():
                return life
    raise AssertionError(f"neither done nor dead after {len(outcomes)} runs")


def _rejected(deaths: list[dict[str, Any]], queue: str) -> list[dict[str, Any]]:
    """Count as RabbitMQ does: one entry for each queue and reason, however often."""
    count = next((each["count"] for each in deaths if each["reason"] == "rejected"), 0)
    return [
        {"queue": f"{queue}.retry", "reason": "expired", "count": count + 1},
        {"queue": queue, "reason": "rejected", "count": count + 1},
    ]
