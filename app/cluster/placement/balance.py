"""Spreading again, when somebody new has come: one pack at a time, and only as long as it is worth it."""

from __future__ import annotations

from app.cluster.placement.ledger import Ledger
from app.cluster.placement.values import Pack


def even_out(ledger: Ledger) -> None:
    """Begin to move one pack to a searcher that holds less than two thirds of what its holder holds.

    Nothing is moved while anything else is under way. Each move makes holdings more even, also after it: they come to
    rest.
    """
    if ledger.commands or any(ledger.orders.values()):
        return
    used = {ident: ledger.used(ident) for ident in ledger.searchers}
    for target in sorted(used, key=lambda ident: (used[ident], ident)):
        found = [
            (-used[source], -pack.size_mb, pack.domain)
            for pack in ledger.packs.values()
            if (source := _source(ledger, pack)) and _is_worth_it(ledger, used, pack, source, target)
        ]
        if found:
            ledger.load(target, ledger.packs[min(found)[-1]], "move, to spread the packs")
            return


def _source(ledger: Ledger, pack: Pack) -> str | None:
    """Return the holder that the surplus copy is unloaded from, once another one has it: the one with least room."""
    fresh = ledger.fresh[pack.domain]
    if len(fresh) != ledger.want:
        return None
    return min(fresh, key=lambda ident: (ledger.room[ident], ident))


def _is_worth_it(ledger: Ledger, used: dict[str, int], pack: Pack, source: str, target: str) -> bool:
    size = pack.size_mb
    if not ledger.may_load(target, pack) or ledger.failures(target, pack):
        return False
    uneven = 3 * used[target] <= 2 * used[source]
    more_even = used[target] + size <= used[source] - size
    roomier = ledger.room[target] - size >= ledger.room[source] + size
    return uneven and more_even and roomier
