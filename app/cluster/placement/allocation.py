"""The allocation of packs and room during a placement decision; each order updates it."""

from __future__ import annotations

from collections import defaultdict

from app.cluster.placement.model import LOADS_AT_ONCE, AddressedOrder, ClusterState, Order, Pack, SearcherState
from app.cluster.protocol import Holding, Load, Unload

Ids = dict[str, set[str]]


class Allocation:
    """Packs, copies, orders and room per searcher during one decision.

    By domain, `fresh` are the searchers that answer from the newest version, `stale` from another one, and `coming`
    those that were told to load the newest. `room` is in MB, with what is promised to loads subtracted. A copy that is
    being unloaded answers no more, and its room is not free yet. Searchers that are leaving do not appear.
    """

    def __init__(self, state: ClusterState) -> None:
        self.packs = state.packs
        self.gone = state.gone
        self.searchers = {each.searcher_id: each for each in sorted(state.searchers, key=_by_id) if not each.leaving}
        self.want = min(state.replicas, len(self.searchers))
        self.commands: list[AddressedOrder] = []
        self.room: dict[str, int] = {}
        self.orders: dict[str, dict[str, Order]] = {}
        self.fresh: Ids = defaultdict(set)
        self.stale: Ids = defaultdict(set)
        self.coming: Ids = defaultdict(set)
        for searcher in self.searchers.values():
            self._enter(searcher, state.trusted)

    def _enter(self, searcher: SearcherState, trusted: frozenset[str]) -> None:
        ident = searcher.searcher_id
        self.room[ident] = searcher.free
        self.orders[ident] = {}
        for holding in searcher.held.values():
            pack = self.packs.get(holding.domain)
            if pack is not None:
                newest = holding.sha256 == pack.sha256 or holding.sha256 in trusted
                (self.fresh if newest else self.stale)[holding.domain].add(ident)
        for order in searcher.orders.values():
            self._note(ident, order)

    def _note(self, ident: str, order: Order) -> None:
        self.orders[ident][order.domain] = order
        if isinstance(order, Unload):
            self.fresh[order.domain].discard(ident)
            self.stale[order.domain].discard(ident)
            return
        self.room[ident] -= order.size_mb
        pack = self.packs.get(order.domain)
        if pack is not None and pack.sha256 == order.sha256:
            self.coming[order.domain].add(ident)

    def load(self, ident: str, pack: Pack, why: str) -> None:
        """Have a searcher load the newest version of a pack."""
        order = pack.load()
        self._note(ident, order)
        self.commands.append(AddressedOrder(searcher_id=ident, order=order, why=why))

    def unload(self, ident: str, domain: str, why: str) -> None:
        """Have a searcher forget what it holds of a domain."""
        order = Unload(domain=domain, sha256=self.holding(ident, domain).sha256)
        self._note(ident, order)
        self.commands.append(AddressedOrder(searcher_id=ident, order=order, why=why))

    def holding(self, ident: str, domain: str) -> Holding:
        """Return what a searcher holds of a domain."""
        return self.searchers[ident].held[domain]

    def copies(self, domain: str) -> int:
        """Return the number of copies of the newest version, those that are coming included."""
        return len(self.fresh[domain] | self.coming[domain])

    def answering(self, domain: str) -> set[str]:
        """Return the searchers that answer for a domain, from whatever version."""
        return self.fresh[domain] | self.stale[domain]

    def is_changing(self, domain: str) -> bool:
        """Return whether a searcher may soon have a domain's newest version that cannot be told to load it now."""
        others = self.searchers.keys() - self.fresh[domain] - self.coming[domain]
        return any(not self.free_to_order(ident, domain) for ident in others)

    def free_to_order(self, ident: str, domain: str) -> bool:
        """Return whether the searcher has no pending order for the domain and is not backing off."""
        searcher = self.searchers[ident]
        held = searcher.held.get(domain)
        return domain not in self.orders[ident] and (held is None or held.sha256 not in searcher.resting)

    def is_busy(self, ident: str) -> bool:
        """Return whether a searcher has as many loads before it as it is given at once."""
        return sum(isinstance(order, Load) for order in self.orders[ident].values()) >= LOADS_AT_ONCE

    def may_load(self, ident: str, pack: Pack) -> bool:
        """Return whether a searcher could be told to load a pack, if it had the room and the time."""
        return ident not in self.fresh[pack.domain] and self.free_to_order(ident, pack.domain)

    def rests(self, ident: str, pack: Pack) -> bool:
        """Return whether a searcher failed to load this version a short while ago."""
        return pack.sha256 in self.searchers[ident].resting

    def failures(self, ident: str, pack: Pack) -> int:
        """Return how often a searcher failed to load this version."""
        failure = self.searchers[ident].failures.get(pack.sha256)
        return failure.count if failure else 0

    def used(self, ident: str) -> int:
        """Return the MB that a searcher holds."""
        return sum(holding.size_mb for holding in self.searchers[ident].held.values())

    def may_spare(self, ident: str, domain: str) -> bool:
        """Return whether a searcher's copy can go while another one of the newest version answers."""
        return (
            ident in self.answering(domain) and self.free_to_order(ident, domain) and bool(self.fresh[domain] - {ident})
        )

    def is_unloading(self) -> bool:
        """Return whether any copy is being unloaded."""
        return any(isinstance(order, Unload) for orders in self.orders.values() for order in orders.values())

    def has_surplus(self) -> bool:
        """Return whether any domain has more copies than are wanted, or will have."""
        return any(self.copies(domain) > self.want for domain in self.packs)


def _by_id(searcher: SearcherState) -> str:
    return searcher.searcher_id
