"""The allocation of packs and room during a placement decision; each order updates it."""

from __future__ import annotations

from app.cluster.placement.copies import Copies
from app.cluster.placement.model import LOADS_AT_ONCE, AddressedOrder, ClusterState, Order, Pack
from app.cluster.protocol import PackVersion, Unload


class Allocation:
    """Packs, copies, orders and room per searcher during one decision.

    `pending` has the orders by searcher and domain. `room` is in MB, less the room that ordered loads need. `freed`
    is what ordered unloads will add to it, since the room of a copy with an order to unload is not free yet. Searchers
    that are leaving are left out.
    """

    def __init__(self, state: ClusterState, copies: Copies) -> None:
        self.packs = state.packs
        self.searchers = {
            each.searcher_id: each
            for each in sorted(state.searchers, key=lambda searcher: searcher.searcher_id)
            if not each.leaving
        }
        copies.update(state, self.searchers)
        self.copies = copies
        self.want = copies.want
        self.fresh, self.stale, self.coming = copies.fresh, copies.stale, copies.coming
        self.orders: list[AddressedOrder] = []
        self.room = {searcher_id: searcher.free for searcher_id, searcher in self.searchers.items()}
        self.freed = dict.fromkeys(self.searchers, 0)
        self._loads = dict.fromkeys(self.searchers, 0)
        #: Whether any order to unload is pending.
        self.is_unloading = False
        self.pending: dict[str, dict[str, Order]] = {searcher_id: {} for searcher_id in self.searchers}
        for searcher_id, searcher in self.searchers.items():
            for order in searcher.orders.values():
                self._apply(searcher_id, order)

    def _apply(self, searcher_id: str, order: Order) -> None:
        self.pending[searcher_id][order.domain] = order
        if isinstance(order, Unload):
            self.is_unloading = True
            held = self.searchers[searcher_id].held.get(order.domain)
            self.freed[searcher_id] += held.size_mb if held else 0
        else:
            self.room[searcher_id] -= order.size_mb
            self._loads[searcher_id] += 1

    def _order(self, searcher_id: str, order: Order, reason: str) -> None:
        self._apply(searcher_id, order)
        self.copies.apply(searcher_id, order)
        self.orders.append(AddressedOrder(searcher_id=searcher_id, order=order, reason=reason))

    def load(self, searcher_id: str, pack: Pack, reason: str) -> None:
        """Order a searcher to load the newest version of a pack."""
        self._order(searcher_id, pack.load(), reason)

    def unload(self, searcher_id: str, domain: str, reason: str) -> None:
        """Order a searcher to unload its version of a domain's pack."""
        self._order(searcher_id, Unload(domain=domain, sha256=self.version(searcher_id, domain).sha256), reason)

    def version(self, searcher_id: str, domain: str) -> PackVersion:
        """Return the version of a domain's pack on a searcher."""
        return self.searchers[searcher_id].held[domain]

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
