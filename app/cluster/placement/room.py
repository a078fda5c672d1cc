"""Room for packs: which searchers have enough, and which copies to move or unload where it is missing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from app.cluster.placement.allocation import Allocation
from app.cluster.placement.model import Pack


def fitting(allocation: Allocation, pack: Pack) -> list[str]:
    """Return the searchers with room for a pack beside any older version of it."""
    return [
        searcher_id
        for searcher_id in allocation.searchers
        if allocation.may_load(searcher_id, pack) and allocation.room[searcher_id] >= pack.size_mb
    ]


def would_help(allocation: Allocation, searcher_id: str, domain: str, unplaced: Iterable[Pack]) -> bool:
    """Return whether an unplaced pack would fit on a searcher once it has unloaded this domain."""
    room = allocation.room[searcher_id] + allocation.version(searcher_id, domain).size_mb
    return any(allocation.may_load(searcher_id, pack) and room >= pack.size_mb for pack in unplaced)


def make_room(allocation: Allocation, unplaced: Sequence[Pack]) -> None:
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
            roomy = fitting(allocation, other)
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
        sufficient = [each for each in spare if each[0] >= lacking]
        for size, domain in sufficient[:1] or reversed(spare):
            allocation.unload(searcher_id, domain, f"spare copy unloaded: {pack.domain} has no copy")
            lacking -= size
            if lacking <= 0:
                return
