"""The placement decision: orders that bring the newest version of each pack to enough searchers."""

from __future__ import annotations

import heapq

from app.cluster.placement import rebalance, room
from app.cluster.placement.allocation import Allocation
from app.cluster.placement.diagnostics import diagnose
from app.cluster.placement.model import ClusterState, Pack, Placement


def place(state: ClusterState) -> Placement:
    """Decide; the same state gives the same orders, and one that is as wanted gives none.

    Never is more loaded than there is room for, the last copy that answers unloaded (but for a pack that is no more),
    or a searcher told two things about one domain at a time. What needs room that is not there yet is decided again
    once there is.
    """
    allocation = Allocation(state)
    _drop_gone(allocation)
    unplaced = _fill(allocation)
    _drop_surplus(allocation, unplaced)
    room.make(allocation, unplaced)
    rebalance.rebalance_one(allocation)
    return Placement(
        commands=tuple(allocation.commands), unplaced=diagnose(allocation, unplaced, replicas=state.replicas)
    )


def _drop_gone(allocation: Allocation) -> None:
    for ident, searcher in allocation.searchers.items():
        for domain in sorted(searcher.held):
            if domain in allocation.gone and allocation.free_to_order(ident, domain):
                allocation.unload(ident, domain, "its pack is no more")


def _fill(allocation: Allocation) -> list[Pack]:
    """Place what is missing: fewest copies first, then the biggest pack. Return what fits nowhere, in that order."""
    unplaced: list[Pack] = []
    queue = [_urgency(allocation, pack) for pack in allocation.packs.values()]
    heapq.heapify(queue)
    while queue:
        *_, domain = heapq.heappop(queue)
        pack = allocation.packs[domain]
        if allocation.copies(domain) >= allocation.want:
            continue
        fitting = room.fitting(allocation, pack)
        hosts = [ident for ident in fitting if not allocation.is_busy(ident) and not allocation.rests(ident, pack)]
        if hosts:
            ident = min(hosts, key=lambda each: _preference(allocation, each, pack))
            allocation.load(ident, pack, "update" if ident in allocation.stale[domain] else "place")
            heapq.heappush(queue, _urgency(allocation, pack))
        elif not fitting and not allocation.is_changing(domain):
            unplaced.append(pack)
    return unplaced


def _urgency(allocation: Allocation, pack: Pack) -> tuple[int, int, int, str]:
    return allocation.copies(pack.domain), len(allocation.stale[pack.domain]), -pack.size_mb, pack.domain


def _preference(allocation: Allocation, ident: str, pack: Pack) -> tuple[int, bool, int, str]:
    """Where nothing failed before; in the place of an older version; where there is most room."""
    return allocation.failures(ident, pack), ident not in allocation.stale[pack.domain], -allocation.room[ident], ident


def _drop_surplus(allocation: Allocation, unplaced: list[Pack]) -> None:
    """Unload what is more than wanted, once as many copies answer as are wanted."""
    for domain in sorted(allocation.packs):
        surplus = len(allocation.fresh[domain]) - allocation.want
        if surplus < 0 or not allocation.fresh[domain]:
            continue
        for ident in sorted(allocation.stale[domain]):
            if allocation.free_to_order(ident, domain):
                allocation.unload(ident, domain, "a newer version answers")
        spare = [ident for ident in allocation.fresh[domain] if allocation.free_to_order(ident, domain)]
        spare.sort(
            key=lambda each: (not room.would_help(allocation, each, domain, unplaced), allocation.room[each], each)
        )
        for ident in spare[: max(surplus, 0)]:
            allocation.unload(ident, domain, "one copy more than wanted")
