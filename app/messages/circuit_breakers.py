"""The circuit breakers of the services that messages need, by the queues of the messages."""

from __future__ import annotations

from redis import Redis

from app.coverart.outages import ServiceBreakers
from app.redis_state.circuit_breaker import CircuitBreaker
from app.storage.outage import store_breaker
from config.routes import STORE_QUEUES, art_routes
from config.settings import Settings


def breakers_by_queue(settings: Settings, redis: Redis) -> dict[str, tuple[CircuitBreaker, ...]]:
    """Return the circuit breakers of each queue: while one of them is open, workers do not consume the queue."""
    of_art = {
        route.queue: ServiceBreakers.of(exchange, settings, redis).needed_by(route.type)
        for exchange in settings.art_exchanges
        for route in art_routes(exchange)
    }
    return of_art | dict.fromkeys(STORE_QUEUES, (store_breaker(redis),))
