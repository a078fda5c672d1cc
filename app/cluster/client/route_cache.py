"""Who has what, as the orchestrator told last: asked anew in the background, kept while it is away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from app.broker.errors import ApplicationError, RequestTimedOut, Unroutable
from app.broker.rpc.requestor import Reply
from app.cluster.client.tally import RequestCounts
from app.cluster.protocol import Routes, read
from app.errors import SearchUnavailable

#: Seconds after which routes are asked for again, and after which they are not used without a look for newer ones.
MAX_AGE, TOO_OLD = 1.0, 10.0
#: Seconds that newer routes are awaited where older ones, or an error, could be told instead.
PATIENCE = 0.5
#: Seconds between two questions to an orchestrator that failed, or still gathers what is there.
_PAUSE = 0.1
#: Seconds that the first answer is awaited beyond its deadline, when the request for it tells what went wrong.
_GRACE = 0.1


class RouteCache:
    """The orchestrator's routes, from any thread; one question at a time.

    Routes of an orchestrator that has just begun, and knows little yet, do not replace those of the one before.
    """

    def __init__(self, ask: Callable[[float], Future[Reply]], *, deadline: float, tally: RequestCounts) -> None:
        """`ask` posts a request for routes that may take so many seconds, at most `deadline`."""
        self._ask = ask
        self._deadline = deadline
        self._tally = tally
        self._changed = threading.Condition()
        self._routes: Routes | None = None
        #: When the routes were asked for, and when the orchestrator was asked last, whatever came of it.
        self._as_of = self._asked_at = float("-inf")
        self._asking = False
        self._failure: ApplicationError | None = None

    def routes(self, *, until: float) -> Routes:
        """Return what is known, at once where that is not too old; raises SearchUnavailable.

        The first time there is something to wait for, and that is waited for until `until` (monotonic seconds).
        """
        now = time.monotonic()
        with self._changed:
            if (at_hand := self._at_hand(now)) is not None:
                return at_hand
            if self._routes is None:
                self._await(float("-inf"), until=until + _GRACE)
            else:
                self._await(now - TOO_OLD, until=min(until, self._asked_at + PATIENCE))
            if self._routes is None:
                raise SearchUnavailable(self._why())
            return self._routes

    def at_once(self) -> Routes | None:
        """Return what `routes` returns without waiting, or None where it would wait."""
        with self._changed:
            return self._at_hand(time.monotonic())

    def _at_hand(self, now: float) -> Routes | None:
        """Return what is to be told without waiting, or None; asks in the background where it is time to."""
        age = now - self._as_of
        if age > MAX_AGE:
            self._ask_if_due(now, pause=_PAUSE if self._routes is None else MAX_AGE)
        # Of an orchestrator that is known to be silent nothing newer is awaited.
        return self._routes if age <= TOO_OLD or self._failure is not None else None

    def renewed(self, than: float, *, until: float) -> Routes | None:
        """Return settled routes that were asked for after `than`, or None where none come soon (monotonic seconds)."""
        with self._changed:
            return self._await(than, until=min(until, time.monotonic() + PATIENCE))

    def doubt(self) -> None:
        """Ask again soon: something was not where it should be."""
        with self._changed:
            self._ask_if_due(time.monotonic(), pause=_PAUSE)

    def _await(self, than: float, *, until: float) -> Routes | None:
        """Ask until settled routes are there; no longer than PATIENCE where the orchestrator is known to be silent."""
        began = time.monotonic()
        while self._as_of <= than or not (self._routes and self._routes.settled):
            now = time.monotonic()
            patient = self._routes is None and self._failure is None
            end = until if patient else min(until, began + PATIENCE)
            if now >= end:
                return None
            pause = self._ask_if_due(now, pause=_PAUSE)
            self._changed.wait(min(end - now, pause))
        return self._routes

    def _ask_if_due(self, now: float, *, pause: float) -> float:
        """Ask, unless an answer is awaited or it was asked `pause` seconds ago; return the seconds to the next look."""
        if self._asking:
            return self._deadline
        if now - self._asked_at >= pause:
            self._asking, self._asked_at = True, now
            self._tally.add("lookups")
            self._ask(self._deadline).add_done_callback(self._told)
            return self._deadline
        return self._asked_at + pause - now

    def _told(self, answer: Future[Reply]) -> None:
        outcome = _routes_of(answer)
        with self._changed:
            self._asking = False
            if isinstance(outcome, ApplicationError):
                self._tally.add("lookups_failed")
                self._failure = outcome
            elif outcome.settled or self._routes is None or not self._routes.settled:
                self._routes, self._failure = outcome, None
                self._as_of = self._asked_at
            else:
                # It may go on so for as long as the store is away: queries must not wait for it each time.
                self._failure = SearchUnavailable("the orchestrator still gathers what is there")
            self._changed.notify_all()

    def _why(self) -> str:
        if isinstance(self._failure, RequestTimedOut) or self._failure is None:
            return f"the orchestrator did not answer within {self._deadline:g} s"
        if isinstance(self._failure, Unroutable):
            return "there is no orchestrator at this broker"
        return str(self._failure)


def _routes_of(answer: Future[Reply]) -> Routes | ApplicationError:
    try:
        return read(Routes, answer.result().body)
    except ApplicationError as error:
        return error
