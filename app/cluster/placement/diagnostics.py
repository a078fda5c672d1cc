"""Diagnostics: why a copy of a pack cannot be placed."""

from __future__ import annotations

from collections.abc import Sequence

from app.cluster.placement.allocation import Allocation
from app.cluster.placement.model import Pack


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
    for pack in allocation.packs.values():
        failing = [each for each in allocation.searchers if allocation.is_backing_off(each, pack)]
        if failing and allocation.copies(pack.domain) < allocation.want:
            failure = allocation.searchers[failing[0]].failures[pack.sha256]
            reasons[pack.domain] = f"searcher {failing[0]} failed to load it: {failure.reason}"
    return reasons
