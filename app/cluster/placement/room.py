"""Where a pack fits, and what may go from where so that it does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from app.cluster.placement.ledger import Ledger
from app.cluster.placement.values import Pack
from app.cluster.protocol import Unload


def fitting(ledger: Ledger, pack: Pack) -> list[str]:
    """Return the searchers that have room for a pack, beside an older version that they hold of it."""
    return [ident for ident in ledger.searchers if ledger.may_load(ident, pack) and ledger.room[ident] >= pack.size_mb]


def would_help(ledger: Ledger, ident: str, domain: str, stuck: Iterable[Pack]) -> bool:
    """Return whether a pack that fits nowhere would fit on a searcher that has unloaded this domain."""
    room = ledger.room[ident] + ledger.holding(ident, domain).size_mb
    return any(ledger.may_load(ident, pack) and room >= pack.size_mb for pack in stuck)


def make(ledger: Ledger, stuck: Sequence[Pack]) -> None:
    """Make room for what fits nowhere: one step, and none while an earlier one is under way.

    An older version of the pack goes first, where another copy answers. Then one pack is moved: loaded where
    there is room for it, and unloaded here once it answers there. Last, where a pack has no copy at all, packs that
    have two give one up.
    """
    for pack in stuck:
        if not _is_awaited(ledger, pack) and not _replace(ledger, pack):
            if ledger.is_unloading() or ledger.has_surplus():
                continue
            if not _move(ledger, pack) and not ledger.copies(pack.domain):
                _give_up(ledger, pack)


def _is_awaited(ledger: Ledger, pack: Pack) -> bool:
    """Return whether what is being unloaded makes room enough."""
    return any(
        ledger.may_load(ident, pack) and ledger.room[ident] + _leaving(ledger, ident) >= pack.size_mb
        for ident in ledger.searchers
        if _leaving(ledger, ident)
    )


def _leaving(ledger: Ledger, ident: str) -> int:
    held = ledger.searchers[ident].held
    unloads = (order for order in ledger.orders[ident].values() if isinstance(order, Unload))
    return sum(held[order.domain].size_mb for order in unloads if order.domain in held)


def _hosts(ledger: Ledger, pack: Pack) -> list[str]:
    """Return who may load a pack and never failed to, most room first."""
    able = (ident for ident in ledger.searchers if ledger.may_load(ident, pack) and not ledger.failures(ident, pack))
    return sorted(able, key=lambda ident: (-ledger.room[ident], ident))


def _replace(ledger: Ledger, pack: Pack) -> bool:
    """Unload an older version where the newer one fits only without it, if another copy answers, be it old or new."""
    for ident in _hosts(ledger, pack):
        if ident in ledger.stale[pack.domain] and ledger.answering(pack.domain) - {ident}:
            room = ledger.room[ident] + ledger.holding(ident, pack.domain).size_mb
            if room >= pack.size_mb:
                ledger.unload(ident, pack.domain, "no room for two versions, and another copy answers")
                return True
    return False


def _move(ledger: Ledger, pack: Pack) -> bool:
    """Begin to move the smallest pack whose going suffices."""
    for ident in _hosts(ledger, pack):
        lacking = pack.size_mb - ledger.room[ident]
        movable = sorted(
            (ledger.holding(ident, domain).size_mb, domain)
            for domain in ledger.searchers[ident].held
            if domain != pack.domain and ident in ledger.fresh[domain] and ledger.free_to_order(ident, domain)
        )
        for size, domain in movable:
            other = ledger.packs[domain]
            target = _target(ledger, other) if size >= lacking else None
            if target is not None:
                ledger.load(target, other, f"move, to make room for {pack.domain} on {ident}")
                return True
    return False


def _target(ledger: Ledger, pack: Pack) -> str | None:
    able = (ident for ident in _hosts(ledger, pack) if ident in fitting(ledger, pack) and not ledger.is_busy(ident))
    return next(able, None)


def _give_up(ledger: Ledger, pack: Pack) -> bool:
    """Have copies go that others of the same pack stand in for; as few as suffice, where that is possible."""
    for ident in _hosts(ledger, pack):
        lacking = pack.size_mb - ledger.room[ident]
        chosen = _enough(ledger, ident, lacking, besides=pack.domain)
        for domain in chosen:
            ledger.unload(ident, domain, f"gives up a copy, for {pack.domain} has none")
        if chosen:
            return True
    return False


def _enough(ledger: Ledger, ident: str, lacking: int, *, besides: str) -> list[str]:
    """Return domains that may go from a searcher and free so many MB: the smallest that suffices, or the biggest."""
    held = ledger.searchers[ident].held
    spare = sorted((held[name].size_mb, name) for name in held if name != besides and ledger.may_spare(ident, name))
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
