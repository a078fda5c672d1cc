"""The search client for packs on this machine: no broker, no searcher, no store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from app.cluster.protocol import Node, Route, Routes, size_mb
from app.errors import PackNotFound
from app.search.contract import SearchReply, SearchRequest, SearchResult, SuggestRequest
from app.search.pack_searcher import PackSearcher
from app.search.query import parse

R = TypeVar("R")
T = TypeVar("T")

#: The searcher that `routes` names for all packs.
LOCAL = "local"


class LocalSearchClient(SearchClient):
    """Searches unpacked packs; each domain of a search may take `time_limit` seconds."""

    def __init__(self, packs: Mapping[str, Path] | Iterable[Path], *, time_limit: float = 5.0) -> None:
        """Open packs: files that name their domain themselves, or domains with their files.

        Raises PackNotFound for a missing file, PackCorrupt for a file that is no pack.
        """
        self._searchers: dict[str, PackSearcher] = {}
        with ExitStack() as opened:
            for name, path in packs.items() if isinstance(packs, Mapping) else (("", path) for path in packs):
                searcher = opened.enter_context(closing(PackSearcher(path, time_limit=time_limit)))
                self._searchers[name or searcher.info.domain] = searcher
            opened.pop_all()

    def routes(self) -> Routes:
        """Return the packs as those of one searcher."""
        routes = tuple(_route(domain, searcher) for domain, searcher in self._searchers.items())
        node = Node(searcher_id=LOCAL, free_space=0, capacity=0, age=0.0, domains=tuple(self._searchers))
        return Routes(orchestrator=LOCAL, version=1, settled=True, routes=routes, searchers=(node,))

    def search(self, request: SearchRequest) -> SearchResult:
        """Search one domain after the other."""
        began = time.perf_counter()
        request = validate_request(request)
        outcomes = {part.domain: _outcome(self._search_pack, part) for part in split_by_domain(request)}
        return merge(request, outcomes, time.perf_counter() - began)

    def suggest(self, domains: Sequence[str], q: str, *, limit: int = 8) -> tuple[str, ...]:
        """Return queries that start with `q`."""
        parts = split_suggestions(domains, q, limit)
        replies, _ = gather_replies({part.domain: _outcome(self._suggest_from_pack, part) for part in parts})
        return interleave(replies, limit=limit)

    def close(self) -> None:
        """Close the packs."""
        for searcher in self._searchers.values():
            searcher.close()

    def _search_pack(self, request: SearchRequest) -> SearchReply:
        searcher = self._searcher(request.domain)
        results = searcher.search(
            parse(request.q), offset=request.offset, limit=request.limit, sort=request.sort, filters=request.filters
        )
        return SearchReply(info=searcher.info, results=results)

    def _suggest_from_pack(self, request: SuggestRequest) -> tuple[str, ...]:
        return self._searcher(request.domain).suggest(request.q, limit=request.limit)

    def _searcher(self, domain: str) -> PackSearcher:
        if domain not in self._searchers:
            raise PackNotFound(f"{domain} has no pack")
        return self._searchers[domain]


def _outcome(answer: Callable[[R], T], request: R) -> T | ApplicationError:
    try:
        return answer(request)
    except ApplicationError as error:
        return error


def _route(domain: str, searcher: PackSearcher) -> Route:
    info = searcher.info
    return Route(
        domain=domain,
        sha256="",
        generation=int(info.generation) if info.generation.isdigit() else 0,
        pages=info.pages,
        built_at=info.built_at,
        size_mb=size_mb(searcher.path.stat().st_size),
        searchers=(LOCAL,),
        newest=1,
    )
