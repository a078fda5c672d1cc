"""What stands against a copy that is wanted, in words."""

from __future__ import annotations

from collections.abc import Sequence

from app.cluster.placement.ledger import Ledger
from app.cluster.placement.values import Pack


def explain(ledger: Ledger, stuck: Sequence[Pack], *, replicas: int) -> dict[str, str]:
    """Return domain -> why, for the domains of which copies cannot be placed now, whatever is being done about it."""
    reasons = {}
    if ledger.want < replicas:
        reasons = dict.fromkeys(ledger.packs, _too_few(ledger.want, replicas))
    reasons.update({pack.domain: _no_room(ledger, pack) for pack in stuck})
    for pack in ledger.packs.values():
        failing = [ident for ident in ledger.searchers if ledger.rests(ident, pack)]
        if failing and ledger.copies(pack.domain) < ledger.want:
            failure = ledger.searchers[failing[0]].failures[pack.sha256]
            reasons[pack.domain] = f"searcher {failing[0]} failed to load it: {failure.reason}"
    return reasons


def _too_few(searchers: int, replicas: int) -> str:
    if not searchers:
        return "there is no searcher"
    return f"{searchers} searcher{'s' if searchers > 1 else ''} for {replicas} copies"


def _no_room(ledger: Ledger, pack: Pack) -> str:
    having = ledger.fresh[pack.domain] | ledger.coming[pack.domain]
    others = [searcher for ident, searcher in ledger.searchers.items() if ident not in having]
    largest = max((searcher.capacity for searcher in others), default=0)
    if largest < pack.size_mb:
        return f"{pack.size_mb} MB, and no other searcher has a capacity of more than {largest} MB"
    room = max((ledger.room[searcher.searcher_id] for searcher in others), default=0)
    swap = " beside the version that it replaces" if ledger.stale[pack.domain] else ""
    return f"{pack.size_mb} MB{swap}, and no other searcher has more than {max(room, 0)} MB free"
