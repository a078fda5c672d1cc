"""Finding through searchers: whoever has a domain is asked directly, and another one if that one does not answer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from app.broker.errors import ApplicationError
from app.broker.rpc.requestor import Reply, Requestor
from app.cluster.client.asking import answered, checked, requests_of, suggestion_requests
from app.cluster.client.contract import SearchClient
from app.cluster.client.hedging import HedgedRequest, Span, arun, run
from app.cluster.client.merge import interleave, merge
from app.cluster.client.route_cache import MAX_AGE, RouteCache
from app.cluster.client.tally import RequestCounts
from app.cluster.protocol import Route, Routes, to_payload
from app.envelopes import request, searcher_message
from app.errors import NotPlaced, PackNotFound, SearchUnavailable
from app.search.contract import SearchReply, SearchRequest, SearchResult, SuggestRequest
from app.topology.queues import requests_exchange
from config.settings import Settings

T = TypeVar("T")
#: What a searcher is asked.
Asked = SearchRequest | SuggestRequest
#: Errors that newer routes, or a new connection, may spare.
_IN_VAIN = (PackNotFound, NotPlaced, SearchUnavailable)

#: The part of the deadline after which a silent searcher is helped by the next one.
_HEDGE = 0.1
#: Seconds in which a searcher that was silent, or of no use, is asked after the others.
_SILENCE = 5.0
#: Searches of an event loop that may wait for newer routes at the same time.
_THREADS = 32
#: Seconds after which nobody reads suggestions any more.
_SUGGESTION_DEADLINE = 1.0


class ClusterSearchClient(SearchClient):
    """A Finder that asks searchers over the broker, from any thread.

    Which of them has what, the orchestrator tells; while it is away, what it told last holds.
    """

    def __init__(self, url: str, *, deadline: float = 3.0) -> None:
        """Ask by the broker at `url`; an answer takes at most `deadline` seconds. Connects when first used."""
        self._deadline = deadline
        self._requestor = Requestor(url, timeout=deadline, exchanges=[requests_exchange])
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="finder")
        self._tally = RequestCounts()
        self._directory = RouteCache(self._ask_routes, deadline=deadline, tally=self._tally)
        self._flying: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._silent: dict[str, float] = {}

    @classmethod
    def of(cls, settings: Settings) -> ClusterSearchClient:
        """Return the finder that the settings describe."""
        return cls(settings.broker, deadline=settings.search_deadline)

    def counts(self) -> dict[str, int]:
        """Return what became of requests since the start, by the names in app/cluster/client/tally.py."""
        return self._tally.read()

    def routes(self) -> Routes:
        """Return what the orchestrator told last; raises SearchUnavailable where it never did."""
        return self._directory.routes(until=time.monotonic() + self._deadline)

    def search(self, question: SearchRequest) -> SearchResult:
        """Search all domains at the same time."""
        began = time.perf_counter()
        question = checked(question)
        self._tally.add("searches")
        return _found(question, self._ask(SearchReply, requests_of(question), seconds=self._deadline), began)

    async def asearch(self, question: SearchRequest) -> SearchResult:
        """Search without a thread, where the first round of questions settles it, as nearly always."""
        began = time.perf_counter()
        question = checked(question)
        self._tally.add("searches")
        return _found(question, await self._aask(requests_of(question), seconds=self._deadline), began)

    def suggest(self, domains: Sequence[str], q: str, *, limit: int = 8) -> tuple[str, ...]:
        """Return queries that `q` may be the beginning of."""
        requests = suggestion_requests(domains, q, limit)
        self._tally.add("suggestions")
        seconds = min(_SUGGESTION_DEADLINE, self._deadline)
        answers, _ = answered(self._ask(tuple[str, ...], requests, seconds=seconds))
        return interleave(answers, limit=limit)

    def close(self) -> None:
        """Close the connection."""
        self._requestor.close()
        self._threads.shutdown(wait=False)

    def _ask(self, kind: type[T], requests: Sequence[Asked], *, seconds: float) -> dict[str, T | ApplicationError]:
        """Ask about every domain."""
        span = Span.of(seconds, hedge=_HEDGE * self._deadline)
        races = self._races(kind, requests, self._directory.routes(until=span.until), span)
        run(races, span)
        return self._settled(kind, requests, races, span)

    async def _aask(
        self, requests: Sequence[SearchRequest], *, seconds: float
    ) -> dict[str, SearchReply | ApplicationError]:
        """Ask about every domain; a thread is taken only where routes have to be awaited."""
        in_thread = partial(asyncio.get_running_loop().run_in_executor, self._threads)
        span = Span.of(seconds, hedge=_HEDGE * self._deadline)
        routes = self._directory.at_once()
        if routes is None:
            return await in_thread(partial(self._ask, SearchReply, requests, seconds=seconds))
        races = self._races(SearchReply, requests, routes, span)
        await arun(races, span)
        settled = partial(self._settled, SearchReply, requests, races, span)
        in_vain = any(isinstance(race.outcome(), _IN_VAIN) for race in races)
        return await in_thread(settled) if in_vain else settled()

    def _settled(
        self, kind: type[T], requests: Sequence[Asked], races: Sequence[HedgedRequest[T]], span: Span
    ) -> dict[str, T | ApplicationError]:
        """Return what the races came to; by newer routes again, where nobody was found who knows of a domain."""
        if astray := any(race.astray for race in races):
            self._directory.doubt()
        outcomes = {race.domain: race.outcome() for race in races}
        again = [request for request in requests if isinstance(outcomes[request.domain], _IN_VAIN)]
        if not again:
            return outcomes
        routes = self._directory.renewed(time.monotonic() if astray else span.began - MAX_AGE, until=span.until)
        if routes is None:
            return {domain: _doubtful(domain, outcome) for domain, outcome in outcomes.items()}
        gone = {replica for race in races for replica in race.gone}
        races = self._races(kind, again, routes, span, gone)
        run(races, span)
        return outcomes | {race.domain: race.outcome() for race in races}

    def _races(
        self,
        kind: type[T],
        requests: Sequence[Asked],
        routes: Routes,
        span: Span,
        gone: Container[str] = (),
    ) -> list[HedgedRequest[T]]:
        """Return the races to be run for the requests, among searchers that are not `gone`."""
        known = {route.domain: route for route in routes.routes}
        return [
            HedgedRequest(
                kind,
                request.domain,
                [replica for replica in self._in_order(known.get(request.domain)) if replica not in gone],
                absent=_absent(request.domain, known.get(request.domain)),
                span=span,
                send=partial(self._send, request),
                silent=self._note,
                tally=self._tally,
            )
            for request in requests
        ]

    def _in_order(self, route: Route | None) -> list[str]:
        """Return who has a domain: the newest version first, of these the one with the fewest requests before it.

        Among equals always the same one, whose caches are warm. Last comes who was silent, gone or of no use just now.
        """
        if route is None:
            return []
        newest, now = route.newest or len(route.searchers), time.monotonic()
        parts = (route.searchers[:newest], route.searchers[newest:])
        order = [replica for part in parts for replica in sorted(part, key=self._flying.__getitem__)]
        return sorted(order, key=lambda replica: self._silent.get(replica, 0.0) > now)

    def _send(self, wanted: Asked, replica: str, seconds: float) -> Future[Reply]:
        kind = "search" if isinstance(wanted, SearchRequest) else "suggest"
        self._count(replica, 1)
        sent = self._requestor.send(searcher_message(replica, kind, to_payload(wanted)), deadline=seconds)
        sent.add_done_callback(lambda _done: self._count(replica, -1))
        return sent

    def _count(self, replica: str, change: int) -> None:
        """Note that a request went to a searcher, or that it is over; of one with none, nothing is kept."""
        with self._lock:
            self._flying[replica] += change
            if not self._flying[replica]:
                del self._flying[replica]

    def _note(self, replica: str, silent: bool) -> None:
        """Remember whether a searcher is worth asking first."""
        if silent:
            self._silent[replica] = time.monotonic() + _SILENCE
        else:
            self._silent.pop(replica, None)

    def _ask_routes(self, deadline: float) -> Future[Reply]:
        return self._requestor.send(request("get_routes", {}), deadline=deadline)


def _found(
    question: SearchRequest, outcomes: Mapping[str, SearchReply | ApplicationError], began: float
) -> SearchResult:
    """Return what the domains' answers come to; raises what `answered` raises."""
    answers, silent = answered(outcomes)
    return merge(question, answers, seconds=time.perf_counter() - began, silent=silent)


def _absent(domain: str, route: Route | None) -> ApplicationError:
    """Return why nobody can be asked about a domain, by its route."""
    if route is None:
        return PackNotFound(f"{domain} was never indexed")
    return NotPlaced(f"{domain} is on no searcher at the moment" + (f": {route.why}" if route.why else ""))


def _doubtful(domain: str, outcome: T | ApplicationError) -> T | ApplicationError:
    """Return what is told of a domain while nobody says who has what: one that was not known may be there by now."""
    if isinstance(outcome, PackNotFound):
        return SearchUnavailable(f"the orchestrator does not say at the moment whether {domain} was indexed")
    return outcome
