"""The placement decision: orders that bring the newest version of each pack to enough searchers."""

from __future__ import annotations

import heapq

from app.cluster.placement.allocation import Allocation
from app.cluster.placement.diagnostics import diagnose
from app.cluster.placement.model import ClusterState, Pack, Placement
from app.cluster.placement.rebalance import rebalance_one
from app.cluster.placement.room import fitting, make_room, would_help


def place(state: ClusterState) -> Placement:
    """Return the orders of one decision. Equal states give equal orders; the wanted state gives none.

    No order loads more than there is room for. The last copy that is served is not unloaded unless the pack was
    deleted. No searcher gets two orders for one domain. Packs that wait for room are placed by a later decision, once
    the room is free.
    """
    allocation = Allocation(state)
    for searcher_id, searcher in allocation.searchers.items():
        for domain in sorted(searcher.held):
            if domain in state.deleted and allocation.free_to_order(searcher_id, domain):
                allocation.unload(searcher_id, domain, "its pack was deleted")
    unplaced = _place_missing(allocation)
    _drop_surplus(allocation, unplaced)
    make_room(allocation, unplaced)
    rebalance_one(allocation)
    return Placement(orders=tuple(allocation.orders), unplaced=diagnose(allocation, unplaced, replicas=state.replicas))


def _place_missing(allocation: Allocation) -> list[Pack]:
    """Place missing copies: fewest copies first, then the largest pack. Return packs without room, in that order."""
    unplaced: list[Pack] = []
    queue = [_urgency(allocation, pack) for pack in allocation.packs.values()]
    heapq.heapify(queue)
    while queue:
        *_, domain = heapq.heappop(queue)
        pack = allocation.packs[domain]
        if allocation.copies(domain) >= allocation.want:
            continue
        roomy = fitting(allocation, pack)
        # Prefer a searcher without failed loads, then one with an older version, then the one with most room.
        hosts = [
            (allocation.failures(each, pack), each not in allocation.stale[domain], -allocation.room[each], each)
            for each in roomy
            if not allocation.is_busy(each) and not allocation.is_backing_off(each, pack)
        ]
        if hosts:
            searcher_id = min(hosts)[-1]
            allocation.load(searcher_id, pack, "update" if searcher_id in allocation.stale[domain] else "place")
            heapq.heappush(queue, _urgency(allocation, pack))
        elif not roomy and not allocation.is_changing(domain):
            unplaced.append(pack)
    return unplaced


def _urgency(allocation: Allocation, pack: Pack) -> tuple[int, int, int, str]:
    return allocation.copies(pack.domain), len(allocation.stale[pack.domain]), -pack.size_mb, pack.domain


def _drop_surplus(allocation: Allocation, unplaced: list[Pack]) -> None:
    """Unload older versions and surplus copies of each pack that enough searchers serve."""
    for domain in sorted(allocation.packs):
        surplus = len(allocation.fresh[domain]) - allocation.want
        if surplus < 0 or not allocation.fresh[domain]:
            continue
        for searcher_id in sorted(allocation.stale[domain]):
            if allocation.free_to_order(searcher_id, domain):
                allocation.unload(searcher_id, domain, "a newer version is served")
        spare = sorted(
            (not would_help(allocation, each, domain, unplaced), allocation.room[each], each)
            for each in allocation.fresh[domain]
            if allocation.free_to_order(each, domain)
        )
        for *_, searcher_id in spare[:surplus]:
            allocation.unload(searcher_id, domain, "more copies than wanted")
