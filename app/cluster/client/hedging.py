"""Hedged requests: a request goes to the next replica of a domain when the one before fails or is silent."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Generic, Literal, TypeVar, get_args

from app.broker.errors import (
    ApplicationError,
    BrokerUnreachable,
    Overloaded,
    PublishFailed,
    RequestTimedOut,
    Unroutable,
)
from app.broker.rpc.requestor import Reply, Requestor
from app.cluster.protocol import PackRoute, read_reply, to_payload
from app.errors import InvalidQuery, NotPlaced, PackCorrupt, SearchTimeout, SearchUnavailable
from app.messages.envelopes import query_message
from app.search.contract import SearchRequest, SuggestRequest

T = TypeVar("T")

#: Errors that every replica would answer with.
_FINAL = (InvalidQuery, SearchTimeout)
#: If several replicas failed, the error of the first of these kinds is reported.
_MOST_TELLING_FIRST: tuple[type[ApplicationError], ...] = (
    Overloaded,
    PackCorrupt,
    RequestTimedOut,
    BrokerUnreachable,
    NotPlaced,
    Unroutable,
    ApplicationError,
)
#: Seconds that replies are awaited beyond the deadline: the error of a request that timed out says more.
_GRACE = 0.1
#: Seconds in which a searcher that was silent or failed comes after the others.
_SILENT_SECONDS = 5.0

#: Counters of a search client. `searches` and `suggestions` count calls, `lookups` requests for routes. Others count
#: requests to searchers. `hedged` ones were sent because another searcher was silent; the broker `returned` some.
#: A `late` reply came after the search had ended.
RequestCount = Literal[
    "searches",
    "suggestions",
    "sent",
    "hedged",
    "returned",
    "busy",
    "not_loaded",
    "failed",
    "timed_out",
    "late",
    "lookups",
    "lookups_failed",
]
_COUNT_OF_ERROR: tuple[tuple[type[ApplicationError], RequestCount], ...] = (
    (Unroutable, "returned"),
    (Overloaded, "busy"),
    (NotPlaced, "not_loaded"),
    (RequestTimedOut, "timed_out"),
)


@dataclass(frozen=True, slots=True)
class Deadline:
    """The time that a search may take: from `began` until `until`, in monotonic seconds.

    A replica that is silent for `hedge_after` seconds gets help from the next one.
    """

    began: float
    until: float
    hedge_after: float

    @classmethod
    def after(cls, seconds: float, *, hedge_after: float) -> Deadline:
        """Return the deadline `seconds` from now."""
        now = time.monotonic()
        return cls(now, now + seconds, hedge_after)


class SearcherBalancer:
    """Orders the searchers of a route and sends requests to them, from any thread.

    It counts the requests in flight to each searcher and remembers which ones are silent.
    """

    def __init__(self, requestor: Requestor) -> None:
        """Send with `requestor`."""
        self._requestor = requestor
        self._in_flight: Counter[str] = Counter()
        self._silent_until: dict[str, float] = {}
        self._lock = threading.Lock()
        self._counts: dict[str, int] = dict.fromkeys(get_args(RequestCount), 0)

    def count(self, name: RequestCount) -> None:
        """Count one more."""
        with self._lock:
            self._counts[name] += 1

    def counts(self) -> dict[str, int]:
        """Return all counters by name."""
        with self._lock:
            return self._counts.copy()

    def in_order(self, route: PackRoute) -> list[str]:
        """Return the searchers of a route: newest pack version first, then fewest requests in flight.

        On a tie it is always the same one, whose caches are warm. Silent searchers come last.
        """
        now = time.monotonic()
        parts = (route.searchers[: route.newest], route.searchers[route.newest :])
        order = [replica for part in parts for replica in sorted(part, key=self._in_flight.__getitem__)]
        return sorted(order, key=lambda replica: self._silent_until.get(replica, 0.0) > now)

    def send(self, request: SearchRequest | SuggestRequest, replica: str, *, seconds: float) -> Future[Reply]:
        """Send a request to a searcher, which has `seconds` to reply."""
        kind = "search" if isinstance(request, SearchRequest) else "suggest"
        self.count("sent")
        self._change_in_flight(replica, 1)
        future = self._requestor.send(query_message(replica, kind, to_payload(request)), deadline=seconds)
        future.add_done_callback(lambda _: self._change_in_flight(replica, -1))
        return future

    def set_silent(self, replica: str, *, silent: bool) -> None:
        """Note whether a searcher replies: a silent one comes last for a while."""
        if silent:
            self._silent_until[replica] = time.monotonic() + _SILENT_SECONDS
        else:
            self._silent_until.pop(replica, None)

    def _change_in_flight(self, replica: str, change: int) -> None:
        with self._lock:
            self._in_flight[replica] += change
            if not self._in_flight[replica]:
                del self._in_flight[replica]


class HedgedRequest(Generic[T]):
    """Sends a request to replicas in order: to the next one when others fail or are silent. The first reply wins."""

    def __init__(
        self,
        kind: type[T],
        request: SearchRequest | SuggestRequest,
        replicas: Iterable[str],
        *,
        no_replica: ApplicationError,
        deadline: Deadline,
        searchers: SearcherBalancer,
    ) -> None:
        """`kind` is the type of the reply; `no_replica` is the outcome if `replicas` is empty."""
        self._kind = kind
        self._request = request
        self._untried = deque(replicas)
        self._no_replica = no_replica
        self._deadline = deadline
        self._searchers = searchers
        #: The requests without a reply, with their replicas.
        self.in_flight: dict[Future[Reply], str] = {}
        self._failures: list[tuple[str, ApplicationError]] = []
        #: When the next replica is due even if no reply comes, in monotonic seconds.
        self.hedge_at = float("inf")
        self._result: T | ApplicationError | None = None

    @property
    def domain(self) -> str:
        """The domain that is searched."""
        return self._request.domain

    @property
    def running(self) -> bool:
        """Whether there is neither a reply nor a final error yet."""
        return self._result is None

    @property
    def outcome(self) -> T | ApplicationError:
        """The first reply, or the most telling error."""
        return self._error() if self._result is None else self._result

    @property
    def gone(self) -> set[str]:
        """The replicas whose queue is gone: the broker returned the request."""
        return {replica for replica, error in self._failures if isinstance(error, Unroutable)}

    @property
    def misrouted(self) -> bool:
        """Whether a replica was gone or did not have the domain, so the routes are out of date."""
        return any(isinstance(error, Unroutable | NotPlaced) for _, error in self._failures)

    def advance(self, now: float) -> None:
        """Take the replies that came, and send to the next replica if it is due; `now` is in monotonic seconds."""
        failures = len(self._failures)
        for future in [future for future in self.in_flight if future.done()]:
            self._take(future)
        if self._result is None and self._untried and now < self._deadline.until:
            if len(self._failures) > failures or not self.in_flight:
                self._send_to_next(now)
            elif now >= self.hedge_at:
                for replica in self.in_flight.values():
                    self._searchers.set_silent(replica, silent=True)
                self._searchers.count("hedged")
                self._send_to_next(now)
        if self._result is None and not self.in_flight:
            self._result = self._error()

    def end(self) -> None:
        """Stop waiting. Replies that still come are counted as late."""
        if self.in_flight and self._result is None:
            self._failures.append(("", RequestTimedOut(self.domain)))

        def take_late(future: Future[Reply], *, replica: str) -> None:
            if future.exception() is None:
                self._searchers.count("late")
                self._searchers.set_silent(replica, silent=False)

        for future, replica in self.in_flight.items():
            future.add_done_callback(partial(take_late, replica=replica))

    def _send_to_next(self, now: float) -> None:
        replica = self._untried.popleft()
        self.hedge_at = now + self._deadline.hedge_after if self._untried else float("inf")
        future = self._searchers.send(self._request, replica, seconds=self._deadline.until - now)
        self.in_flight[future] = replica

    def _take(self, future: Future[Reply]) -> None:
        replica = self.in_flight.pop(future)
        try:
            reply = read_reply(self._kind, future.result().body)
        except ApplicationError as error:
            self._failures.append((replica, error))
            self._searchers.count(next((name for kind, name in _COUNT_OF_ERROR if isinstance(error, kind)), "failed"))
            if not isinstance(error, _FINAL):
                self._searchers.set_silent(replica, silent=True)
            elif self._result is None:
                self._result = error
        else:
            self._searchers.set_silent(replica, silent=False)
            if self._result is None:
                self._result = reply

    def _error(self) -> ApplicationError:
        errors = (error for kind in _MOST_TELLING_FIRST for _, error in self._failures if isinstance(error, kind))
        match next(errors, None):
            case None:
                return self._no_replica
            case NotPlaced() | Unroutable():
                return NotPlaced(f"{self.domain} is on no searcher at the moment")
            case RequestTimedOut():
                seconds = self._deadline.until - self._deadline.began
                return RequestTimedOut(f"{self.domain}: no searcher answered within {seconds:g} s")
            case BrokerUnreachable() | PublishFailed() as error:
                return SearchUnavailable(str(error))
            case error:
                return error


def run(requests: Sequence[HedgedRequest[T]], deadline: Deadline) -> None:
    """Run requests at the same time until each has an outcome, at the latest until the deadline."""
    for in_flight, seconds in _rounds(requests, deadline):
        wait(in_flight, seconds, FIRST_COMPLETED)


async def arun(requests: Sequence[HedgedRequest[T]], deadline: Deadline) -> None:
    """Run requests as `run` does, in an event loop. The requestor's thread completes the futures."""
    loop, completed = asyncio.get_running_loop(), asyncio.Event()

    def wake_from_thread(_done: Future[Reply]) -> None:
        with suppress(RuntimeError):  # The loop is closed, so nothing waits any more.
            loop.call_soon_threadsafe(completed.set)

    for in_flight, seconds in _rounds(requests, deadline):
        completed.clear()
        for future in in_flight:
            future.add_done_callback(wake_from_thread)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await completed.wait()


def _rounds(requests: Sequence[HedgedRequest[T]], deadline: Deadline) -> Iterator[tuple[list[Future[Reply]], float]]:
    """Advance the requests until all have an outcome; yield what to wait for, and for how many seconds at most."""
    end = deadline.until + _GRACE
    while running := [request for request in requests if request.running]:
        now = time.monotonic()
        if now >= end:
            break
        for request in running:
            request.advance(now)
        in_flight = [future for request in running if request.running for future in request.in_flight]
        if in_flight:
            due = min(end, *(request.hedge_at for request in running))
            yield in_flight, max(0.0, due - time.monotonic())
    for request in requests:
        request.end()
