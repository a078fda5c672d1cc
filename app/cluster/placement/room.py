"""Where a pack fits, and what may go from where so that it does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from app.cluster.placement.allocation import Allocation
from app.cluster.placement.model import Pack
from app.cluster.protocol import Unload


def fitting(allocation: Allocation, pack: Pack) -> list[str]:
    """Return the searchers that have room for a pack, beside an older version that they hold of it."""
    return [
        ident
        for ident in allocation.searchers
        if allocation.may_load(ident, pack) and allocation.room[ident] >= pack.size_mb
    ]


def would_help(allocation: Allocation, ident: str, domain: str, unplaced: Iterable[Pack]) -> bool:
    """Return whether a pack that fits nowhere would fit on a searcher that has unloaded this domain."""
    room = allocation.room[ident] + allocation.holding(ident, domain).size_mb
    return any(allocation.may_load(ident, pack) and room >= pack.size_mb for pack in unplaced)


def make(allocation: Allocation, unplaced: Sequence[Pack]) -> None:
    """Make room for what fits nowhere: one step, and none while an earlier one is under way.

    An older version of the pack goes first, where another copy answers. Then one pack is moved: loaded where
    there is room for it, and unloaded here once it answers there. Last, where a pack has no copy at all, packs that
    have two give one up.
    """
    for pack in unplaced:
        if not _is_awaited(allocation, pack) and not _replace(allocation, pack):
            if allocation.is_unloading() or allocation.has_surplus():
                continue
            if not _move(allocation, pack) and not allocation.copies(pack.domain):
                _give_up(allocation, pack)


def _is_awaited(allocation: Allocation, pack: Pack) -> bool:
    """Return whether what is being unloaded makes room enough."""
    return any(
        allocation.may_load(ident, pack) and allocation.room[ident] + _leaving(allocation, ident) >= pack.size_mb
        for ident in allocation.searchers
        if _leaving(allocation, ident)
    )


def _leaving(allocation: Allocation, ident: str) -> int:
    held = allocation.searchers[ident].held
    unloads = (order for order in allocation.orders[ident].values() if isinstance(order, Unload))
    return sum(held[order.domain].size_mb for order in unloads if order.domain in held)


def _hosts(allocation: Allocation, pack: Pack) -> list[str]:
    """Return who may load a pack and never failed to, most room first."""
    able = (
        ident
        for ident in allocation.searchers
        if allocation.may_load(ident, pack) and not allocation.failures(ident, pack)
    )
    return sorted(able, key=lambda ident: (-allocation.room[ident], ident))


def _replace(allocation: Allocation, pack: Pack) -> bool:
    """Unload an older version where the newer one fits only without it, if another copy answers, be it old or new."""
    for ident in _hosts(allocation, pack):
        if ident in allocation.stale[pack.domain] and allocation.answering(pack.domain) - {ident}:
            room = allocation.room[ident] + allocation.holding(ident, pack.domain).size_mb
            if room >= pack.size_mb:
                allocation.unload(ident, pack.domain, "no room for two versions, and another copy answers")
                return True
    return False


def _move(allocation: Allocation, pack: Pack) -> bool:
    """Begin to move the smallest pack whose going suffices."""
    for ident in _hosts(allocation, pack):
        lacking = pack.size_mb - allocation.room[ident]
        movable = sorted(
            (allocation.holding(ident, domain).size_mb, domain)
            for domain in allocation.searchers[ident].held
            if domain != pack.domain and ident in allocation.fresh[domain] and allocation.free_to_order(ident, domain)
        )
        for size, domain in movable:
            other = allocation.packs[domain]
            target = _target(allocation, other) if size >= lacking else None
            if target is not None:
                allocation.load(target, other, f"move, to make room for {pack.domain} on {ident}")
                return True
    return False


def _target(allocation: Allocation, pack: Pack) -> str | None:
    able = (
        ident
        for ident in _hosts(allocation, pack)
        if ident in fitting(allocation, pack) and not allocation.is_busy(ident)
    )
    return next(able, None)


def _give_up(allocation: Allocation, pack: Pack) -> bool:
    """Have copies go that others of the same pack stand in for; as few as suffice, where that is possible."""
    for ident in _hosts(allocation, pack):
        lacking = pack.size_mb - allocation.room[ident]
        chosen = _enough(allocation, ident, lacking, besides=pack.domain)
        for domain in chosen:
            allocation.unload(ident, domain, f"gives up a copy, for {pack.domain} has none")
        if chosen:
            return True
    return False


def _enough(allocation: Allocation, ident: str, lacking: int, *, besides: str) -> list[str]:
    """Return domains that may go from a searcher and free so many MB: the smallest that suffices, or the biggest."""
    held = allocation.searchers[ident].held
    spare = sorted((held[name].size_mb, name) for name in held if name != besides and allocation.may_spare(ident, name))
    single = next((name for size, name in spare if size >= lacking), None)
    if single is not None:
        return [single]
    chosen: list[str] = []
    for size, name in reversed(spare):
        if lacking <= 0:
            break
        chosen.append(name)
        lacking -= size
    return chosen if lacking <= 0 else []
