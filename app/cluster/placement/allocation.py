"""The allocation of packs and room during a placement decision; each order updates it."""

from __future__ import annotations

from collections import defaultdict

from app.cluster.placement.model import LOADS_AT_ONCE, AddressedOrder, ClusterState, Order, Pack
from app.cluster.protocol import Load, PackVersion, Unload

Ids = dict[str, set[str]]


class Allocation:
    """Packs, copies, orders and room per searcher during one decision.

    `fresh`, `stale` and `coming` are searcher ids by domain. Fresh searchers serve the newest version and stale ones
    another version; coming ones have an order to load the newest. `pending` has the orders by searcher and domain.
    `room` is in MB, less the room that ordered loads need. A copy with an order to unload is not served any more, but
    its room is not free yet. Searchers that are leaving are left out.
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
        self.pending: dict[str, dict[str, Order]] = {}
        self.fresh: Ids = defaultdict(set)
        self.stale: Ids = defaultdict(set)
        self.coming: Ids = defaultdict(set)
        for searcher_id, searcher in self.searchers.items():
            self.room[searcher_id] = searcher.free
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
            return
        self.room[searcher_id] -= order.size_mb
        pack = self.packs.get(order.domain)
        if pack is not None and pack.sha256 == order.sha256:
            self.coming[order.domain].add(searcher_id)

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
        return len(self.fresh[domain] | self.coming[domain])

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
        return sum(isinstance(order, Load) for order in self.pending[searcher_id].values()) >= LOADS_AT_ONCE

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
        return any(isinstance(order, Unload) for orders in self.pending.values() for order in orders.values())

    def has_surplus(self) -> bool:
        """Return whether any domain has more copies than wanted, including ordered loads."""
        return any(self.copies(domain) > self.want for domain in self.packs)
