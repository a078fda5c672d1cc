"""The placement decision: orders that bring the newest version of each pack to enough searchers, step by step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from app.cluster.placement.allocation import Allocation
from app.cluster.placement.copies import Copies
from app.cluster.placement.model import ClusterState, Pack, Placement


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
    _make_room(allocation, unplaced)
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
        roomy = _fitting(allocation, pack)
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
            (not _would_help(allocation, each, domain, unplaced), allocation.room[each], each)
            for each in allocation.fresh[domain]
            if allocation.free_to_order(each, domain)
        )
        for *_, searcher_id in spare[:surplus]:
            allocation.unload(searcher_id, domain, "more copies than wanted")


# Room: which searchers have enough, and which copies to move or unload where it is missing


def _fitting(allocation: Allocation, pack: Pack) -> list[str]:
    """Return the searchers with room for a pack beside any older version of it."""
    return [
        searcher_id
        for searcher_id in allocation.searchers
        if allocation.may_load(searcher_id, pack) and allocation.room[searcher_id] >= pack.size_mb
    ]


def _would_help(allocation: Allocation, searcher_id: str, domain: str, unplaced: Iterable[Pack]) -> bool:
    """Return whether an unplaced pack would fit on a searcher once it has unloaded this domain."""
    room = allocation.room[searcher_id] + allocation.version(searcher_id, domain).size_mb
    return any(allocation.may_load(searcher_id, pack) and room >= pack.size_mb for pack in unplaced)


def _make_room(allocation: Allocation, unplaced: Sequence[Pack]) -> None:
    """Make room for unplaced packs, one step at a time: no step begins while an earlier one is unfinished.

    First, an older version of the pack is unloaded if another copy is served. Second, one other pack is moved: it is
    loaded where there is room, and unloaded from its source once the target serves it. Last, for a pack without any
    copy, packs with two copies lose one.
    """
    for pack in unplaced:
        # Pending unloads may free enough room on a searcher.
        is_room_coming = any(
            freed and allocation.room[searcher_id] + freed >= pack.size_mb and allocation.may_load(searcher_id, pack)
            for searcher_id, freed in allocation.freed.items()
        )
        if is_room_coming or _unload_older(allocation, pack) or allocation.is_unloading or allocation.copies.surplus:
            continue
        if not _move_other(allocation, pack) and not allocation.copies.count(pack.domain):
            _unload_spare_copies(allocation, pack)


def _hosts(allocation: Allocation, pack: Pack) -> list[str]:
    """Return the searchers that may load a pack and never failed to, most room first."""
    able = (
        searcher_id
        for searcher_id in allocation.searchers
        if allocation.may_load(searcher_id, pack) and not allocation.failures(searcher_id, pack)
    )
    return sorted(able, key=lambda each: (-allocation.room[each], each))


def _unload_older(allocation: Allocation, pack: Pack) -> bool:
    """Unload an older version that leaves no room for the newer one, if another copy of any version is served."""
    for searcher_id in _hosts(allocation, pack):
        if searcher_id in allocation.stale[pack.domain] and allocation.serving(pack.domain) - {searcher_id}:
            room = allocation.room[searcher_id] + allocation.version(searcher_id, pack.domain).size_mb
            if room >= pack.size_mb:
                allocation.unload(searcher_id, pack.domain, "no room for two versions, and another copy is served")
                return True
    return False


def _move_other(allocation: Allocation, pack: Pack) -> bool:
    """Begin to move the smallest other pack that frees enough room; return whether there was one."""
    for searcher_id in _hosts(allocation, pack):
        lacking = pack.size_mb - allocation.room[searcher_id]
        movable = sorted(
            (version.size_mb, domain)
            for domain, version in allocation.searchers[searcher_id].held.items()
            if domain != pack.domain
            and version.size_mb >= lacking
            and searcher_id in allocation.fresh[domain]
            and allocation.free_to_order(searcher_id, domain)
        )
        for _size, domain in movable:
            other = allocation.packs[domain]
            roomy = _fitting(allocation, other)
            targets = [each for each in _hosts(allocation, other) if each in roomy and not allocation.is_busy(each)]
            if targets:
                allocation.load(targets[0], other, f"move, to make room for {pack.domain} on {searcher_id}")
                return True
    return False


def _unload_spare_copies(allocation: Allocation, pack: Pack) -> None:
    """Unload spare copies on one searcher, as few as possible, until the pack fits there.

    They are the smallest that suffices, or else the largest in turn.
    """
    for searcher_id in _hosts(allocation, pack):
        lacking = pack.size_mb - allocation.room[searcher_id]
        spare = sorted(
            (version.size_mb, domain)
            for domain, version in allocation.searchers[searcher_id].held.items()
            if domain != pack.domain and allocation.may_spare(searcher_id, domain)
        )
        if sum(size for size, _ in spare) < lacking or not spare:
            continue
        for size, domain in [each for each in spare if each[0] >= lacking] or reversed(spare):
            allocation.unload(searcher_id, domain, f"spare copy unloaded: {pack.domain} has no copy")
            lacking -= size
            if lacking <= 0:
                return


# Balance and diagnostics


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
