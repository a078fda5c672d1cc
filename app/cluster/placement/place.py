"""From a state to the orders that bring it nearer to what is wanted: each pack on so many searchers, the newest."""

from __future__ import annotations

import heapq

from app.cluster.placement import balance, room, why
from app.cluster.placement.ledger import Ledger
from app.cluster.placement.values import Pack, Placement, State


def place(state: State) -> Placement:
    """Decide; the same state gives the same orders, and one that is as wanted gives none.

    Never is more loaded than there is room for, the last copy that answers unloaded (but for a pack that is no more),
    or a searcher told two things about one domain at a time. What needs room that is not there yet is decided again
    once there is.
    """
    ledger = Ledger(state)
    _drop_gone(ledger)
    stuck = _fill(ledger)
    _drop_surplus(ledger, stuck)
    room.make(ledger, stuck)
    balance.even_out(ledger)
    return Placement(commands=tuple(ledger.commands), stuck=why.explain(ledger, stuck, replicas=state.replicas))


def _drop_gone(ledger: Ledger) -> None:
    for ident, searcher in ledger.searchers.items():
        for domain in sorted(searcher.held):
            if domain in ledger.gone and ledger.free_to_order(ident, domain):
                ledger.unload(ident, domain, "its pack is no more")


def _fill(ledger: Ledger) -> list[Pack]:
    """Place what is missing: fewest copies first, then the biggest pack. Return what fits nowhere, in that order."""
    stuck: list[Pack] = []
    queue = [_urgency(ledger, pack) for pack in ledger.packs.values()]
    heapq.heapify(queue)
    while queue:
        *_, domain = heapq.heappop(queue)
        pack = ledger.packs[domain]
        if ledger.copies(domain) >= ledger.want:
            continue
        fitting = room.fitting(ledger, pack)
        hosts = [ident for ident in fitting if not ledger.is_busy(ident) and not ledger.rests(ident, pack)]
        if hosts:
            ident = min(hosts, key=lambda each: _preference(ledger, each, pack))
            ledger.load(ident, pack, "update" if ident in ledger.stale[domain] else "place")
            heapq.heappush(queue, _urgency(ledger, pack))
        elif not fitting and not ledger.is_changing(domain):
            stuck.append(pack)
    return stuck


def _urgency(ledger: Ledger, pack: Pack) -> tuple[int, int, int, str]:
    return ledger.copies(pack.domain), len(ledger.stale[pack.domain]), -pack.size_mb, pack.domain


def _preference(ledger: Ledger, ident: str, pack: Pack) -> tuple[int, bool, int, str]:
    """Where nothing failed before; in the place of an older version; where there is most room."""
    return ledger.failures(ident, pack), ident not in ledger.stale[pack.domain], -ledger.room[ident], ident


def _drop_surplus(ledger: Ledger, stuck: list[Pack]) -> None:
    """Unload what is more than wanted, once as many copies answer as are wanted."""
    for domain in sorted(ledger.packs):
        surplus = len(ledger.fresh[domain]) - ledger.want
        if surplus < 0 or not ledger.fresh[domain]:
            continue
        for ident in sorted(ledger.stale[domain]):
            if ledger.free_to_order(ident, domain):
                ledger.unload(ident, domain, "a newer version answers")
        spare = [ident for ident in ledger.fresh[domain] if ledger.free_to_order(ident, domain)]
        spare.sort(key=lambda each: (not room.would_help(ledger, each, domain, stuck), ledger.room[each], each))
        for ident in spare[: max(surplus, 0)]:
            ledger.unload(ident, domain, "one copy more than wanted")
