"""The search client for packs on this machine: no broker, no searcher, no store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TypeVar

from app.broker.errors import ApplicationError
from app.cluster.client.contract import SearchClient
from app.cluster.client.scatter_gather import (
    gather_replies,
    interleave,
    merge,
    split_by_domain,
    split_suggestions,
    validate_request,
)
from app.cluster.protocol import PackRoute, Routes, SearcherStatus, size_mb
from app.errors import PackNotFound
from app.search.contract import SearchRequest, SearchResult, SuggestRequest
from app.search.pack_searcher import PackSearcher

R = TypeVar("R", SearchRequest, SuggestRequest)
T = TypeVar("T")

#: The searcher that `routes` names for all packs.
LOCAL = "local"


class LocalSearchClient(SearchClient):
    """Searches unpacked packs; each domain of a search may take `time_limit` seconds."""

    def __init__(self, packs: Iterable[Path], *, time_limit: float = 5.0) -> None:
        """Open packs, which name their domain themselves.

        Raises PackNotFound for a missing file, PackCorrupt for a file that is no pack.
        """
        self._searchers: dict[str, PackSearcher] = {}
        with ExitStack() as opened:
            for path in packs:
                searcher = opened.enter_context(closing(PackSearcher(path, time_limit=time_limit)))
                self._searchers[searcher.info.domain] = searcher
            self._opened = opened.pop_all()

    def routes(self) -> Routes:
        """Return the packs as those of one searcher."""
        routes = tuple(
            PackRoute(
                domain=domain,
                sha256="",
                generation=int(searcher.info.generation) if searcher.info.generation.isdigit() else 0,
                pages=searcher.info.pages,
                built_at=searcher.info.built_at,
                size_mb=size_mb(searcher.path.stat().st_size),
                searchers=(LOCAL,),
                newest=1,
            )
            for domain, searcher in self._searchers.items()
        )
        node = SearcherStatus(searcher_id=LOCAL, free_space=0, capacity=0, age=0.0, packs=len(self._searchers))
        return Routes(orchestrator=LOCAL, ready=True, routes=routes, searchers=(node,))

    def search(self, request: SearchRequest) -> SearchResult:
        """Search one domain after the other."""
        began = time.perf_counter()
        request = validate_request(request)
        outcomes = self._ask(PackSearcher.reply, split_by_domain(request))
        return merge(request, outcomes, time.perf_counter() - began)

    def suggest(self, domains: Sequence[str], q: str, *, limit: int = 8) -> tuple[str, ...]:
        """Return queries that start with `q`."""
        parts = split_suggestions(domains, q, limit)
        replies, _ = gather_replies(self._ask(lambda searcher, part: searcher.suggest(part.q, limit=part.limit), parts))
        return interleave(replies, limit=limit)

    def close(self) -> None:
        """Close the packs, also one whose domain a later one has, too."""
        self._opened.close()

    def _ask(self, answer: Callable[[PackSearcher, R], T], requests: Iterable[R]) -> dict[str, T | ApplicationError]:
        """Return the answer to each request from the pack of its domain, or the error in its place, by domain."""
        outcomes: dict[str, T | ApplicationError] = {}
        for request in requests:
            domain = request.domain
            try:
                if domain not in self._searchers:
                    raise PackNotFound(f"{domain} has no pack")
                outcomes[domain] = answer(self._searchers[domain], request)
            except ApplicationError as error:
                outcomes[domain] = error
        return outcomes
