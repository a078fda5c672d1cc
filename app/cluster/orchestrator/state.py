"""What the orchestrator knows, and what follows from it: who answers what, and what is to be told to whom."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator

from app.cluster.orchestrator.known import Known
from app.cluster.orchestrator.table import Table
from app.cluster.placement.place import place
from app.cluster.placement.values import Command, Pack, State
from app.cluster.protocol import MISSED, Holding, Outcome, Report, Routes
from app.errors import NotPlaced, PackNotFound, SearchUnavailable

log = logging.getLogger(__name__)

#: Seconds at least that a searcher has to be heard of again, once the broker was away.
GRACE = 15.0
#: Searchers that are gone, of which it is remembered how far they had counted their reports.
_REMEMBERED = 1_000


class Orchestrator:
    """The state in memory, for one thread. `now` is in seconds, of a clock that only goes forward.

    Nothing is persisted: the store says what there is, and searchers say what they have, all of it each time. So a
    message that was lost is made good by the next one.
    """

    def __init__(self, *, replicas: int, heartbeat: float, now: float) -> None:
        """`heartbeat` is the seconds between two of a searcher's."""
        self.ident = uuid.uuid4().hex
        self.settled = False
        self._replicas = replicas
        self._heartbeat = heartbeat
        self._patience = MISSED * heartbeat
        self._packs: dict[str, Pack] = {}
        self._gone: set[str] = set()
        self._refuted: set[str] = set()
        self._known: dict[str, Known] = {}
        self._seqs: dict[str, int] = {}
        self._lost_at: dict[str, float] = {}
        self._ticked = now
        self._grace_until = now
        self._awaited: set[str] = set()
        self._was_connected = False
        self._rested_at = float("inf")
        self._stuck: dict[str, str] = {}
        self._said: dict[str, str] = {}
        self._table = Table(replicas=replicas)
        self._is_built = False
        self._is_placed = False

    # What searchers tell.

    def heard(self, report: Report, *, now: float) -> None:
        """Take what a searcher tells of itself: `register`, `heartbeat`. One older than the last is ignored."""
        ident = report.searcher_id
        if report.seq <= self._seqs.get(ident, -1):
            return
        self._seqs[ident] = report.seq
        self._awaited.discard(ident)
        known = self._known.get(ident)
        if known is None:
            if not report.leaving:
                log.info(
                    "Searcher %s: here, with %d packs and %d MB free", ident, len(report.holdings), report.free_space
                )
                self._known[ident] = Known(report, now)
                self._changed()
            return
        if report.leaving and not known.report.leaving:
            log.info("Searcher %s: leaves", ident)
        if known.hear(report, now=now, patience=self._patience):
            self._changed()

    def done(self, outcome: Outcome, *, now: float) -> None:
        """Take that a searcher did what it was told: `loaded`, `unloaded`."""
        log.info("Searcher %s: done %s (%.12s)", outcome.report.searcher_id, outcome.domain, outcome.sha256)
        self._end(outcome)
        self.heard(outcome.report, now=now)

    def failed(self, outcome: Outcome, *, now: float) -> None:
        """Take that a searcher could not do what it was told. It is let rest from this version for a while."""
        ident = outcome.report.searcher_id
        log.warning("Searcher %s: failed on %s (%.12s): %.1000s", ident, outcome.domain, outcome.sha256, outcome.reason)
        self._end(outcome)
        self.heard(outcome.report, now=now)
        if ident in self._known:
            self._known[ident].failed(outcome.sha256, outcome.reason, now=now)

    def _end(self, outcome: Outcome) -> None:
        # Heartbeats come another way, and may be here before: what this says of the order holds all the same.
        known = self._known.get(outcome.report.searcher_id)
        if known is not None and known.end(outcome.domain, outcome.sha256):
            self._changed()

    def lost(self, searcher_id: str, why: str) -> None:
        """Take that a searcher is gone, whatever it last said of itself."""
        if self._known.pop(searcher_id, None) is not None:
            log.warning("Searcher %s: gone, %s", searcher_id, why)
            self._lost_at[searcher_id] = self._ticked
            self._table.forget(searcher_id)
            self._changed()

    # What the store tells.

    def updated(self, pack: Pack) -> None:
        """Take that this is what the store has of a domain."""
        held = (known.holding(pack.domain) for known in self._known.values())
        # Whoever holds a later generation holds what is no more: the pack was begun anew.
        refuted = {each.sha256 for each in held if each and _is_later(each, pack)} - self._refuted
        if refuted or self._packs.get(pack.domain) != pack:
            self._refuted |= refuted
            self._packs[pack.domain] = pack
            self._gone.discard(pack.domain)
            self._changed()

    def vanished(self, domain: str) -> None:
        """Take that the store has no pack of a domain: nobody is to answer for it any more."""
        known_of = self._packs.pop(domain, None) is not None or any(each.minds(domain) for each in self._known.values())
        if known_of and domain not in self._gone:
            log.info("%s: has no pack any more", domain)
            self._gone.add(domain)
            self._changed()

    def domains(self) -> frozenset[str]:
        """Return the domains that have a pack, as far as is known here."""
        return frozenset(self._packs)

    def in_doubt(self) -> frozenset[str]:
        """Return the domains of which the store should be asked, for a searcher holds what is not known of here."""
        return frozenset(
            each.domain
            for each in self._held()
            if (each.domain not in self._packs and each.domain not in self._gone) or self._is_ahead(each)
        )

    def _is_ahead(self, holding: Holding) -> bool:
        """Return whether somebody holds a later generation than is known of here, and it is not known to be no more."""
        pack = self._packs.get(holding.domain)
        return pack is not None and holding.sha256 not in self._refuted and _is_later(holding, pack)

    def _held(self) -> Iterator[Holding]:
        return (holding for known in self._known.values() for holding in known.report.holdings)

    # What time brings.

    def settle(self) -> None:
        """Begin to place: the store is known, and who is here has had the time to say so."""
        if not self.settled:
            log.info("Settled: %d packs, %d searchers", len(self._packs), len(self._known))
            self.settled = True
            self._changed()

    def connected(self, *, now: float) -> None:
        """Take that the broker is there; if again, nothing is placed until searchers had the time to come back."""
        # Whoever is known the first time said so just now, or before the last orchestrator died.
        again, self._was_connected = self._was_connected, True
        if again and self._known:
            self._grace_until = now + max(GRACE, self._patience)
            self._awaited = set(self._known)

    def tick(self, *, now: float) -> tuple[Command, ...]:
        """Let time pass, and return what is to be told to searchers now."""
        self._look_for_silence(now)
        self._forget_counts(now)
        if not self.settled or self._awaited or (self._is_placed and now < self._rested_at):
            return ()
        placement = place(self._state(now))
        for command in placement.commands:
            log.info("Searcher %s: %s (%s)", command.searcher_id, _shown(command), command.why)
            self._known[command.searcher_id].told(command.order, now=now)
        self._stuck = dict(placement.stuck)
        self._rested_at = min((known.rested_at(now=now) for known in self._known.values()), default=float("inf"))
        self._is_placed, self._is_built = True, False
        self._say_stuck()
        return placement.commands

    def _look_for_silence(self, now: float) -> None:
        late, self._ticked = now - self._ticked, now
        if late > self._heartbeat:
            # Who did not listen cannot say that others were silent.
            self._grace_until = max(self._grace_until, now + self._patience)
        if now >= self._grace_until:
            self._awaited.clear()
            silent = [ident for ident, known in self._known.items() if now - known.heard > self._patience]
            for ident in silent:
                self.lost(ident, f"silent for {now - self._known[ident].heard:.1f} s")

    def _forget_counts(self, now: float) -> None:
        """Forget how far searchers had counted that are gone for as long as a heartbeat lives in its queue.

        One whose count was wrong, be it that somebody spoke in its name, would be ignored for good otherwise.
        """
        for ident in [ident for ident, at in self._lost_at.items() if now - at > self._patience]:
            del self._lost_at[ident]
            if ident not in self._known:
                self._seqs.pop(ident, None)

    def _say_stuck(self) -> None:
        """Say once what stands against a copy, until it is placed or something else does."""
        routes = self._routing().routes
        self._said = {domain: why for domain, why in self._said.items() if domain in routes and routes[domain].missing}
        for domain, why in self._stuck.items():
            if self._said.get(domain) != why:
                log.warning("%s: cannot be placed as wanted: %s", domain, why)
                self._said[domain] = why

    def _state(self, now: float) -> State:
        self._forget()
        by_checksum = {pack.sha256: pack for pack in self._packs.values()}
        return State(
            packs=self._packs,
            searchers=tuple(known.view(by_checksum, now=now) for known in self._known.values()),
            replicas=self._replicas,
            gone=frozenset(self._gone),
            trusted=self._trusted(),
        )

    def _trusted(self) -> frozenset[str]:
        return frozenset(each.sha256 for each in self._held() if self._is_ahead(each))

    def _forget(self) -> None:
        """Forget what matters to nobody here any more."""
        self._gone = {domain for domain in self._gone if any(known.minds(domain) for known in self._known.values())}
        self._refuted &= {each.sha256 for each in self._held()}
        gone = [ident for ident in self._seqs if ident not in self._known]
        for ident in gone[:-_REMEMBERED]:
            del self._seqs[ident]

    def _changed(self) -> None:
        self._is_placed = self._is_built = False

    # What is asked.

    def holder(self, domain: str) -> str:
        """Return who is to answer for a domain: in turn, among those that have its newest version.

        Raises PackNotFound and NotPlaced, and SearchUnavailable while it cannot be told which of them it is.
        """
        table = self._routing()
        chosen = table.next(domain)
        if chosen is not None:
            return chosen
        if domain in table.routes:
            why = table.routes[domain].why
            raise NotPlaced(f"{domain} is on no searcher{f': {why}' if why else ''}")
        if not self.settled:
            raise SearchUnavailable(f"{domain}: it is not known yet what there is")
        raise PackNotFound(f"{domain} has no pack")

    def routes(self, *, now: float) -> Routes:
        """Return all that has a pack and who answers for it, and every searcher."""
        table = self._routing()
        return Routes(
            orchestrator=self.ident,
            version=table.version,
            settled=self.settled,
            routes=tuple(table.routes[domain] for domain in sorted(table.routes)),
            searchers=tuple(self._known[ident].node(now=now) for ident in sorted(self._known)),
        )

    def _routing(self) -> Table:
        if not self._is_built:
            packs = [*self._packs.values(), *self._strangers()]
            self._table.build(packs, self._known.values(), trusted=self._trusted(), stuck=self._stuck)
            self._is_built = True
        return self._table

    def _strangers(self) -> list[Pack]:
        """Return packs that searchers hold and the store has not told of yet; of several versions the latest."""
        unknown = [each for each in self._held() if each.domain not in self._packs and each.domain not in self._gone]
        unknown.sort(key=lambda each: (each.generation, each.sha256))
        return list({each.domain: _as_pack(each) for each in unknown}.values())


def _is_later(holding: Holding, pack: Pack) -> bool:
    return holding.domain == pack.domain and holding.sha256 != pack.sha256 and holding.generation > pack.generation


def _as_pack(holding: Holding) -> Pack:
    return Pack(domain=holding.domain, sha256=holding.sha256, generation=holding.generation, size_mb=holding.size_mb)


def _shown(command: Command) -> str:
    order = command.order
    return f"{type(order).__name__.lower()} {order.domain} ({order.sha256:.12})"
