"""A searcher's service: answer queries from its packs and execute the orchestrator's orders."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final

from app.broker.delivery import Delivery
from app.broker.errors import ApplicationError, InvalidMessage, Undecodable, UnknownType
from app.broker.rpc.responder import Responder, Work
from app.cluster.protocol import MB, Load, Unload, read, to_json
from app.cluster.searcher.loader import Loader
from app.cluster.searcher.pack_jobs import IntegrityCheck
from app.cluster.searcher.packs import OpenPacks
from app.cluster.searcher.reporter import Reporter
from app.counts import SEARCHER_QUERIES, SEARCHER_SECONDS
from app.errors import PackCorrupt
from app.messages.envelopes import decode_envelope
from app.search.contract import SearchReply, SearchRequest, SuggestRequest
from app.search.pack_searcher import PackSearcher
from app.topology.queues import queries_exchange
from app.tracing import span
from config.routes import REGISTER_AGAIN, SEARCHER_TYPES

log = logging.getLogger(__name__)

#: Queries that may wait per thread; more would not be answered before their deadlines.
BACKLOG: Final = 8
#: Bytes of a reply, well below the 16 MB that RabbitMQ 4 accepts by default.
MAX_REPLY: Final = 4 * MB
#: Seconds that a query may take: less than a search client waits.
TIME_LIMIT: Final = 1.0
#: A query is stuck after this many seconds. By then SQLite should have aborted it.
STUCK_SECONDS: Final = 5.0


class QueryHandler:
    """Answers `search` and `suggest` from packs, in any thread, and detects stuck queries."""

    def __init__(
        self, packs: OpenPacks, *, request_check: Callable[[IntegrityCheck], None], threads: int, patience: float
    ) -> None:
        """Call `request_check` for a pack that a query could not read.

        A query that runs for more than `patience` seconds is stuck. `threads` is the number of threads that call
        `search` and `suggest`.
        """
        self._packs = packs
        self._request_check = request_check
        self._threads = threads
        self._patience = patience
        self._running: dict[int, float] = {}

    def is_stuck(self) -> bool:
        """Return whether every thread has been running one query for too long."""
        latest = time.monotonic() - self._patience
        return sum(began < latest for began in tuple(self._running.values())) >= self._threads

    def search(self, payload: dict[str, Any]) -> bytes:
        """Return the results as JSON; raises InvalidMessage, InvalidQuery, NotHere, SearchTimeout, PackCorrupt."""
        request = read(SearchRequest, payload)
        with self._watched("search"), self._lend(request.domain) as searcher:
            return bounded_reply(searcher.reply(request))

    def suggest(self, payload: dict[str, Any]) -> bytes:
        """Return suggestions as a JSON list; raises as `search` does."""
        request = read(SuggestRequest, payload)
        with self._watched("suggest"), self._lend(request.domain) as searcher:
            return to_json(tuple(searcher.suggest(request.q, limit=request.limit)))

    @contextmanager
    def _lend(self, domain: str) -> Iterator[PackSearcher]:
        held = self._packs.version(domain)
        try:
            with self._packs.lend(domain) as searcher:
                yield searcher
        except PackCorrupt as error:
            log.warning("%s: a query failed, the pack will be checked: %s", domain, error)
            if held is not None:
                self._request_check(IntegrityCheck(domain=domain, sha256=held.sha256))
            raise

    @contextmanager
    def _watched(self, kind: str) -> Iterator[None]:
        began = self._running[threading.get_ident()] = time.monotonic()
        outcome = "exception"
        try:
            yield
            outcome = "ok"
        except ApplicationError as error:
            outcome = error.reason
            raise
        finally:
            del self._running[threading.get_ident()]
            SEARCHER_QUERIES.add(kind, outcome)
            SEARCHER_SECONDS.add(kind, amount=time.monotonic() - began)


def bounded_reply(reply: SearchReply) -> bytes:
    """Return a reply as JSON of at most MAX_REPLY bytes; the last hits are left out if their texts are too long."""
    body, hits = to_json(reply), reply.results.hits
    while len(body) > MAX_REPLY and hits:
        hits = hits[: len(hits) * MAX_REPLY // len(body)]
        body = to_json(replace(reply, results=replace(reply.results, hits=hits)))
    return body


class SearcherService:
    """Processes the messages of one searcher's queue."""

    def __init__(
        self,
        *,
        query_handler: QueryHandler,
        responder: Responder,
        loader: Loader,
        reporter: Reporter,
        packs: OpenPacks,
    ) -> None:
        self._query_handler = query_handler
        self._responder = responder
        self._loader = loader
        self._reporter = reporter
        self._packs = packs
        self._started = False

    def take(self, delivery: Delivery) -> None:
        """Pass a query to the responder's threads and an order to the loader; raises InvalidMessage."""
        try:
            payload = decode_envelope(delivery.body, delivery.content_encoding)
        except Undecodable as error:
            self._responder.answer(delivery, partial(_refuse, error))
            return
        match payload.get("type"):
            case "search":
                self._responder.answer(delivery, _traced(delivery, partial(self._query_handler.search, payload)))
            case "suggest":
                self._responder.answer(delivery, _traced(delivery, partial(self._query_handler.suggest, payload)))
            case "load" | "unload" if delivery.exchange == queries_exchange.name:
                raise InvalidMessage(f"an order came from {delivery.exchange}, to which clients publish: {payload}")
            case "load":
                self._loader.submit(read(Load, payload))
            case "unload":
                self._loader.submit(read(Unload, payload))
            case kind if kind == REGISTER_AGAIN:
                self._reporter.register()
            case kind:
                unknown = UnknownType(f"type {kind!r:.100}: expected one of {', '.join(SEARCHER_TYPES)}")
                self._responder.answer(delivery, partial(_refuse, unknown))

    def connected(self) -> None:
        """Register, now that messages arrive. The first time, start the loader, which registers after the recovery."""
        if self._started:
            self._reporter.register()
        else:
            self._started = True
            self._loader.start(recovered=self._reporter.register, report_outcome=self._reporter.report_outcome)

    def close(self) -> None:
        """Finish the running queries and close the packs. The end of the process unlocks the data directory."""
        self._responder.close()
        self._loader.close(1.0)
        self._reporter.close()
        self._packs.close()


def _traced(delivery: Delivery, answer: Work) -> Work:
    """Return the work on a query as a span in the trace of its message."""

    def traced() -> bytes | None:
        with span(lambda: "query", delivery.headers):
            return answer()

    return traced


def _refuse(error: ApplicationError) -> bytes:
    raise error
