"""The circuit breakers of all services that workers need, and which of them are open."""

from __future__ import annotations

from dataclasses import dataclass

from redis import Redis

from app.coverart.outages import Services
from app.notifications.delivery import receiver_breaker
from app.redis_state.client import open_redis
from app.storage.outage import store_breaker
from config.settings import Settings

#: Seconds to wait for Redis.
_TIMEOUT = 5.0


@dataclass(frozen=True, slots=True)
class BreakerState:
    """The state of one circuit breaker; `reason` is the error that opened it, None while it is closed."""

    service: str
    reason: str | None
    seconds_open: float

    def __str__(self) -> str:
        return f"the {self.service} is unavailable, its messages wait {self.seconds_open:.0f} s more: {self.reason}"


def redis_client(settings: Settings) -> Redis:
    """Return a client that waits five seconds at most, and does not try again: what is checked is Redis, too."""
    return open_redis(
        settings.redis, decode_responses=True, socket_timeout=_TIMEOUT, socket_connect_timeout=_TIMEOUT, retry=None
    )


def breaker_states(settings: Settings) -> list[BreakerState]:
    """Return the state of each circuit breaker once: archives, database, web service, public reads, store, receivers.

    Raises RedisError.
    """
    with redis_client(settings) as redis:
        services = [Services.of(exchange, settings, redis) for exchange in settings.art_exchanges]
        of_art = [breaker for each in services for breaker in each.breakers]
        of_receivers = [receiver_breaker(redis, name, settings) for name in settings.receivers]
        # All archives share some of them.
        breakers = {each.name: each for each in (*of_art, store_breaker(redis), *of_receivers)}
        return [BreakerState(each.service, each.reason(), each.seconds_open()) for each in breakers.values()]
