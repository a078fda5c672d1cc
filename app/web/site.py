"""A finder of the packs of one store, in this process: until the router takes its place."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

from app.crawl.urls import domain_named
from app.errors import InvalidMessage, PerennialError
from app.pack.read import Manifest, fetch_pack, list_manifests, read_manifest
from app.router.finder import Found, Question
from app.search.library import Library
from app.search.messages import MB, Route, Routes
from app.search.query import parse
from app.search.results import Answer
from app.storage.store import ObjectStore


class StoreFinder:
    """The packs of one store, from any thread. Looks at the store at most every `recheck` seconds."""

    def __init__(self, store: ObjectStore, folder: Path, *, recheck: float = 1.0, time_limit: float = 1.0) -> None:
        """Keep unpacked packs below `folder`; let a search take `time_limit` seconds."""
        self._store = store
        self._recheck = recheck
        self._lock = threading.Lock()
        self._routes = Routes(orchestrator="store", version=0, settled=True, routes=(), searchers=())
        self._listed = float("-inf")
        self._library = Library(
            folder,
            fetch=lambda domain, into: fetch_pack(store, domain, into),
            version=lambda domain: read_manifest(store, domain).sha256,
            recheck=recheck,
            time_limit=time_limit,
        )

    def routes(self) -> Routes:
        """Return all packs, each answered for by this process; raises StoreError."""
        with self._lock:
            if time.monotonic() - self._listed >= self._recheck:
                manifests = sorted(list_manifests(self._store), key=lambda manifest: manifest.domain)
                routes = tuple(_route(manifest) for manifest in manifests)
                self._routes = Routes(orchestrator="store", version=0, settled=True, routes=routes, searchers=())
                self._listed = time.monotonic()
            return self._routes

    def search(self, question: Question) -> Found:
        """Search; of several domains, the best of each, by score."""
        began = time.perf_counter()
        if not question.domains:
            raise InvalidMessage("name the domain to search")
        answers, silent = [], []
        for domain in question.domains:
            try:
                answers.append(self._answer(domain_named(domain), question))
            except PerennialError as error:
                if len(question.domains) == 1 or error.permanent:
                    raise
                silent.append((domain, str(error)))
        hits = [hit for answer in answers for hit in answer.results.hits]
        if len(answers) > 1:
            hits.sort(key=lambda hit: -hit.score)
        total = sum(answer.results.total for answer in answers)
        return Found(
            total=total,
            capped=any(answer.results.capped for answer in answers),
            relaxed=any(answer.results.relaxed for answer in answers),
            hits=tuple(hits[: question.limit]),
            reachable=total,
            seconds=time.perf_counter() - began,
            sources=tuple(answer.info for answer in answers),
            silent=tuple(silent),
        )

    def suggest(self, domains: Sequence[str], q: str, *, limit: int = 8) -> tuple[str, ...]:
        """Suggest nothing."""
        del domains, q, limit
        return ()

    def close(self) -> None:
        """Close all packs and remove their files."""
        self._library.close()

    def _answer(self, domain: str, question: Question) -> Answer:
        query = parse(question.q)
        with self._library.searcher(domain) as searcher:
            results = searcher.search(query, offset=question.offset, limit=question.limit)
            return Answer(info=searcher.info, results=results)


def _route(manifest: Manifest) -> Route:
    return Route(
        domain=manifest.domain,
        sha256=manifest.sha256,
        generation=manifest.generation,
        pages=manifest.pages,
        built_at=manifest.built_at,
        size_mb=-(-manifest.uncompressed_size // MB),
        searchers=("store",),
    )
