"""Outages of archive, database and web service: what an error means for the job that met it, and for all others."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, Self

from redis import Redis

from app.errors import RemoteError
from app.redis_state.circuit_breaker import CircuitBreaker
from config.settings import Settings

_log = logging.getLogger(__name__)

#: Seconds that a circuit breaker stays open at most, unless Retry-After asks for more, and that it remembers failures.
LONGEST_PAUSE, FAILURE_MEMORY = 600.0, 3_600.0

#: Items that fail one after another, in all workers together, before a circuit breaker opens: fewer may fail by
#: themselves.
OUTAGE_ITEMS = 5

#: The header that counts the failed runs of a message that spent no retry, and how many it has.
#: A message that would fail forever by itself must come to an end.
FREE_RUNS, MAX_FREE_RUNS = "perennial-free-runs", 20

#: Failed runs that spend no retry although the item itself may be the cause.
FIRST_FREE_RUNS = 2


class ServiceBreakers(NamedTuple):
    """The circuit breakers of the services that the jobs of one archive need. All archives share the last three."""

    archive: CircuitBreaker
    database: CircuitBreaker
    web_service: CircuitBreaker
    #: The archive's public reads, which few jobs need.
    public: CircuitBreaker

    @classmethod
    def of(cls, exchange: str, settings: Settings, redis: Redis) -> Self:
        """Return the circuit breakers for the archive of an exchange."""

        def breaker(name: str, service: str) -> CircuitBreaker:
            return CircuitBreaker(
                redis,
                name,
                service,
                first_pause=min(settings.retry_timeout_ms / 1_000, LONGEST_PAUSE),
                longest_pause=LONGEST_PAUSE,
                memory=FAILURE_MEMORY,
                threshold=OUTAGE_ITEMS,
            )

        return cls(
            breaker(f"art:{exchange}", f"archive of {exchange}"),
            breaker("musicbrainz:database", "MusicBrainz database"),
            breaker("musicbrainz:web-service", "MusicBrainz web service"),
            breaker("art-public", "public archive"),
        )

    def needed_by(self, kind: str, *, reads_database: bool = False) -> tuple[CircuitBreaker, ...]:
        """Return the circuit breakers of the services that each `index`, `move` or `delete` needs.

        `reads_database` is for a `delete` that reads the database, as that of a listing does.
        """
        if kind == "index":
            return self.archive, self.database, self.web_service
        return (self.archive, self.database) if kind == "move" or reads_database else (self.archive,)


@contextmanager
def reporting_to(breaker: CircuitBreaker, item: str) -> Iterator[None]:
    """Tell the circuit breaker how a request about an item ends.

    Sets `free_after` of its error where the job may run again without spending a retry. Then the service is away or
    sent Retry-After, or the circuit breaker is open.
    """
    try:
        yield
    except RemoteError as error:
        if error.evidence == "answered":
            breaker.succeed()
            raise
        seconds_open, opened = breaker.fail(item, reason=str(error), retry_after=error.retry_after)
        # Before the breaker opens, a failure may be the item's own: it waits until other items failed, or were served.
        error.may_be_own = not (seconds_open or error.evidence == "away" or error.retry_after is not None)
        error.free_after = seconds_open or error.retry_after or breaker.first_pause
        if opened:
            level, hint = logging.WARNING, ""
            if error.evidence == "denied":
                level, hint = logging.ERROR, "; check ARCHIVE_KEYS, or EVENT_ART_KEYS"
            text = "Circuit breaker of the %s open for %g s, its messages wait: %s%s"
            _log.log(level, text, breaker.service, seconds_open, error, hint)
        raise
    breaker.succeed()


@contextmanager
def admit_and_report(breaker: CircuitBreaker, item: str) -> Iterator[None]:
    """Report a request to a service that few jobs need: admission is in the middle of a job, not at its beginning.

    Raises Postpone while the circuit breaker is open.
    """
    with breaker.admit(item), reporting_to(breaker, item):
        yield
