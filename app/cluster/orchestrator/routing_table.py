"""The routing table: the searchers of each domain, newest version first, and which one is next."""

from __future__ import annotations

from collections.abc import Set
from itertools import takewhile

from app.cluster.placement.model import Pack
from app.cluster.protocol import PackRoute, PackVersion

#: Removed domains that differences name at most. A client that misses an earlier one gets the whole table.
_REMEMBERED = 1_000


class RoutingTable:
    """Routes by domain, and which of them have changed since a revision of the table."""

    def __init__(self, *, replicas: int) -> None:
        self.routes: dict[str, PackRoute] = {}
        self.revision = 0
        self._replicas = replicas
        self._turns: dict[str, int] = {}
        self._turn = 0
        #: The revision that last changed each domain, and that removed it: the latest last.
        self._changed_at: dict[str, int] = {}
        self._removed_at: dict[str, int] = {}
        #: Changes are complete since this revision.
        self._oldest = 0

    def remove(self, domain: str) -> None:
        """Remove a domain's route."""
        if self.routes.pop(domain, None) is None:
            return
        del self._changed_at[domain]
        self.revision += 1
        self._removed_at[domain] = self.revision
        if len(self._removed_at) > _REMEMBERED:
            self._oldest = self._removed_at.pop(next(iter(self._removed_at)))

    def set(self, pack: Pack, copies: list[tuple[str, PackVersion]], *, trusted: Set[str], reason: str) -> None:
        """Set the route of a domain from the searchers that serve it with their versions.

        `trusted` is a field of ClusterState, and `reason` is why a copy cannot be placed.
        """

        def age(copy: tuple[str, PackVersion]) -> tuple[bool, int, str, str]:
            searcher_id, version = copy
            is_older = version.sha256 != pack.sha256 and version.sha256 not in trusted
            return is_older, -version.generation, version.sha256, searcher_id

        ordered = sorted(copies, key=age)
        up_to_date = sum(not age(copy)[0] for copy in ordered)
        route = PackRoute(
            domain=pack.domain,
            sha256=pack.sha256,
            generation=pack.generation,
            pages=pack.pages,
            built_at=pack.built_at,
            size_mb=pack.size_mb,
            searchers=tuple(searcher_id for searcher_id, _version in ordered),
            newest=sum(version.sha256 == ordered[0][1].sha256 for _, version in ordered),
            missing=max(0, self._replicas - up_to_date),
            unplaced_reason=reason,
        )
        if self.routes.get(pack.domain) != route:
            self.routes[pack.domain] = route
            self.revision += 1
            self._removed_at.pop(pack.domain, None)
            self._changed_at.pop(pack.domain, None)
            self._changed_at[pack.domain] = self.revision

    def changes(self, since: int) -> tuple[list[str], list[str]] | None:
        """Return the domains whose route was set and removed after a revision, or None if they are unknown."""
        if not self._oldest <= since <= self.revision:
            return None
        return _later(self._changed_at, since), _later(self._removed_at, since)

    def next(self, domain: str) -> str | None:
        """Return the searcher with the newest version that was chosen least recently, or None."""
        route = self.routes.get(domain)
        if route is None or not route.searchers:
            return None
        chosen = min(
            route.searchers[: route.newest], key=lambda searcher_id: (self._turns.get(searcher_id, 0), searcher_id)
        )
        self._turn += 1
        self._turns[chosen] = self._turn
        return chosen

    def remove_searcher(self, searcher_id: str) -> None:
        """Drop a removed searcher's turn."""
        self._turns.pop(searcher_id, None)


def _later(changed_at: dict[str, int], since: int) -> list[str]:
    """Return the domains that were changed after a revision, the latest first."""
    return [domain for domain, _revision in takewhile(lambda each: each[1] > since, reversed(changed_at.items()))]
