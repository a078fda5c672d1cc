"""The route cache: which searchers have which domain. It is renewed in the background."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from app.broker.errors import ApplicationError, RequestTimedOut, Unroutable
from app.broker.rpc.requestor import Reply
from app.cluster.client.hedging import Count
from app.cluster.protocol import Routes, read
from app.errors import SearchUnavailable

#: Seconds after which routes are renewed in the background.
MAX_AGE = 1.0
#: Seconds after which routes are not used before an attempt to renew them.
TOO_OLD = 10.0
#: Seconds that newer routes are awaited if older ones, or an error, could be returned instead.
PATIENCE = 0.5
#: Seconds between two lookups at an orchestrator that failed, or that still collects reports.
_PAUSE = 0.1
#: Seconds that the first routes are awaited beyond the deadline: the error of a lookup that timed out says more.
_GRACE = 0.1


class RouteCache:
    """Caches the orchestrator's routes, for any thread; at most one lookup runs at a time.

    Routes of an orchestrator that has just started are incomplete: they do not replace those of the previous one.
    """

    def __init__(
        self, look_up: Callable[[float], Future[Reply]], *, deadline: float, count: Callable[[Count], None]
    ) -> None:
        """`look_up` requests routes and takes the seconds that the reply may take, `deadline` here."""
        self._look_up = look_up
        self._deadline = deadline
        self._count = count
        self._changed = threading.Condition()
        self._routes: Routes | None = None
        #: When the cached routes were requested, and when any lookup began last (monotonic seconds).
        self._as_of = self._looked_up_at = float("-inf")
        self._looking_up = False
        self._failure: ApplicationError | None = None

    def get(self, *, until: float) -> Routes:
        """Return the routes, at once unless they are too old; raises SearchUnavailable.

        The first routes are awaited until `until` (monotonic seconds).
        """
        now = time.monotonic()
        with self._changed:
            if (cached := self._cached(now)) is not None:
                return cached
            if self._routes is None:
                self._await_newer(float("-inf"), until=until + _GRACE)
            else:
                self._await_newer(now - TOO_OLD, until=min(until, self._looked_up_at + PATIENCE))
            if self._routes is None:
                if isinstance(self._failure, RequestTimedOut) or self._failure is None:
                    raise SearchUnavailable(f"the orchestrator did not answer within {self._deadline:g} s")
                if isinstance(self._failure, Unroutable):
                    raise SearchUnavailable("there is no orchestrator at this broker")
                raise SearchUnavailable(str(self._failure))
            return self._routes

    def get_cached(self) -> Routes | None:
        """Return the routes, or None if `get` would wait for them."""
        with self._changed:
            return self._cached(time.monotonic())

    def get_newer(self, than: float, *, until: float) -> Routes | None:
        """Return settled routes requested after `than`, or None if none come within PATIENCE (monotonic seconds)."""
        with self._changed:
            return self._await_newer(than, until=min(until, time.monotonic() + PATIENCE))

    def refresh(self) -> None:
        """Renew the routes in the background: a searcher did not have what they say."""
        with self._changed:
            self._look_up_if_due(time.monotonic(), pause=_PAUSE)

    def _cached(self, now: float) -> Routes | None:
        age = now - self._as_of
        if age > MAX_AGE:
            self._look_up_if_due(now, pause=_PAUSE if self._routes is None else MAX_AGE)
        # After a failed lookup old routes are used at once, because a query must not wait for each lookup.
        return self._routes if age <= TOO_OLD or self._failure is not None else None

    def _await_newer(self, than: float, *, until: float) -> Routes | None:
        """Look up until there are settled routes requested after `than`; at most PATIENCE if lookups fail."""
        began = time.monotonic()
        while self._as_of <= than or not (self._routes and self._routes.settled):
            now = time.monotonic()
            first = self._routes is None and self._failure is None
            end = until if first else min(until, began + PATIENCE)
            if now >= end:
                return None
            pause = self._look_up_if_due(now, pause=_PAUSE)
            self._changed.wait(min(end - now, pause))
        return self._routes

    def _look_up_if_due(self, now: float, *, pause: float) -> float:
        """Look up unless a lookup runs or began within `pause` seconds; return the seconds until this can change."""
        if not self._looking_up and now - self._looked_up_at >= pause:
            self._looking_up, self._looked_up_at = True, now
            self._count("lookups")
            self._look_up(self._deadline).add_done_callback(self._take)
        return self._deadline if self._looking_up else self._looked_up_at + pause - now

    def _take(self, reply: Future[Reply]) -> None:
        try:
            outcome: Routes | ApplicationError = read(Routes, reply.result().body)
        except ApplicationError as error:
            outcome = error
        with self._changed:
            self._looking_up = False
            if isinstance(outcome, ApplicationError):
                self._count("lookups_failed")
                self._failure = outcome
            elif outcome.settled or self._routes is None or not self._routes.settled:
                self._routes, self._failure = outcome, None
                self._as_of = self._looked_up_at
            else:
                # This lasts as long as the store is away, so queries must not wait for it.
                self._failure = SearchUnavailable("the orchestrator has started and still collects reports")
            self._changed.notify_all()
