"""The allocation of packs and room during a placement decision; each order updates it."""

from __future__ import annotations

from collections import defaultdict

from app.cluster.placement.model import LOADS_AT_ONCE, AddressedOrder, ClusterState, Order, Pack
from app.cluster.protocol import PackVersion, Unload

Ids = dict[str, set[str]]
_NONE: frozenset[str] = frozenset()


class Allocation:
    """Packs, copies, orders and room per searcher during one decision.

    `fresh`, `stale` and `coming` are searcher ids by domain. Fresh searchers serve the newest version and stale ones
    another version; coming ones have an order to load the newest. `pending` has the orders by searcher and domain.
    `room` is in MB, less the room that ordered loads need, and `freed` is what ordered unloads will add to it. A copy
    with an order to unload is not served any more, but its room is not free yet. Searchers that are leaving are left
    out. Sums are kept, because a decision needs them for each of thousands of packs.
    """

    def __init__(self, state: ClusterState) -> None:
        self.packs = state.packs
        self.searchers = {
            each.searcher_id: each
            for each in sorted(state.searchers, key=lambda searcher: searcher.searcher_id)
            if not each.leaving
        }
        self.want = min(state.replicas, len(self.searchers))
        self.orders: list[AddressedOrder] = []
        self.room: dict[str, int] = {}
        self.freed: dict[str, int] = {}
        self._loads: dict[str, int] = {}
        self._is_unloading = False
        self._surplus: set[str] | None = None
        self.pending: dict[str, dict[str, Order]] = {}
        self.fresh: Ids = defaultdict(set)
        self.stale: Ids = defaultdict(set)
        self.coming: Ids = defaultdict(set)
        for searcher_id, searcher in self.searchers.items():
            self.room[searcher_id] = searcher.free
            self.freed[searcher_id] = self._loads[searcher_id] = 0
            self.pending[searcher_id] = {}
            for version in searcher.held.values():
                pack = self.packs.get(version.domain)
                if pack is not None:
                    newest = version.sha256 == pack.sha256 or version.sha256 in state.trusted
                    (self.fresh if newest else self.stale)[version.domain].add(searcher_id)
            for order in searcher.orders.values():
                self._apply(searcher_id, order)

    def _apply(self, searcher_id: str, order: Order) -> None:
        self.pending[searcher_id][order.domain] = order
        if isinstance(order, Unload):
            self.fresh[order.domain].discard(searcher_id)
            self.stale[order.domain].discard(searcher_id)
            self._is_unloading = True
            held = self.searchers[searcher_id].held.get(order.domain)
            self.freed[searcher_id] += held.size_mb if held else 0
        else:
            self.room[searcher_id] -= order.size_mb
            self._loads[searcher_id] += 1
            pack = self.packs.get(order.domain)
            if pack is not None and pack.sha256 == order.sha256:
                self.coming[order.domain].add(searcher_id)
        if self._surplus is not None:
            (self._surplus.add if self.copies(order.domain) > self.want else self._surplus.discard)(order.domain)

    def load(self, searcher_id: str, pack: Pack, reason: str) -> None:
        """Order a searcher to load the newest version of a pack."""
        order = pack.load()
        self._apply(searcher_id, order)
        self.orders.append(AddressedOrder(searcher_id=searcher_id, order=order, reason=reason))

    def unload(self, searcher_id: str, domain: str, reason: str) -> None:
        """Order a searcher to unload its version of a domain's pack."""
        order = Unload(domain=domain, sha256=self.version(searcher_id, domain).sha256)
        self._apply(searcher_id, order)
        self.orders.append(AddressedOrder(searcher_id=searcher_id, order=order, reason=reason))

    def version(self, searcher_id: str, domain: str) -> PackVersion:
        """Return the version of a domain's pack on a searcher."""
        return self.searchers[searcher_id].held[domain]

    def copies(self, domain: str) -> int:
        """Return the number of copies of the newest version, including ordered loads."""
        fresh, coming = self.fresh.get(domain, _NONE), self.coming.get(domain, _NONE)
        return len(fresh | coming) if coming else len(fresh)

    def serving(self, domain: str) -> set[str]:
        """Return the searchers that serve any version of a domain's pack."""
        return self.fresh[domain] | self.stale[domain]

    def is_changing(self, domain: str) -> bool:
        """Return whether a searcher without the newest version cannot get an order for the domain now, but may soon."""
        others = self.searchers.keys() - self.fresh[domain] - self.coming[domain]
        return any(not self.free_to_order(searcher_id, domain) for searcher_id in others)

    def free_to_order(self, searcher_id: str, domain: str) -> bool:
        """Return whether the searcher has no pending order for the domain and is not backing off."""
        searcher = self.searchers[searcher_id]
        held = searcher.held.get(domain)
        return domain not in self.pending[searcher_id] and (held is None or held.sha256 not in searcher.backing_off)

    def is_busy(self, searcher_id: str) -> bool:
        """Return whether a searcher has `LOADS_AT_ONCE` pending loads."""
        return self._loads[searcher_id] >= LOADS_AT_ONCE

    def is_every_searcher_busy(self) -> bool:
        """Return whether no searcher takes a further load."""
        return all(count >= LOADS_AT_ONCE for count in self._loads.values())

    def may_load(self, searcher_id: str, pack: Pack) -> bool:
        """Return whether a searcher could be ordered to load a pack, given enough room and a free load."""
        return searcher_id not in self.fresh[pack.domain] and self.free_to_order(searcher_id, pack.domain)

    def is_backing_off(self, searcher_id: str, pack: Pack) -> bool:
        """Return whether a searcher is backing off from this version after a failed load."""
        return pack.sha256 in self.searchers[searcher_id].backing_off

    def failures(self, searcher_id: str, pack: Pack) -> int:
        """Return the number of failed loads of this version on a searcher."""
        failure = self.searchers[searcher_id].failures.get(pack.sha256)
        return failure.count if failure else 0

    def may_spare(self, searcher_id: str, domain: str) -> bool:
        """Return whether a searcher's copy can be unloaded while another searcher serves the newest version."""
        return (
            searcher_id in self.serving(domain)
            and self.free_to_order(searcher_id, domain)
            and bool(self.fresh[domain] - {searcher_id})
        )

    def is_unloading(self) -> bool:
        """Return whether any order to unload is pending."""
        return self._is_unloading

    def has_surplus(self) -> bool:
        """Return whether any domain has more copies than wanted, including ordered loads."""
        if self._surplus is None:
            self._surplus = {domain for domain in self.packs if self.copies(domain) > self.want}
        return bool(self._surplus)
