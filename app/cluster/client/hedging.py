"""One request to the replicas of a domain: the next one is asked when the one before fails or is silent."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from app.broker.errors import (
    ApplicationError,
    BrokerUnreachable,
    InvalidMessage,
    PublishFailed,
    RequestTimedOut,
    SearcherBusy,
    Unroutable,
)
from app.broker.rpc.requestor import Reply
from app.cluster.client.tally import Count, RequestCounts
from app.cluster.protocol import ProblemReply, error_of, read
from app.errors import InvalidQuery, NotPlaced, PackCorrupt, SearchTimeout, SearchUnavailable

T = TypeVar("T")

#: What another replica would say, too.
_FINAL = (InvalidQuery, SearchTimeout)
#: Of several failures, the one that is told: the first kind that there is.
_TELLING: tuple[type[ApplicationError], ...] = (
    SearcherBusy,
    PackCorrupt,
    RequestTimedOut,
    BrokerUnreachable,
    NotPlaced,
    Unroutable,
    ApplicationError,
)
#: Seconds that replies are awaited beyond the deadline of their requests, which tells more of what went wrong.
_GRACE = 0.1

_COUNTS: tuple[tuple[type[ApplicationError], Count], ...] = (
    (Unroutable, "returned"),
    (SearcherBusy, "busy"),
    (NotPlaced, "not_here"),
    (RequestTimedOut, "timed_out"),
)


@dataclass(frozen=True, slots=True)
class Span:
    """The time that an answer may take: from `began` until `until`, in monotonic seconds.

    A replica that is silent for `hedge` seconds is helped by the next one.
    """

    began: float
    until: float
    hedge: float

    @classmethod
    def of(cls, seconds: float, *, hedge: float) -> Span:
        """Return the span of so many seconds from now."""
        now = time.monotonic()
        return cls(now, now + seconds, hedge)


class HedgedRequest(Generic[T]):
    """Asks replicas in their order, each when the ones before failed or kept it waiting; the first answer wins."""

    def __init__(
        self,
        kind: type[T],
        domain: str,
        replicas: Iterable[str],
        *,
        absent: ApplicationError,
        span: Span,
        send: Callable[[str, float], Future[Reply]],
        silent: Callable[[str, bool], None],
        tally: RequestCounts,
    ) -> None:
        """`absent` is raised where there is no replica to ask; `send` asks one, with a deadline in seconds.

        `silent` is told of one that is gone, busy, broken or keeps others waiting, and of one that answers.
        """
        self.domain = domain
        self._answer: T | ApplicationError | None = None
        #: Replicas that are gone, as the broker says; and whether one of them was, or had no such domain.
        self.gone: set[str] = set()
        self.astray = False
        self._kind = kind
        self._absent = absent
        self._untried = deque(replicas)
        self._span = span
        self._send = send
        self._silent = silent
        self._tally = tally
        self._flying: dict[Future[Reply], str] = {}
        self._failures: list[ApplicationError] = []
        self._hedge_at = float("inf")

    @property
    def running(self) -> bool:
        """Whether nothing is decided yet."""
        return self._answer is None

    def outcome(self) -> T | ApplicationError:
        """Return what won, or the error that it came to."""
        return self._failure() if self._answer is None else self._answer

    @property
    def flying(self) -> Iterable[Future[Reply]]:
        """The requests that may still be answered."""
        return self._flying.keys()

    @property
    def due(self) -> float:
        """When there is something to do even if no reply comes (monotonic seconds)."""
        return self._hedge_at if self._untried else float("inf")

    def go_on(self, now: float) -> None:
        """Take what has come, and ask the next replica if its time has come."""
        failures = len(self._failures)
        for future in [future for future in self._flying if future.done()]:
            self._take(future)
        if self._answer is None and self._untried and now < self._span.until:
            if len(self._failures) > failures or not self._flying:
                self._ask_next(now)
            elif now >= self._hedge_at:
                self._hedge(now)
        if self._answer is None and not self._flying:
            self._answer = self._failure()

    def end(self) -> None:
        """Wait no longer; what still comes is counted as late."""
        if self._flying and self._answer is None:
            self._failures.append(RequestTimedOut(self.domain))
        for future, replica in self._flying.items():
            future.add_done_callback(lambda late, replica=replica: self._late(late, replica))  # type: ignore[misc]

    def _ask_next(self, now: float) -> None:
        replica = self._untried.popleft()
        self._hedge_at = now + self._span.hedge
        self._tally.add("sent")
        self._flying[self._send(replica, self._span.until - now)] = replica

    def _hedge(self, now: float) -> None:
        for replica in self._flying.values():
            self._silent(replica, True)
        self._tally.add("hedged")
        self._ask_next(now)

    def _take(self, future: Future[Reply]) -> None:
        replica = self._flying.pop(future)
        try:
            answer = _read(self._kind, future.result().body)
        except ApplicationError as error:
            self._failed(replica, error)
        else:
            self._silent(replica, False)
            if self._answer is None:
                self._answer = answer

    def _failed(self, replica: str, error: ApplicationError) -> None:
        self._tally.add(next((count for kind, count in _COUNTS if isinstance(error, kind)), "failed"))
        if isinstance(error, Unroutable):
            self.gone.add(replica)
        if not isinstance(error, _FINAL):
            self._silent(replica, True)
        self.astray |= isinstance(error, Unroutable | NotPlaced)
        if isinstance(error, _FINAL) and self._answer is None:
            self._answer = error
        self._failures.append(error)

    def _failure(self) -> ApplicationError:
        """Return what the failures come to: of the first telling kind that there is, the first."""
        told = (error for kind in _TELLING for error in self._failures if isinstance(error, kind))
        match next(told, None):
            case None:
                return self._absent
            case NotPlaced() | Unroutable():
                return NotPlaced(f"{self.domain} is on no searcher at the moment")
            case RequestTimedOut():
                seconds = self._span.until - self._span.began
                return RequestTimedOut(f"{self.domain}: no searcher answered within {seconds:g} s")
            case BrokerUnreachable() | PublishFailed() as error:
                return SearchUnavailable(str(error))
            case error:
                return error

    def _late(self, future: Future[Reply], replica: str) -> None:
        if future.exception() is None:
            self._tally.add("late")
            self._silent(replica, False)


def run(races: Sequence[HedgedRequest[T]], span: Span) -> None:
    """Run races side by side to their ends, which come with the span's at the latest."""
    for flying, seconds in _laps(races, span):
        wait(flying, seconds, FIRST_COMPLETED)


async def arun(races: Sequence[HedgedRequest[T]], span: Span) -> None:
    """Run races as `run` does, for an event loop."""
    for flying, seconds in _laps(races, span):
        await _first(flying, seconds)


def _laps(races: Sequence[HedgedRequest[T]], span: Span) -> Iterator[tuple[list[Future[Reply]], float]]:
    """Go on with the races until all have ended; yield what is to be awaited next, and for how many seconds at most."""
    end = span.until + _GRACE
    while running := [race for race in races if race.running]:
        now = time.monotonic()
        if now >= end:
            break
        for race in running:
            race.go_on(now)
        flying = [future for race in running if race.running for future in race.flying]
        if flying:
            due = min(end, *(race.due for race in running))
            yield flying, max(0.0, due - time.monotonic())
    for race in races:
        race.end()


async def _first(flying: Iterable[Future[Reply]], seconds: float) -> None:
    """Wait until one of them is done, but no longer than so many seconds."""
    loop = asyncio.get_running_loop()
    woken: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not woken.done():
            woken.set_result(None)

    def tell(_done: Future[Reply]) -> None:
        with suppress(RuntimeError):  # The loop has ended: nobody waits any more.
            loop.call_soon_threadsafe(wake)

    for future in flying:
        future.add_done_callback(tell)
    timer = loop.call_later(seconds, wake)
    try:
        await woken
    finally:
        timer.cancel()


def _read(kind: type[T], body: bytes) -> T:
    """Return the answer; raises what a problem says instead, or PackCorrupt for what is neither."""
    try:
        return read(kind, body)
    except InvalidMessage as error:
        unreadable = PackCorrupt(f"an answer that cannot be read: {error}")
    try:
        problem = read(ProblemReply, body)
    except InvalidMessage:
        raise unreadable from None
    raise error_of(problem)
