"""Orchestrator state: known packs and searchers, the routing table and pending orders."""

from __future__ import annotations

import logging
import uuid

from app.cluster.orchestrator.catalog import PackCatalog
from app.cluster.orchestrator.registry import SearcherRegistry
from app.cluster.orchestrator.routing_table import RoutingTable
from app.cluster.placement.copies import Copies
from app.cluster.placement.model import AddressedOrder, ClusterState, Pack, Placement
from app.cluster.placement.place import place
from app.cluster.protocol import OrderOutcome, Routes, RoutesRequest, SearcherReport
from app.errors import NotPlaced, PackNotFound, SearchUnavailable

log = logging.getLogger(__name__)

_ALL_ROUTES = RoutesRequest()


class OrchestratorState:
    """The state in memory, for one thread. `now` is in seconds, of a clock that only goes forward.

    Nothing is persisted: the store lists the packs, and searchers register with all that they have. A searcher of which
    a message was lost is requested to register again. `run_id` identifies this run of the orchestrator.
    """

    def __init__(self, *, replicas: int, heartbeat: float, now: float) -> None:
        """`heartbeat` is the interval of a searcher's heartbeats in seconds."""
        self.run_id = uuid.uuid4().hex
        self.ready = False
        self._replicas = replicas
        #: Domains that changed since the table and the copies were updated.
        self._changed: set[str] = set()
        self._catalog = PackCatalog()
        self._registry = SearcherRegistry(heartbeat=heartbeat, now=now, changed=self._changed)
        self._table = RoutingTable(replicas=replicas)
        self._copies = Copies()
        #: Checksums of trusted versions on searchers by domain, and domains of unknown or trusted versions.
        self._trusted: dict[str, frozenset[str]] = {}
        self._unclear: set[str] = set()
        #: The last decision: why copies of packs cannot be placed.
        self._placement = Placement(orders=(), unplaced={})
        self._backoff_ends_at = float("inf")
        self._is_placed = False

    # Events of searchers.

    def receive_report(self, report: SearcherReport, *, now: float) -> None:
        """Receive a `register` or `heartbeat`; what a later message has changed stays."""
        self._note_change(self._registry.receive(report, now=now))

    def receive_outcome(self, outcome: OrderOutcome, *, now: float) -> None:
        """Receive `loaded`, `unloaded` or `failed`. After a failure, the searcher backs off from this version."""
        searcher_id = outcome.report.searcher_id
        order = f"an order for {outcome.domain} ({outcome.sha256:.12})"
        if outcome.reason:
            log.warning("Searcher %s failed to execute %s: %.1000s", searcher_id, order, outcome.reason)
        else:
            log.info("Searcher %s executed %s", searcher_id, order)
        self._note_change(self._registry.receive_outcome(outcome, now=now))
        if outcome.reason and searcher_id in self._registry.records:
            self._registry.records[searcher_id].back_off(outcome, now=now)

    def registrations_to_request(self) -> tuple[str, ...]:
        """Return the searchers of which a message is missing, each once: request that they register again."""
        return self._registry.registrations_to_request()

    def remove_searcher(self, searcher_id: str, reason: str, *, unless_registered_since: float = float("inf")) -> None:
        """Remove a searcher, whatever its last report said.

        One that has registered since then stays: its queue was missing while it connected again.
        """
        record = self._registry.records.get(searcher_id)
        if record is not None and record.registered_at > unless_registered_since:
            return
        if self._registry.remove(searcher_id):
            log.warning("Searcher %s removed: %s", searcher_id, reason)
            self._table.remove_searcher(searcher_id)
            self._note_change(True)

    # Events of the store.

    def pack_updated(self, pack: Pack) -> None:
        """Receive the version of a domain's pack that is in the store."""
        if self._catalog.update(pack, self._registry.versions_of(pack.domain).values()):
            self._changed.add(pack.domain)
            self._note_change(True)

    def pack_deleted(self, domain: str) -> None:
        """Note that the store has no pack of a domain: every searcher is to unload it."""
        if self._catalog.delete(domain, is_on_searcher=self._is_on_searcher(domain)):
            log.info("%s: its pack was deleted from the store", domain)
            self._changed.add(domain)
            self._note_change(True)

    def domains(self) -> frozenset[str]:
        """Return the domains of all known packs."""
        return frozenset(self._catalog.packs)

    def known_domains(self) -> frozenset[str]:
        """Return the domains of all known packs, and of all versions on searchers that are not to be unloaded."""
        return (self.domains() | {each.domain for each in self._registry.versions()}) - self._catalog.deleted

    def unclear_domains(self) -> frozenset[str]:
        """Return the domains of which searchers have an unknown or a later version: read their packs again."""
        self._update()
        return frozenset(self._unclear)

    def _is_on_searcher(self, domain: str) -> bool:
        return any(record.concerns(domain) for record in self._registry.records.values())

    # Passage of time.

    def begin_placing(self) -> None:
        """Begin to place packs: the store was read, and running searchers had time to register."""
        if not self.ready:
            log.info(
                "Orchestrator ready: %d packs, %d searchers", len(self._catalog.packs), len(self._registry.records)
            )
            self.ready = True
            self._note_change(True)

    def connected(self, *, now: float) -> None:
        """Note a connection to the broker. After a lost connection, searchers get time to report again."""
        self._registry.connected(now=now)

    def tick(self, *, now: float, may_place: bool = True) -> tuple[AddressedOrder, ...]:
        """Remove silent searchers and return the orders to send now; no decision is made unless `may_place`."""
        for searcher_id, age in self._registry.silent(now=now).items():
            self.remove_searcher(searcher_id, f"silent for {age:.1f} s")
        self._registry.forget_sequences(now=now)
        is_current = self._is_placed and now < self._backoff_ends_at
        if not may_place or not self.ready or self._registry.awaited or is_current:
            return ()
        self._catalog.prune(self._registry.versions(), is_on_searcher=self._is_on_searcher)
        self._update()
        records = self._registry.records
        cluster = ClusterState(
            packs=self._catalog.packs,
            searchers=tuple(each.state(self._catalog.by_checksum, now=now) for each in records.values()),
            replicas=self._replicas,
            deleted=frozenset(self._catalog.deleted),
            trusted=frozenset().union(*self._trusted.values()),
        )
        placement = place(cluster, self._copies)
        for each in placement.orders:
            records[each.searcher_id].add_order(each.order, each.reason, now=now)
        self._note_reasons(placement)
        self._backoff_ends_at = min((each.backoff_ends_at(now=now) for each in records.values()), default=float("inf"))
        self._is_placed = True
        return placement.orders

    def _note_reasons(self, placement: Placement) -> None:
        """Log why copies cannot be placed, where the reason is new, and note the changed domains."""
        before, self._placement = self._placement, placement
        if placement.lack and placement.lack != before.lack:
            log.warning("No pack can have all of its copies: %s", placement.lack)
        for domain, reason in placement.unplaced.items():
            if before.unplaced.get(domain) != reason:
                log.warning("%s: a copy cannot be placed: %s", domain, reason)
        if placement.lack != before.lack:
            self._changed.update(self._catalog.packs)
        self._changed.update(domain for domain, _reason in placement.unplaced.items() ^ before.unplaced.items())

    def _note_change(self, changed: bool) -> None:
        if changed:
            self._is_placed = False

    def _update(self) -> None:
        """Bring the routes up to date with all changes, and note the changed domains for the next decision."""
        for domain in self._changed:
            versions = self._registry.versions_of(domain)
            trusted = frozenset(each.sha256 for each in versions.values() if self._catalog.is_trusted(each))
            is_unclear = trusted or any(map(self._catalog.is_unknown, versions.values()))
            (self._unclear.add if is_unclear else self._unclear.discard)(domain)
            if trusted:
                self._trusted[domain] = trusted
            else:
                self._trusted.pop(domain, None)
            pack = self._catalog.pack(domain, versions.values())
            if pack is None:
                self._table.remove(domain)
            else:
                serving = [each for each in versions.items() if self._registry.records[each[0]].serves(domain)]
                reason = self._placement.unplaced.get(domain, self._placement.lack)
                self._table.set(pack, serving, trusted=trusted, reason=reason)
        self._copies.changed |= self._changed
        self._changed.clear()

    # Requests.

    def next_searcher(self, domain: str) -> str:
        """Return the searcher to query for a domain: those with its newest version take turns.

        Raises PackNotFound or NotPlaced, and SearchUnavailable while the state is incomplete.
        """
        self._update()
        table = self._table
        chosen = table.next(domain)
        if chosen is not None:
            return chosen
        if domain in table.routes:
            reason = table.routes[domain].unplaced_reason
            raise NotPlaced(f"{domain} is on no searcher{f': {reason}' if reason else ''}")
        if not self.ready:
            raise SearchUnavailable(f"{domain}: the orchestrator has just started and does not know all packs yet")
        raise PackNotFound(f"{domain} has no pack")

    def routes(self, request: RoutesRequest = _ALL_ROUTES, *, now: float) -> Routes:
        """Return the route of each domain with a pack, or the changes since the requested revision; and every searcher.

        A client with routes of another run, or older than what is remembered, gets all.
        """
        self._update()
        table = self._table
        changes = table.changes(request.revision) if request.orchestrator == self.run_id else None
        domains, removed = changes or (table.routes, [])
        records = self._registry.records
        return Routes(
            orchestrator=self.run_id,
            ready=self.ready,
            routes=tuple(table.routes[domain] for domain in sorted(domains)),
            searchers=tuple(records[searcher_id].status(now=now) for searcher_id in sorted(records)),
            revision=table.revision,
            since=request.revision if changes else None,
            removed=tuple(sorted(removed)),
        )
