"""The circuit breakers of all services that workers need, and which of them are open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.coverart.outages import ServiceBreakers
from app.messages.circuit_breakers import breakers_by_queue
from app.notifications.delivery import receiver_breaker
from app.redis_state.client import get_quick_redis
from app.storage.outage import store_breaker
from config.settings import Settings


@dataclass(frozen=True, slots=True)
class BreakerState:
    """The state of one circuit breaker; `reason` is the error that opened it, None while it is closed.

    `queues` are those that no worker consumes while it is open.
    """

    service: str
    reason: str | None
    seconds_open: float
    queues: tuple[str, ...]

    @property
    def is_open(self) -> bool:
        """Whether messages wait."""
        return self.reason is not None

    def __str__(self) -> str:
        return f"the {self.service} is unavailable, its messages wait {self.seconds_open:.0f} s more: {self.reason}"


def breaker_states(settings: Settings) -> Sequence[BreakerState]:
    """Return the state of each circuit breaker once: archives, database, web service, public reads, store, receivers.

    Raises RedisError.
    """
    redis = get_quick_redis(settings.redis)
    of_art = [each for exchange in settings.art_exchanges for each in ServiceBreakers.of(exchange, settings, redis)]
    of_receivers = [receiver_breaker(redis, name, settings) for name in settings.receivers]
    # All archives share some of them.
    breakers = {each.name: each for each in (*of_art, store_breaker(redis), *of_receivers)}
    queues: dict[str, list[str]] = {name: [] for name in breakers}
    for queue, needed in breakers_by_queue(settings, redis).items():
        for each in needed:
            queues[each.name].append(queue)
    return [
        BreakerState(each.service, each.reason(), each.seconds_open(), tuple(queues[name]))
        for name, each in breakers.items()
    ]


def seconds_paused(states: Sequence[BreakerState]) -> Mapping[str, float]:
    """Return for how long workers will not consume each queue that needs a service: 0 while no breaker is open."""
    seconds: dict[str, float] = {}
    for state in states:
        for queue in state.queues:
            seconds[queue] = max(seconds.get(queue, 0.0), state.seconds_open)
    return seconds
