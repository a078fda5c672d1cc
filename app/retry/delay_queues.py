"""Exponential delays: 2^iteration x timeout, one queue per duration; the policy travels with the message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.amqp.delivery import Delivery
from app.retry.dead_set import death_headers
from app.retry.policy import Dead, Decision, Failure, Retry
from config.topology import MAX_TTL_MS, few_digits

TIMEOUT, MAX, ITERATION = "retry-timeout-ms", "retry-max", "current-iteration"

#: Marks a replayed message that keeps its budget: as the async-worker document says, it is not retried again.
REPLAY = "perennial-replay"

#: Far above any duration in ms, and with room below the 64 bits of a header.
MAX_NUMBER = 2**40


@dataclass(frozen=True, slots=True)
class DelayQueues:
    """The async-worker document's policy; a message without its headers gets these defaults.

    `retry_max` 3 means four runs, after waits of b, 2b and 4b.
    """

    timeout_ms: int
    retry_max: int

    def decide(self, delivery: Delivery, failure: Failure) -> Decision:
        """Return Retry while the budget lasts, else Dead; a permanent failure is dead at once."""
        headers = delivery.headers
        iteration = whole_number(headers, ITERATION, default=0)
        timeout_ms = whole_number(headers, TIMEOUT, default=self.timeout_ms) or self.timeout_ms
        retry_max = whole_number(headers, MAX, default=self.retry_max)
        spent = {TIMEOUT: timeout_ms, MAX: retry_max, ITERATION: iteration}
        delay_ms: int = few_digits(timeout_ms << min(iteration, 31))
        kept = headers.get(REPLAY) == "keep"
        if failure.permanent or kept or iteration >= retry_max or delay_ms > MAX_TTL_MS:
            return Dead(spent | death_headers(delivery, failure, attempts=iteration + 1))
        first = headers.get("perennial-first-failed-at", failure.at)
        told = {"perennial-first-failed-at": first, "perennial-last-error": f"{failure.exception}: {failure.message}"}
        return Retry(delay_ms, spent | told | {ITERATION: iteration + 1})


def whole_number(headers: Mapping[str, Any], name: str, *, default: int) -> int:
    """Read a header that foreign producers write as int or text; what is no natural number counts as absent.

    So does one above MAX_NUMBER, which could not be written into a header again.
    """
    value = headers.get(name, default)
    if isinstance(value, bool):
        return default
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return default
    return number if 0 <= number <= MAX_NUMBER else default
