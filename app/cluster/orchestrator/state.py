"""Orchestrator state: known packs and searchers, the routing table and pending orders."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping

from app.cluster.orchestrator.catalog import PackCatalog
from app.cluster.orchestrator.registry import SearcherRegistry
from app.cluster.orchestrator.routing_table import RoutingTable
from app.cluster.placement.model import AddressedOrder, ClusterState, Pack
from app.cluster.placement.place import place
from app.cluster.protocol import Heartbeat, Outcome, Routes
from app.errors import NotPlaced, PackNotFound, SearchUnavailable

log = logging.getLogger(__name__)


class OrchestratorState:
    """The state in memory, for one thread. `now` is in seconds, of a clock that only goes forward.

    Nothing is persisted: the store lists the packs, and searchers register with all that they have. A searcher of which
    a message was lost is requested to register again. `run_id` identifies this run of the orchestrator.
    """

    def __init__(self, *, replicas: int, heartbeat: float, now: float) -> None:
        """`heartbeat` is the interval of a searcher's heartbeats in seconds."""
        self.run_id = uuid.uuid4().hex
        self.settled = False
        self._replicas = replicas
        self._catalog = PackCatalog()
        self._registry = SearcherRegistry(heartbeat=heartbeat, now=now)
        self._table = RoutingTable(replicas=replicas)
        #: Why copies of packs cannot be placed, by domain, as of the last decision.
        self._unplaced: Mapping[str, str] = {}
        self._backoff_ends_at = float("inf")
        self._is_built = False
        self._is_placed = False

    # Events of searchers.

    def receive_report(self, report: Heartbeat, *, now: float) -> None:
        """Receive a `register` or `heartbeat`; what a later message has changed stays."""
        self._note_change(self._registry.receive(report, now=now))

    def order_completed(self, outcome: Outcome, *, now: float) -> None:
        """Receive `loaded` or `unloaded`: a searcher executed an order."""
        log.info(
            "Searcher %s executed an order for %s (%.12s)", outcome.report.searcher_id, outcome.domain, outcome.sha256
        )
        self._note_change(self._registry.receive_outcome(outcome, now=now))

    def order_failed(self, outcome: Outcome, *, now: float) -> None:
        """Receive `failed`: a searcher could not execute an order. It backs off from this version for a while."""
        searcher_id = outcome.report.searcher_id
        log.warning(
            "Searcher %s failed to execute an order for %s (%.12s): %.1000s",
            searcher_id,
            outcome.domain,
            outcome.sha256,
            outcome.reason,
        )
        self._note_change(self._registry.receive_outcome(outcome, now=now))
        if searcher_id in self._registry.records:
            self._registry.records[searcher_id].back_off(outcome.sha256, outcome.reason, now=now)

    def registrations_to_request(self) -> tuple[str, ...]:
        """Return the searchers of which a message is missing, each once: request that they register again."""
        return self._registry.registrations_to_request()

    def remove_searcher(self, searcher_id: str, reason: str) -> None:
        """Remove a searcher, whatever its last report said."""
        if self._registry.remove(searcher_id):
            log.warning("Searcher %s removed: %s", searcher_id, reason)
            self._table.remove(searcher_id)
            self._note_change(True)

    # Events of the store.

    def pack_updated(self, pack: Pack) -> None:
        """Receive the version of a domain's pack that is in the store."""
        held = (record.version(pack.domain) for record in self._registry.records.values())
        self._note_change(self._catalog.update(pack, [version for version in held if version]))

    def pack_deleted(self, domain: str) -> None:
        """Note that the store has no pack of a domain: every searcher is to unload it."""
        if self._catalog.delete(domain, is_on_searcher=self._is_on_searcher(domain)):
            log.info("%s: its pack was deleted from the store", domain)
            self._note_change(True)

    def domains(self) -> frozenset[str]:
        """Return the domains of all known packs."""
        return frozenset(self._catalog.packs)

    def known_domains(self) -> frozenset[str]:
        """Return the domains of all known packs, and of all versions on searchers that are not to be unloaded."""
        return (self.domains() | {each.domain for each in self._registry.versions()}) - self._catalog.deleted

    def unclear_domains(self) -> frozenset[str]:
        """Return the domains of which searchers have an unknown or a later version: read their packs again."""
        catalog = self._catalog
        return frozenset(
            each.domain for each in self._registry.versions() if catalog.is_unknown(each) or catalog.is_trusted(each)
        )

    def _is_on_searcher(self, domain: str) -> bool:
        return any(record.concerns(domain) for record in self._registry.records.values())

    # Passage of time.

    def settle(self) -> None:
        """Begin to place packs: the store was read, and running searchers had time to register."""
        if not self.settled:
            log.info("Settled: %d packs, %d searchers", len(self._catalog.packs), len(self._registry.records))
            self.settled = True
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
        if not may_place or not self.settled or self._registry.awaited or is_current:
            return ()
        records = self._registry.records
        self._catalog.prune(self._registry.versions(), is_on_searcher=self._is_on_searcher)
        placement = place(
            ClusterState(
                packs=self._catalog.packs,
                searchers=tuple(record.state(self._catalog.by_checksum, now=now) for record in records.values()),
                replicas=self._replicas,
                deleted=frozenset(self._catalog.deleted),
                trusted=self._trusted(),
            )
        )
        for addressed in placement.orders:
            order = addressed.order
            log.info(
                "Order to searcher %s: %s %s (%.12s): %s",
                addressed.searcher_id,
                type(order).__name__.lower(),
                order.domain,
                order.sha256,
                addressed.reason,
            )
            records[addressed.searcher_id].add_order(order, now=now)
        for domain, reason in placement.unplaced.items():
            if self._unplaced.get(domain) != reason:
                log.warning("%s: a copy cannot be placed: %s", domain, reason)
        self._unplaced = placement.unplaced
        self._backoff_ends_at = min((each.backoff_ends_at(now=now) for each in records.values()), default=float("inf"))
        self._is_placed, self._is_built = True, False
        return placement.orders

    def _trusted(self) -> frozenset[str]:
        return frozenset(each.sha256 for each in self._registry.versions() if self._catalog.is_trusted(each))

    def _note_change(self, changed: bool) -> None:
        if changed:
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
            reason = table.routes[domain].why
            raise NotPlaced(f"{domain} is on no searcher{f': {reason}' if reason else ''}")
        if not self.settled:
            raise SearchUnavailable(f"{domain}: the orchestrator has just started and does not know all packs yet")
        raise PackNotFound(f"{domain} has no pack")

    def routes(self, *, now: float) -> Routes:
        """Return the route of each domain with a pack, and every searcher."""
        table = self._routing()
        records = self._registry.records
        return Routes(
            orchestrator=self.run_id,
            settled=self.settled,
            routes=tuple(table.routes[domain] for domain in sorted(table.routes)),
            searchers=tuple(records[searcher_id].status(now=now) for searcher_id in sorted(records)),
        )

    def _routing(self) -> RoutingTable:
        if not self._is_built:
            packs = self._catalog.with_unknown(self._registry.versions())
            records = self._registry.records.values()
            self._table.build(packs, records, trusted=self._trusted(), unplaced=self._unplaced)
            self._is_built = True
        return self._table
