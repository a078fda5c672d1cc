"""Quiet periods: of equal notifications within one, the first is sent, and the next one after it has their number."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from redis import Redis

from app.redis_state.client import PREFIX

#: Seconds in which a receiver gets one event of a type about a site. The next one has the number of the others.
QUIET_PERIOD: Final = 3_600.0
#: Seconds after the end of a quiet period for which the number of suppressed events is kept.
_KEPT: Final = 7 * 86_400


@dataclass(frozen=True, slots=True)
class QuietState:
    """When an event of one type about one subject was sent, in epoch seconds, and how many were suppressed since."""

    sent_at: float | None = None
    suppressed: int = 0

    def is_quiet(self, now: float) -> bool:
        """Return whether the period of the last event that was sent goes on."""
        return self.sent_at is not None and is_within(self.sent_at, now)

    def after(self, now: float) -> QuietState:
        """Return the state after one more event, which is suppressed or sent."""
        if self.is_quiet(now):
            return replace(self, suppressed=self.suppressed + 1)
        return QuietState(sent_at=now)


def is_within(began: float, now: float) -> bool:
    """Return whether a quiet period goes on. One that begins far ahead of `now` is of a clock that was set back."""
    return began - QUIET_PERIOD < now < began + QUIET_PERIOD


class QuietPeriods:
    """The states of one receiver's events, in Redis. Without them, an event is sent once too often."""

    def __init__(self, redis: Redis, receiver: str) -> None:
        self._redis = redis
        self._prefix = f"{PREFIX}quiet:{receiver}:"

    def state(self, kind: str, subject: str) -> QuietState:
        """Return the state of events of a type about a subject."""
        sent_at, suppressed = self._redis.hmget(self._key(kind, subject), "sent_at", "suppressed")
        return QuietState(float(sent_at) if sent_at else None, int(suppressed or 0))

    def note(self, kind: str, subject: str, state: QuietState) -> None:
        """Store a state."""
        key = self._key(kind, subject)
        with self._redis.pipeline() as pipe:
            pipe.hset(key, mapping={"sent_at": state.sent_at or 0.0, "suppressed": state.suppressed})
            pipe.expire(key, round(QUIET_PERIOD + _KEPT))
            pipe.execute()

    def _key(self, kind: str, subject: str) -> str:
        return f"{self._prefix}{kind}:{subject}"
