"""The placement decision: orders that bring the newest version of each pack to enough searchers, step by step."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from app.cluster.placement.allocation import Allocation
from app.cluster.placement.model import ClusterState, Pack, Placement
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
    missing = [pack for pack in allocation.packs.values() if allocation.copies(pack.domain) < allocation.want]
    queue = [_urgency(allocation, pack) for pack in missing]
    heapq.heapify(queue)
    largest = max((pack.size_mb for pack in missing), default=0)
    while queue:
        # Then the others wait for a free load, and none of them for room.
        if allocation.is_every_searcher_busy() and min(allocation.room.values(), default=0) >= largest:
            break
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
    want, fresh, stale = allocation.want, allocation.fresh, allocation.stale
    several = {domain for domain, holders in fresh.items() if len(holders) > want}
    for domain in sorted((several | stale.keys()) & allocation.packs.keys()):
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


def rebalance_one(allocation: Allocation) -> None:
    """Rebalance: begin to move one pack to a searcher that holds at most two thirds of what the pack's holder holds.

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
    most = max(used.values(), default=0)
    for target in sorted(used, key=lambda each: (used[each], each)):
        if 3 * used[target] > 2 * most:
            return
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


def diagnose(allocation: Allocation, unplaced: Sequence[Pack], *, replicas: int) -> dict[str, str]:
    """Return domain -> reason for each domain with a copy that cannot be placed now, whether or not room is being made.

    A failed load is the most specific reason, then a lack of room, then a lack of searchers.
    """
    reasons = {}
    if allocation.want < replicas:
        count = allocation.want
        lack = f"{count} searcher{'s' if count > 1 else ''} for {replicas} copies" if count else "there is no searcher"
        reasons = dict.fromkeys(allocation.packs, lack)
    for pack in unplaced:
        holders = allocation.fresh[pack.domain] | allocation.coming[pack.domain]
        others = [searcher for searcher_id, searcher in allocation.searchers.items() if searcher_id not in holders]
        largest = max((searcher.capacity for searcher in others), default=0)
        room = max((allocation.room[searcher.searcher_id] for searcher in others), default=0)
        swap = " beside the version that it replaces" if allocation.stale[pack.domain] else ""
        reasons[pack.domain] = (
            f"{pack.size_mb} MB, and no other searcher has a capacity of more than {largest} MB"
            if largest < pack.size_mb
            else f"{pack.size_mb} MB{swap}, and no other searcher has more than {max(room, 0)} MB free"
        )
    backing_off = frozenset[str]().union(*(each.backing_off for each in allocation.searchers.values()))
    for pack in allocation.packs.values() if backing_off else ():
        failing = [each for each in allocation.searchers if allocation.is_backing_off(each, pack)]
        if failing and allocation.copies(pack.domain) < allocation.want:
            failure = allocation.searchers[failing[0]].failures[pack.sha256]
            reasons[pack.domain] = f"searcher {failing[0]} failed to load it: {failure.reason}"
    return reasons
