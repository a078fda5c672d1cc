"""Rebalancing onto searchers with more room, one pack at a time."""

from __future__ import annotations

from app.cluster.placement.allocation import Allocation


def rebalance_one(allocation: Allocation) -> None:
    """Begin to move one pack to a searcher that holds at most two thirds of what the pack's holder holds.

    Nothing is moved while any order is pending. Each move evens the load even after the surplus copy is
    unloaded, so the moves come to an end.
    """
    if allocation.orders or any(allocation.pending.values()):
        return
    used = {
        searcher_id: sum(version.size_mb for version in searcher.held.values())
        for searcher_id, searcher in allocation.searchers.items()
    }
    # The copy on the searcher with least room is the one that is unloaded once the target serves the pack.
    sources = {
        pack.domain: min(holders, key=lambda each: (allocation.room[each], each))
        for pack in allocation.packs.values()
        if len(holders := allocation.fresh[pack.domain]) == allocation.want and holders
    }
    for target in sorted(used, key=lambda each: (used[each], each)):
        moves = []
        for domain, source in sources.items():
            pack = allocation.packs[domain]
            size = pack.size_mb
            if (
                allocation.may_load(target, pack)
                and not allocation.failures(target, pack)
                and 3 * used[target] <= 2 * used[source]
                and used[target] + size <= used[source] - size
                and allocation.room[target] - size >= allocation.room[source] + size
            ):
                moves.append((-used[source], -size, domain))
        if moves:
            allocation.load(target, allocation.packs[min(moves)[-1]], "move, to spread the packs")
            return
