"""Orchestrator state: known packs and searchers, the routing table and pending orders."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator

from app.cluster.orchestrator.routing_table import RoutingTable
from app.cluster.orchestrator.searcher_record import SearcherRecord
from app.cluster.placement.model import AddressedOrder, ClusterState, Pack
from app.cluster.placement.place import place
from app.cluster.protocol import MISSED, Holding, Outcome, Report, Routes
from app.errors import NotPlaced, PackNotFound, SearchUnavailable

log = logging.getLogger(__name__)

#: Seconds at least that a searcher has to be heard of again, once the broker was away.
GRACE = 15.0
#: Searchers that are gone, of which it is remembered how far they had counted their reports.
_REMEMBERED = 1_000


class OrchestratorState:
    """The state in memory, for one thread. `now` is in seconds, of a clock that only goes forward.

    Nothing is persisted: the store lists the packs, and each report of a searcher is complete. The next report makes up
    for a lost message.
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
        self._records: dict[str, SearcherRecord] = {}
        self._seqs: dict[str, int] = {}
        self._lost_at: dict[str, float] = {}
        self._ticked = now
        self._grace_until = now
        self._awaited: set[str] = set()
        self._has_connected = False
        self._backoff_ends_at = float("inf")
        self._unplaced: dict[str, str] = {}
        self._logged: dict[str, str] = {}
        self._table = RoutingTable(replicas=replicas)
        self._is_built = False
        self._is_placed = False

    # Events of searchers.

    def receive_report(self, report: Report, *, now: float) -> None:
        """Receive a `register` or `heartbeat`; a report older than the last one is ignored."""
        ident = report.searcher_id
        if report.seq <= self._seqs.get(ident, -1):
            return
        self._seqs[ident] = report.seq
        self._awaited.discard(ident)
        record = self._records.get(ident)
        if record is None:
            if not report.leaving:
                log.info("Searcher %s registered: %d packs, %d MB free", ident, len(report.holdings), report.free_space)
                self._records[ident] = SearcherRecord(report, now)
                self._changed()
            return
        if report.leaving and not record.report.leaving:
            log.info("Searcher %s is leaving", ident)
        if record.receive(report, now=now, patience=self._patience):
            self._changed()

    def order_done(self, outcome: Outcome, *, now: float) -> None:
        """Receive `loaded` or `unloaded`: a searcher executed an order."""
        log.info(
            "Searcher %s executed an order for %s (%.12s)", outcome.report.searcher_id, outcome.domain, outcome.sha256
        )
        self._end_order(outcome)
        self.receive_report(outcome.report, now=now)

    def order_failed(self, outcome: Outcome, *, now: float) -> None:
        """Receive `failed`: a searcher could not execute an order. It backs off from this version for a while."""
        ident = outcome.report.searcher_id
        log.warning(
            "Searcher %s failed to execute an order for %s (%.12s): %.1000s",
            ident,
            outcome.domain,
            outcome.sha256,
            outcome.reason,
        )
        self._end_order(outcome)
        self.receive_report(outcome.report, now=now)
        if ident in self._records:
            self._records[ident].order_failed(outcome.sha256, outcome.reason, now=now)

    def _end_order(self, outcome: Outcome) -> None:
        # Heartbeats come another way, and may be here before: what this says of the order holds all the same.
        record = self._records.get(outcome.report.searcher_id)
        if record is not None and record.end(outcome.domain, outcome.sha256):
            self._changed()

    def searcher_lost(self, searcher_id: str, why: str) -> None:
        """Remove a searcher, whatever its last report said."""
        if self._records.pop(searcher_id, None) is not None:
            log.warning("Searcher %s removed: %s", searcher_id, why)
            self._lost_at[searcher_id] = self._ticked
            self._table.forget(searcher_id)
            self._changed()

    # Events of the store.

    def pack_updated(self, pack: Pack) -> None:
        """Receive the version of a domain's pack that is in the store."""
        held = (record.holding(pack.domain) for record in self._records.values())
        # Whoever holds a later generation holds what is no more: the pack was begun anew.
        refuted = {each.sha256 for each in held if each and _is_later(each, pack)} - self._refuted
        if refuted or self._packs.get(pack.domain) != pack:
            self._refuted |= refuted
            self._packs[pack.domain] = pack
            self._gone.discard(pack.domain)
            self._changed()

    def pack_deleted(self, domain: str) -> None:
        """Note that the store has no pack of a domain: every searcher is to unload it."""
        known_of = self._packs.pop(domain, None) is not None or any(
            each.concerns(domain) for each in self._records.values()
        )
        if known_of and domain not in self._gone:
            log.info("%s: its pack was deleted from the store", domain)
            self._gone.add(domain)
            self._changed()

    def domains(self) -> frozenset[str]:
        """Return the domains of all known packs."""
        return frozenset(self._packs)

    def unclear_domains(self) -> frozenset[str]:
        """Return the domains of which searchers hold an unknown or a later version, to be read again."""
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
        return (holding for record in self._records.values() for holding in record.report.holdings)

    # Passage of time.

    def settle(self) -> None:
        """Begin to place packs: the store was read, and running searchers had time to register."""
        if not self.settled:
            log.info("Settled: %d packs, %d searchers", len(self._packs), len(self._records))
            self.settled = True
            self._changed()

    def connected(self, *, now: float) -> None:
        """Note a connection to the broker. After a break searchers get time to return."""
        # Whoever is known the first time said so just now, or before the last orchestrator died.
        again, self._has_connected = self._has_connected, True
        if again and self._records:
            self._grace_until = now + max(GRACE, self._patience)
            self._awaited = set(self._records)

    def tick(self, *, now: float) -> tuple[AddressedOrder, ...]:
        """Remove silent searchers and return the orders to send now."""
        self._drop_silent_searchers(now)
        self._forget_sequences(now)
        if not self.settled or self._awaited or (self._is_placed and now < self._backoff_ends_at):
            return ()
        placement = place(self._state(now))
        for command in placement.commands:
            log.info("Searcher %s: %s (%s)", command.searcher_id, _shown(command), command.why)
            self._records[command.searcher_id].note_order(command.order, now=now)
        self._unplaced = dict(placement.unplaced)
        self._backoff_ends_at = min(
            (record.backoff_ends_at(now=now) for record in self._records.values()), default=float("inf")
        )
        self._is_placed, self._is_built = True, False
        self._log_unplaced()
        return placement.commands

    def _drop_silent_searchers(self, now: float) -> None:
        late, self._ticked = now - self._ticked, now
        if late > self._heartbeat:
            # Who did not listen cannot say that others were silent.
            self._grace_until = max(self._grace_until, now + self._patience)
        if now >= self._grace_until:
            self._awaited.clear()
            silent = [ident for ident, record in self._records.items() if now - record.last_seen > self._patience]
            for ident in silent:
                self.searcher_lost(ident, f"silent for {now - self._records[ident].last_seen:.1f} s")

    def _forget_sequences(self, now: float) -> None:
        """Forget how far searchers had counted that are gone for as long as a heartbeat lives in its queue.

        One whose count was wrong, be it that somebody spoke in its name, would be ignored for good otherwise.
        """
        for ident in [ident for ident, at in self._lost_at.items() if now - at > self._patience]:
            del self._lost_at[ident]
            if ident not in self._records:
                self._seqs.pop(ident, None)

    def _log_unplaced(self) -> None:
        """Log once why a copy cannot be placed, and again when the reason changes."""
        routes = self._routing().routes
        self._logged = {
            domain: why for domain, why in self._logged.items() if domain in routes and routes[domain].missing
        }
        for domain, why in self._unplaced.items():
            if self._logged.get(domain) != why:
                log.warning("%s: a copy cannot be placed: %s", domain, why)
                self._logged[domain] = why

    def _state(self, now: float) -> ClusterState:
        self._forget()
        by_checksum = {pack.sha256: pack for pack in self._packs.values()}
        return ClusterState(
            packs=self._packs,
            searchers=tuple(record.view(by_checksum, now=now) for record in self._records.values()),
            replicas=self._replicas,
            gone=frozenset(self._gone),
            trusted=self._trusted(),
        )

    def _trusted(self) -> frozenset[str]:
        return frozenset(each.sha256 for each in self._held() if self._is_ahead(each))

    def _forget(self) -> None:
        """Drop facts that concern no searcher."""
        self._gone = {
            domain for domain in self._gone if any(record.concerns(domain) for record in self._records.values())
        }
        self._refuted &= {each.sha256 for each in self._held()}
        gone = [ident for ident in self._seqs if ident not in self._records]
        for ident in gone[:-_REMEMBERED]:
            del self._seqs[ident]

    def _changed(self) -> None:
        self._is_placed = self._is_built = False

    # Requests.

    def next_searcher(self, domain: str) -> str:
        """Return the searcher to query for a domain: those with its newest version take turns.

        Raises PackNotFound or NotPlaced, and SearchUnavailable while the state is incomplete.
        """
        table = self._routing()
        chosen = table.next(domain)
        if chosen is not None:
            return chosen
        if domain in table.routes:
            why = table.routes[domain].why
            raise NotPlaced(f"{domain} is on no searcher{f': {why}' if why else ''}")
        if not self.settled:
            raise SearchUnavailable(f"{domain}: the orchestrator has just started and does not know all packs yet")
        raise PackNotFound(f"{domain} has no pack")

    def routes(self, *, now: float) -> Routes:
        """Return the route of each domain with a pack, and every searcher."""
        table = self._routing()
        return Routes(
            orchestrator=self.ident,
            version=table.version,
            settled=self.settled,
            routes=tuple(table.routes[domain] for domain in sorted(table.routes)),
            searchers=tuple(self._records[ident].node(now=now) for ident in sorted(self._records)),
        )

    def _routing(self) -> RoutingTable:
        if not self._is_built:
            packs = [*self._packs.values(), *self._packs_of_searchers()]
            self._table.build(packs, self._records.values(), trusted=self._trusted(), unplaced=self._unplaced)
            self._is_built = True
        return self._table

    def _packs_of_searchers(self) -> list[Pack]:
        """Return the latest version of each pack that searchers hold and the store has not listed yet."""
        unknown = [each for each in self._held() if each.domain not in self._packs and each.domain not in self._gone]
        unknown.sort(key=lambda each: (each.generation, each.sha256))
        return list({each.domain: _as_pack(each) for each in unknown}.values())


def _is_later(holding: Holding, pack: Pack) -> bool:
    return holding.domain == pack.domain and holding.sha256 != pack.sha256 and holding.generation > pack.generation


def _as_pack(holding: Holding) -> Pack:
    return Pack(domain=holding.domain, sha256=holding.sha256, generation=holding.generation, size_mb=holding.size_mb)


def _shown(command: AddressedOrder) -> str:
    order = command.order
    return f"{type(order).__name__.lower()} {order.domain} ({order.sha256:.12})"
