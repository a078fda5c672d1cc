"""The placement decision: orders that bring the newest version of each pack to enough searchers, step by step."""

from __future__ import annotations

from collections.abc import Sequence

from app.cluster.placement.allocation import Allocation
from app.cluster.placement.copies import Copies
from app.cluster.placement.model import ClusterState, Pack, Placement
from app.cluster.placement.room import fitting, make_room, would_help


def place(state: ClusterState, copies: Copies | None = None) -> Placement:
    """Return the orders of one decision. Equal states give equal orders; the wanted state gives none.

    The caller keeps `copies` from one decision to the next; without them all packs are counted.

    No order loads more than there is room for. The last copy that is served is not unloaded unless the pack was
    deleted. No searcher gets two orders for one domain. Packs that wait for room are placed by a later decision, once
    the room is free.
    """
    allocation = Allocation(state, copies or Copies())
    for searcher_id, searcher in allocation.searchers.items():
        for domain in sorted(searcher.held.keys() & state.deleted):
            if allocation.free_to_order(searcher_id, domain):
                allocation.unload(searcher_id, domain, "its pack was deleted")
    unplaced = _place_missing(allocation)
    _drop_surplus(allocation, unplaced)
    make_room(allocation, unplaced)
    rebalance_one(allocation)
    return Placement(
        orders=tuple(allocation.orders),
        unplaced=diagnose(allocation, unplaced),
        lack=lack_of_searchers(want=allocation.want, replicas=state.replicas),
    )


def _place_missing(allocation: Allocation) -> list[Pack]:
    """Place missing copies: fewest copies first, then the largest pack. Return packs without room, in that order."""
    copies, unplaced, waiting = allocation.copies, list[Pack](), list[str]()
    is_room_enough: bool | None = None
    while True:
        if allocation.is_every_searcher_busy():
            if is_room_enough is None:
                is_room_enough = min(allocation.room.values(), default=0) >= copies.largest_missing()
            # Then the others wait for a free load, and none of them for room.
            if is_room_enough:
                break
        pack = copies.next_missing()
        if pack is None:
            break
        domain = pack.domain
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
            continue
        waiting.append(domain)
        if not roomy and not allocation.is_changing(domain):
            unplaced.append(pack)
    for domain in waiting:
        copies.queue(domain)
    return unplaced


def _drop_surplus(allocation: Allocation, unplaced: list[Pack]) -> None:
    """Unload older versions and surplus copies of each pack that enough searchers serve."""
    for domain in sorted(allocation.copies.surplus | allocation.stale.keys()):
        surplus = len(allocation.fresh[domain]) - allocation.want
        if surplus < 0:
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
    used = {searcher_id: searcher.used for searcher_id, searcher in allocation.searchers.items()}
    for target in sorted(used, key=lambda each: (used[each], each)):
        moves = [
            (-used[source], -allocation.packs[domain].size_mb, domain)
            for source in used
            # Packs are not looked through on a searcher from which none can be moved.
            if 3 * used[target] <= 2 * used[source] and allocation.room[target] >= allocation.room[source]
            for domain in allocation.searchers[source].held
            if _evens(allocation, domain, source, target)
        ]
        if moves:
            allocation.load(target, allocation.packs[min(moves)[-1]], "move, to spread the packs")
            return


def _evens(allocation: Allocation, domain: str, source: str, target: str) -> bool:
    """Return whether moving a pack from its source to a target evens their load and their room."""
    holders = allocation.fresh[domain]
    if source not in holders or len(holders) != allocation.want:
        return False
    # The copy on the searcher with least room is the one that is unloaded once the target serves the pack.
    if source != min(holders, key=lambda each: (allocation.room[each], each)):
        return False
    pack, searchers, room = allocation.packs[domain], allocation.searchers, allocation.room
    size = pack.size_mb
    return (
        searchers[target].used + size <= searchers[source].used - size
        and room[target] - size >= room[source] + size
        and allocation.may_load(target, pack)
        and not allocation.failures(target, pack)
    )


def lack_of_searchers(*, want: int, replicas: int) -> str:
    """Return why no pack can have all of its copies, empty if there are enough searchers."""
    if want >= replicas:
        return ""
    return f"{want} searcher{'s' if want > 1 else ''} for {replicas} copies" if want else "there is no searcher"


def diagnose(allocation: Allocation, unplaced: Sequence[Pack]) -> dict[str, str]:
    """Return domain -> reason for each domain with a copy that cannot be placed now, whether or not room is being made.

    A failed load is a more specific reason than a lack of room.
    """
    reasons = {}
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
    for domain in sorted(allocation.copies.missing) if backing_off else ():
        pack = allocation.packs[domain]
        failing = [each for each in allocation.searchers if allocation.is_backing_off(each, pack)]
        if failing:
            failure = allocation.searchers[failing[0]].failures[pack.sha256]
            reasons[pack.domain] = f"searcher {failing[0]} failed to load it: {failure.reason}"
    return reasons
