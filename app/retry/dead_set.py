"""What a dead message tells of its death."""

from __future__ import annotations

import uuid
from typing import Any

from app.amqp.delivery import Delivery
from app.retry.policy import MAX_MESSAGE, MAX_TRACEBACK, Failure

DEAD_ID = "perennial-dead-id"
REASON = "perennial-reason"
QUEUE = "perennial-queue"


def death_headers(delivery: Delivery, failure: Failure, *, attempts: int) -> dict[str, Any]:
    """Return the headers of a death: identity, reason, exception, bounded traceback, times (epoch seconds), worker."""
    return {
        DEAD_ID: str(uuid.uuid4()),
        REASON: failure.reason,
        QUEUE: delivery.queue,
        "perennial-exception": failure.exception,
        "perennial-message": failure.message[:MAX_MESSAGE],
        "perennial-traceback": failure.traceback[-MAX_TRACEBACK:],
        "perennial-first-failed-at": delivery.headers.get("perennial-first-failed-at", failure.at),
        "perennial-failed-at": failure.at,
        "perennial-attempts": attempts,
        "perennial-worker": failure.worker,
    }
