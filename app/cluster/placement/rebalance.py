"""Rebalancing onto searchers with more room: one pack at a time, while it evens out the load."""

from __future__ import annotations

from app.cluster.placement.allocation import Allocation
from app.cluster.placement.model import Pack


def rebalance_one(allocation: Allocation) -> None:
    """Begin to move one pack to a searcher that holds less than two thirds of what its holder holds.

    Nothing is moved while anything else is under way. Each move makes holdings more even, also after it: they come to
    rest.
    """
    if allocation.commands or any(allocation.orders.values()):
        return
    used = {ident: allocation.used(ident) for ident in allocation.searchers}
    for target in sorted(used, key=lambda ident: (used[ident], ident)):
        found = [
            (-used[source], -pack.size_mb, pack.domain)
            for pack in allocation.packs.values()
            if (source := _source(allocation, pack)) and _is_worth_it(allocation, used, pack, source, target)
        ]
        if found:
            allocation.load(target, allocation.packs[min(found)[-1]], "move, to spread the packs")
            return


def _source(allocation: Allocation, pack: Pack) -> str | None:
    """Return the holder that the surplus copy is unloaded from, once another one has it: the one with least room."""
    fresh = allocation.fresh[pack.domain]
    if len(fresh) != allocation.want:
        return None
    return min(fresh, key=lambda ident: (allocation.room[ident], ident))


def _is_worth_it(allocation: Allocation, used: dict[str, int], pack: Pack, source: str, target: str) -> bool:
    size = pack.size_mb
    if not allocation.may_load(target, pack) or allocation.failures(target, pack):
        return False
    uneven = 3 * used[target] <= 2 * used[source]
    more_even = used[target] + size <= used[source] - size
    roomier = allocation.room[target] - size >= allocation.room[source] + size
    return uneven and more_even and roomier
