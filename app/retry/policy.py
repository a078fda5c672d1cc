"""The contract of a retry policy: it looks at a delivery and a failure and returns a decision. It does nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from app.amqp.delivery import Delivery

#: Characters of a traceback, and of an error's message, that travel with a dead message.
MAX_TRACEBACK, MAX_MESSAGE = 6_000, 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why one run of a message failed. `at` is seconds since the epoch; everything is text, so that it can travel."""

    reason: str
    exception: str
    message: str
    traceback: str = ""
    permanent: bool = False
    at: float = 0.0
    worker: str = ""


@dataclass(frozen=True, slots=True)
class Retry:
    """Wait `delay_ms` in the broker and run again, with these headers added; a run of the budget is spent."""

    delay_ms: int
    headers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Postponed:
    """Wait `delay_ms` in the broker and run again; the budget is unspent."""

    delay_ms: int


@dataclass(frozen=True, slots=True)
class Dead:
    """Rest in the dead set, with these headers added."""

    headers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget the message: another one is coming anyway."""


Decision = Retry | Postponed | Dead | Drop


class Policy(Protocol):
    """One answer to "it failed"."""

    def decide(self, delivery: Delivery, failure: Failure) -> Decision:
        """Return what becomes of the message. Never raises, whatever headers a foreign producer sent."""
