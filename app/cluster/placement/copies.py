"""The copies of each pack, kept from one placement decision to the next: only what changed is counted again."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

from app.cluster.placement.model import ClusterState, Order, Pack, SearcherState
from app.cluster.protocol import Unload

#: Copies, older versions, size (larger packs first) and domain of a pack that lacks copies.
_Urgency = tuple[int, int, int, str]


class Holders(dict[str, set[str]]):
    """Searcher ids by domain. A domain without any has an empty set, which is not kept."""

    def __missing__(self, domain: str) -> set[str]:
        return set()

    def replace(self, domain: str, searcher_ids: set[str]) -> None:
        """Set the searchers of a domain."""
        if searcher_ids:
            self[domain] = searcher_ids
        else:
            self.pop(domain, None)


class Copies:
    """Which searchers have which pack, and which packs have too few or too many copies.

    `fresh` searchers serve the newest version and `stale` ones another version; `coming` ones have an order to load the
    newest. A copy with an order to unload is not served any more. Copies are the fresh and the coming: `missing` are
    the domains with fewer than wanted, and `surplus` those with more.

    The caller adds to `changed` each domain of which the pack, a searcher's version or the trust in it has changed.
    """

    def __init__(self) -> None:
        self.changed: set[str] = set()
        self.want = 0
        self._searchers: tuple[str, ...] = ()
        self._clear()

    def _clear(self) -> None:
        self.fresh, self.stale, self.coming = Holders(), Holders(), Holders()
        self.missing: set[str] = set()
        self.surplus: set[str] = set()
        self._packs: Mapping[str, Pack] = {}
        #: Domains with an order: it can end without a change of the domain.
        self._ordered: set[str] = set()
        #: A heap of the missing packs. An entry counts if it is the one in `_queued`.
        self._queue: list[_Urgency] = []
        self._queued: dict[str, _Urgency] = {}

    def update(self, state: ClusterState, searchers: Mapping[str, SearcherState]) -> None:
        """Count the changed domains; all of them if other searchers can be used than in the last decision."""
        want, searcher_ids = min(state.replicas, len(searchers)), tuple(searchers)
        domains: Iterable[str] = self.changed | self._ordered
        if (want, searcher_ids) != (self.want, self._searchers):
            self._clear()
            self.want, self._searchers, domains = want, searcher_ids, state.packs
        self._packs = state.packs
        self._ordered = set()
        for domain in domains:
            fresh, stale = set[str](), set[str]()
            pack = self._packs.get(domain)
            for searcher_id, searcher in searchers.items():
                version = searcher.held.get(domain)
                if pack and version:
                    is_newest = version.sha256 == pack.sha256 or version.sha256 in state.trusted
                    (fresh if is_newest else stale).add(searcher_id)
            self.fresh.replace(domain, fresh)
            self.stale.replace(domain, stale)
            self.coming.pop(domain, None)
            self._sort(domain)
        self.changed.clear()
        for searcher_id, searcher in searchers.items():
            for order in searcher.orders.values():
                self.apply(searcher_id, order)

    def apply(self, searcher_id: str, order: Order) -> None:
        """Apply an order."""
        domain = order.domain
        if isinstance(order, Unload):
            self.fresh.replace(domain, self.fresh[domain] - {searcher_id})
            self.stale.replace(domain, self.stale[domain] - {searcher_id})
        elif (pack := self._packs.get(domain)) is not None and pack.sha256 == order.sha256:
            self.coming.replace(domain, self.coming[domain] | {searcher_id})
        self._ordered.add(domain)
        self._sort(domain)

    def _sort(self, domain: str) -> None:
        """Note whether a domain has too few or too many copies."""
        copies = self.count(domain)
        is_missing = domain in self._packs and copies < self.want
        (self.missing.add if is_missing else self.missing.discard)(domain)
        (self.surplus.add if copies > self.want else self.surplus.discard)(domain)
        if is_missing:
            self.queue(domain)

    def count(self, domain: str) -> int:
        """Return the number of copies of the newest version, including ordered loads."""
        coming = self.coming.get(domain)
        return len(self.fresh[domain] | coming) if coming else len(self.fresh[domain])

    def queue(self, domain: str) -> None:
        """Queue a missing pack: fewest copies first, then the largest pack."""
        urgency = self.count(domain), len(self.stale[domain]), -self._packs[domain].size_mb, domain
        if self._queued.get(domain) != urgency:
            self._queued[domain] = urgency
            heapq.heappush(self._queue, urgency)

    def next_missing(self) -> Pack | None:
        """Remove the most urgent missing pack from the queue and return it, or None."""
        while self._queue:
            urgency = heapq.heappop(self._queue)
            domain = urgency[-1]
            if self._queued.get(domain) == urgency:
                del self._queued[domain]
                if domain in self.missing:
                    return self._packs[domain]
        return None

    def largest_missing(self) -> int:
        """Return the MB of the largest missing pack."""
        return max((self._packs[domain].size_mb for domain in self.missing), default=0)
