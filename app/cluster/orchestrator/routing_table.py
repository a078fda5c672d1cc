"""The routing table: the searchers of each domain, newest version first, and which one is next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from app.cluster.orchestrator.searcher_record import SearcherRecord
from app.cluster.placement.model import Pack
from app.cluster.protocol import Holding, Route


class RoutingTable:
    """Routes by domain. `version` increases whenever the searchers of a domain or its version change."""

    def __init__(self, *, replicas: int) -> None:
        self.version = 0
        self.routes: dict[str, Route] = {}
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
        """Rebuild the table. `trusted` and `unplaced` are as app/cluster/placement/model.py has them."""
        before = {domain: (route.sha256, route.searchers) for domain, route in self.routes.items()}
        holders = _holders(records)
        self.routes, self._newest = {}, {}
        for pack in packs:
            self._add(pack, holders.get(pack.domain, ()), trusted, unplaced.get(pack.domain, ""))
        after = {domain: (route.sha256, route.searchers) for domain, route in self.routes.items()}
        self.version += before != after

    def _add(self, pack: Pack, holders: Iterable[tuple[str, Holding]], trusted: frozenset[str], why: str) -> None:
        def age(holder: tuple[str, Holding]) -> tuple[bool, int, str]:
            ident, holding = holder
            return holding.sha256 != pack.sha256 and holding.sha256 not in trusted, -holding.generation, ident

        ordered = sorted(holders, key=age)
        newest = tuple(ident for ident, holding in ordered if holding.sha256 == ordered[0][1].sha256)
        up_to_date = sum(not age(holder)[0] for holder in ordered)
        self._newest[pack.domain] = newest
        self.routes[pack.domain] = Route(
            domain=pack.domain,
            sha256=pack.sha256,
            generation=pack.generation,
            pages=pack.pages,
            built_at=pack.built_at,
            size_mb=pack.size_mb,
            searchers=tuple(ident for ident, _ in ordered),
            newest=len(newest),
            missing=max(0, self._replicas - up_to_date),
            why=why,
        )

    def next(self, domain: str) -> str | None:
        """Return the searcher with the newest version that was chosen least recently."""
        newest = self._newest.get(domain)
        if not newest:
            return None
        chosen = min(newest, key=lambda ident: (self._turns.get(ident, 0), ident))
        self._turn += 1
        self._turns[chosen] = self._turn
        return chosen

    def forget(self, searcher_id: str) -> None:
        """Drop a removed searcher."""
        self._turns.pop(searcher_id, None)


def _holders(records: Iterable[SearcherRecord]) -> dict[str, list[tuple[str, Holding]]]:
    holders: dict[str, list[tuple[str, Holding]]] = {}
    for each in records:
        for holding in each.report.holdings:
            if each.answers(holding.domain):
                holders.setdefault(holding.domain, []).append((each.report.searcher_id, holding))
    return holders
