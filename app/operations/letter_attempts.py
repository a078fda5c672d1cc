"""The attempts of a dead letter in time, from its headers and the waits of its retry policy."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from app.broker.dead_letters import DeadLetter
from app.broker.dead_letters.causes import epoch_seconds
from app.broker.headers import deaths, whole_number
from app.topology.retry_policies import retry_policies
from config.settings import Settings

#: Attempts and broker's deaths that are shown: a sender chooses the numbers in a header.
MAX_SHOWN: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One failed run: when, in seconds since the epoch, and how many seconds it waited before, by the policy.

    Only the times of the first and the last run are in the message. Those between are `estimated`: the waits, added up.
    """

    number: int
    at: float | None
    wait: float
    estimated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDeath:
    """An entry of `x-death`: how often the broker dead-lettered the message from a queue, and when first."""

    queue: str
    reason: str
    count: int
    exchange: str
    at: float | None


def attempts_of(letter: DeadLetter, settings: Settings) -> list[Attempt]:
    """Return the failed runs of a letter, the first ones where there are too many to show."""
    cause = letter.cause
    policy = retry_policies(settings).policy_for(letter.queue)
    number = min(cause.attempts, MAX_SHOWN)
    waits = [0.0, *(policy.wait_ms(letter.delivery, run) / 1_000 for run in range(1, number))][:number]
    first, last = letter.first_failed_at, letter.failed_at
    found = []
    for run, (wait, since) in enumerate(zip(waits, accumulate(waits), strict=True), 1):
        is_known = run in (1, cause.attempts)
        at = (last if run == cause.attempts else first) if is_known else None
        if not is_known and first is not None:
            at = first + since if last is None else min(first + since, last)
        found.append(Attempt(number=run, at=at, wait=wait, estimated=not is_known))
    return found


def broker_deaths(letter: DeadLetter) -> list[BrokerDeath]:
    """Return what the broker noted in `x-death`, the latest first."""
    return [
        BrokerDeath(
            queue=str(entry.get("queue", "")),
            reason=str(entry.get("reason", "")),
            count=whole_number(entry, "count", default=1),
            exchange=str(entry.get("exchange", "")),
            at=epoch_seconds(entry.get("time")),
        )
        for entry in deaths(letter.delivery)[:MAX_SHOWN]
    ]
