"""Diagnostics: why a copy of a pack cannot be placed."""

from __future__ import annotations

from collections.abc import Sequence

from app.cluster.placement.allocation import Allocation
from app.cluster.placement.model import Pack


def diagnose(allocation: Allocation, unplaced: Sequence[Pack], *, replicas: int) -> dict[str, str]:
    """Return domain -> why, for the domains of which copies cannot be placed now, whatever is being done about it."""
    reasons = {}
    if allocation.want < replicas:
        reasons = dict.fromkeys(allocation.packs, _too_few(allocation.want, replicas))
    reasons.update({pack.domain: _no_room(allocation, pack) for pack in unplaced})
    for pack in allocation.packs.values():
        failing = [ident for ident in allocation.searchers if allocation.rests(ident, pack)]
        if failing and allocation.copies(pack.domain) < allocation.want:
            failure = allocation.searchers[failing[0]].failures[pack.sha256]
            reasons[pack.domain] = f"searcher {failing[0]} failed to load it: {failure.reason}"
    return reasons


def _too_few(searchers: int, replicas: int) -> str:
    if not searchers:
        return "there is no searcher"
    return f"{searchers} searcher{'s' if searchers > 1 else ''} for {replicas} copies"


def _no_room(allocation: Allocation, pack: Pack) -> str:
    having = allocation.fresh[pack.domain] | allocation.coming[pack.domain]
    others = [searcher for ident, searcher in allocation.searchers.items() if ident not in having]
    largest = max((searcher.capacity for searcher in others), default=0)
    if largest < pack.size_mb:
        return f"{pack.size_mb} MB, and no other searcher has a capacity of more than {largest} MB"
    room = max((allocation.room[searcher.searcher_id] for searcher in others), default=0)
    swap = " beside the version that it replaces" if allocation.stale[pack.domain] else ""
    return f"{pack.size_mb} MB{swap}, and no other searcher has more than {max(room, 0)} MB free"
