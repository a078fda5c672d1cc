"""The routing table: the searchers of each domain, newest version first, and which one is next."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from app.cluster.orchestrator.searcher_record import SearcherRecord
from app.cluster.placement.model import Pack
from app.cluster.protocol import PackRoute, PackVersion


class RoutingTable:
    """Routes by domain."""

    def __init__(self, *, replicas: int) -> None:
        self.routes: dict[str, PackRoute] = {}
        self._replicas = replicas
        self._newest: dict[str, tuple[str, ...]] = {}
        self._turns: dict[str, int] = {}
        self._turn = 0

    def build(
        self,
        packs: Iterable[Pack],
        records: Iterable[SearcherRecord],
        *,
        trusted: frozenset[str],
        unplaced: Mapping[str, str],
    ) -> None:
        """Rebuild the table. `trusted` is a field of ClusterState, `unplaced` a field of Placement."""
        copies: dict[str, list[tuple[str, PackVersion]]] = defaultdict(list)
        for record in records:
            for version in record.versions():
                if record.serves(version.domain):
                    copies[version.domain].append((record.report.searcher_id, version))
        self.routes, self._newest = {}, {}
        for pack in packs:
            self._add(pack, copies[pack.domain], trusted, unplaced.get(pack.domain, ""))

    def _add(self, pack: Pack, copies: list[tuple[str, PackVersion]], trusted: frozenset[str], reason: str) -> None:
        def age(copy: tuple[str, PackVersion]) -> tuple[bool, int, str]:
            searcher_id, version = copy
            return version.sha256 != pack.sha256 and version.sha256 not in trusted, -version.generation, searcher_id

        ordered = sorted(copies, key=age)
        newest = tuple(searcher_id for searcher_id, version in ordered if version.sha256 == ordered[0][1].sha256)
        up_to_date = sum(not age(copy)[0] for copy in ordered)
        self._newest[pack.domain] = newest
        self.routes[pack.domain] = PackRoute(
            domain=pack.domain,
            sha256=pack.sha256,
            generation=pack.generation,
            pages=pack.pages,
            built_at=pack.built_at,
            size_mb=pack.size_mb,
            searchers=tuple(searcher_id for searcher_id, _version in ordered),
            newest=len(newest),
            missing=max(0, self._replicas - up_to_date),
            why=reason,
        )

    def next(self, domain: str) -> str | None:
        """Return the searcher with the newest version that was chosen least recently, or None."""
        newest = self._newest.get(domain)
        if not newest:
            return None
        chosen = min(newest, key=lambda searcher_id: (self._turns.get(searcher_id, 0), searcher_id))
        self._turn += 1
        self._turns[chosen] = self._turn
        return chosen

    def remove(self, searcher_id: str) -> None:
        """Drop a removed searcher's turn; `build` drops it from the routes."""
        self._turns.pop(searcher_id, None)
