"""What a dead message tells of its death, and what it leaves behind when it is replayed."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from .delivery import BROKER_HEADERS, Delivery
from .policies.base import MAX_MESSAGE, MAX_TRACEBACK, Budget, Failure

#: Every header of ours begins with this.
OURS = "perennial-"

DEAD_ID = "perennial-dead-id"
REASON = "perennial-reason"
QUEUE = "perennial-queue"
TASK = "perennial-task"
EXCEPTION = "perennial-exception"
MESSAGE = "perennial-message"
TRACEBACK = "perennial-traceback"
WORKER = "perennial-worker"
FIRST_FAILED = "perennial-first-failed-at"
FAILED = "perennial-failed-at"
LAST_ERROR = "perennial-last-error"
ATTEMPTS = "perennial-attempts"

#: Marks a replayed message, with its budget: one that keeps it dies at its next failure.
REPLAY = "perennial-replay"

#: Dead ids of its former lives, the last one first.
REPLAY_HISTORY = "perennial-replay-of"
MAX_REPLAY_HISTORY = 20

#: The queue that is told how a replayed message's next run ended.
OUTCOME_TO = "perennial-outcome-to"

#: Celery's header that says when a message is of no more use.
EXPIRES = "expires"

#: Far above any duration in ms and any count, and with room below the 64 bits of a header.
MAX_NUMBER = 2**40


def dead_letter_headers(delivery: Delivery, failure: Failure, *, attempts: int) -> dict[str, Any]:
    """Return the headers of a death: identity, reason, exception, bounded traceback, times (epoch seconds), worker."""
    return {
        DEAD_ID: str(uuid.uuid4()),
        REASON: failure.reason,
        QUEUE: delivery.queue,
        TASK: failure.task,
        EXCEPTION: failure.exception,
        MESSAGE: failure.message[:MAX_MESSAGE],
        TRACEBACK: failure.traceback[-MAX_TRACEBACK:],
        FIRST_FAILED: delivery.headers.get(FIRST_FAILED, failure.at),
        FAILED: failure.at,
        ATTEMPTS: attempts,
        WORKER: failure.worker,
    }


def failure_headers(delivery: Delivery, failure: Failure) -> dict[str, Any]:
    """Return what a message that will be retried tells of its failures so far."""
    return {FIRST_FAILED: delivery.headers.get(FIRST_FAILED, failure.at), LAST_ERROR: str(failure)[:MAX_MESSAGE]}


def headers_for_replay(headers: Mapping[str, Any], budget: Budget) -> dict[str, Any]:
    """Return the headers of a dead message without its death, marked as a replay, its former lives counted.

    Celery's `expires` stays behind, too: a worker would throw away what somebody replays after that time.
    """
    left = (OURS, *BROKER_HEADERS)
    lived = {name: value for name, value in headers.items() if not name.startswith(left) and name != EXPIRES}
    return lived | {REPLAY: budget, REPLAY_HISTORY: replay_history(headers)}


def replay_history(headers: Mapping[str, Any]) -> list[str]:
    """Return the dead ids of a message, this death's first; at most MAX_LINEAGE."""
    before = headers.get(REPLAY_HISTORY)
    former = [str(each) for each in before] if isinstance(before, list) else []
    return [str(headers.get(DEAD_ID, "")), *former][:MAX_REPLAY_HISTORY]


def keeps_budget(delivery: Delivery) -> bool:
    """Return whether this is a replay that may not be retried again."""
    return delivery.headers.get(REPLAY) == "keep"


def whole_number(headers: Mapping[str, Any], name: str, *, default: int, most: int = MAX_NUMBER) -> int:
    """Read a header that foreign producers write as int or text; what is no natural number counts as absent.

    So does one above `most`, which could not be written into a header again, or would keep a message for ever.
    """
    number = integer(headers.get(name))
    return default if number is None or not 0 <= number <= most else number


def integer(value: Any) -> int | None:
    """Return a header's value as a whole number, or None for what is none."""
    if isinstance(value, bool):
        return None
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return None
