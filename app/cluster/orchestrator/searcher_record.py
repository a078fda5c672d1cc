"""The orchestrator's record of a searcher: its last report, pending orders and backoff."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from app.cluster.placement.model import LoadFailure, Order, Pack, SearcherState
from app.cluster.protocol import Load, PackVersion, SearcherReport, SearcherStatus, Unload

log = logging.getLogger(__name__)

#: Seconds of backoff from a version after its first failure. Each further failure doubles them.
FIRST_BACKOFF = 4.0
#: Seconds of the longest backoff. As long after it, the failures are dropped.
LONGEST_BACKOFF = 600.0


@dataclass(frozen=True, slots=True)
class _PendingOrder:
    """An order without an outcome yet. `before` is the checksum of the version held when the order was sent."""

    order: Order
    before: str
    since: float


@dataclass(frozen=True, slots=True)
class _Backoff:
    """A version that the searcher failed to load; it is not ordered again before `until`."""

    failure: LoadFailure
    until: float


class SearcherRecord:
    """One searcher. `last_seen` is the time of its last report, on the orchestrator's clock."""

    def __init__(self, report: SearcherReport, now: float) -> None:
        self.report = report
        self.last_seen = now
        self._held = _by_domain(report)
        self._pending: dict[str, _PendingOrder] = {}
        self._failed: dict[str, _Backoff] = {}

    def receive(self, report: SearcherReport, *, now: float, patience: float) -> bool:
        """Receive a later report; return whether it changes anything.

        An order without effect for `patience` seconds counts as lost and may be sent again.
        """
        before, self.report, self.last_seen = self.report, report, now
        self._held = _by_domain(report)
        held = {version.sha256 for version in report.holdings}
        self._failed = {sha256: each for sha256, each in self._failed.items() if sha256 not in held or each.until > now}
        ended = [domain for domain, pending in self._pending.items() if self._has_ended(pending, now, patience)]
        for domain in ended:
            del self._pending[domain]
        return bool(ended) or replace(before, seq=report.seq) != report

    def _has_ended(self, pending: _PendingOrder, now: float, patience: float) -> bool:
        """Return whether the last report shows that an order was executed or lost."""
        order, held = pending.order, self._held.get(pending.order.domain)
        sha256 = held.sha256 if held else ""
        if isinstance(order, Load):
            # A searcher loads the newest version in the store, which may be newer than the ordered one.
            if sha256 and sha256 != pending.before:
                return True
            if order.sha256 in self.report.loading:
                self._pending[order.domain] = replace(pending, since=now)
                return False
        elif sha256 != order.sha256:
            return True
        is_lost = now - pending.since >= patience
        if is_lost:
            log.warning(
                "Searcher %s did not execute an order in %g s, it may be sent again: %s",
                self.report.searcher_id,
                patience,
                order,
            )
        return is_lost

    def add_order(self, order: Order, *, now: float) -> None:
        """Add a pending order."""
        held = self._held.get(order.domain)
        self._pending[order.domain] = _PendingOrder(order, held.sha256 if held else "", now)

    def end_order(self, domain: str, sha256: str) -> bool:
        """Remove a pending order that has an outcome; return whether there was one."""
        pending = self._pending.get(domain)
        if pending is None or pending.order.sha256 != sha256:
            return False
        del self._pending[domain]
        return True

    def back_off(self, sha256: str, reason: str, *, now: float) -> None:
        """Back off from a version: twice as long after each further failure."""
        count = self._failed[sha256].failure.count + 1 if sha256 in self._failed else 1
        seconds = min(FIRST_BACKOFF * 2 ** min(count - 1, 30), LONGEST_BACKOFF)
        self._failed[sha256] = _Backoff(LoadFailure(count=count, reason=reason), now + seconds)

    def backoff_ends_at(self, *, now: float) -> float:
        """Return when the next backoff ends; infinity without a backoff."""
        return min((each.until for each in self._failed.values() if each.until > now), default=float("inf"))

    def version(self, domain: str) -> PackVersion | None:
        """Return the version of a domain's pack on the searcher."""
        return self._held.get(domain)

    def serves(self, domain: str) -> bool:
        """Return whether the searcher serves a domain, has no order to unload it and is not leaving."""
        unloading = domain in self._pending and isinstance(self._pending[domain].order, Unload)
        return domain in self._held and not unloading and not self.report.leaving

    def concerns(self, domain: str) -> bool:
        """Return whether the searcher has a domain's pack or a pending order for it."""
        return domain in self._held or domain in self._pending

    def state(self, by_checksum: Mapping[str, Pack], *, now: float) -> SearcherState:
        """Return the searcher's part of the state for a placement decision. Drops failures of long ago."""
        self._failed = {sha256: each for sha256, each in self._failed.items() if now < each.until + LONGEST_BACKOFF}
        orders = {domain: pending.order for domain, pending in self._pending.items()}
        ordered = {order.sha256 for order in orders.values()}
        has_unknown = False
        for sha256 in self.report.loading:
            if sha256 in ordered:
                continue
            # A previous orchestrator ordered it, or the searcher recovers its data directory: perhaps thousands.
            pack = by_checksum.get(sha256)
            if pack is not None and pack.domain not in orders:
                orders[pack.domain] = pack.load()
            has_unknown = has_unknown or pack is None
        used = sum(version.size_mb for version in self.report.holdings)
        return SearcherState(
            searcher_id=self.report.searcher_id,
            # The size of an unknown version is unknown: order no load until it is loaded.
            free=0 if has_unknown else self.report.free_space,
            capacity=max(self.report.capacity, self.report.free_space + used),
            held=self._held,
            orders=orders,
            failures={sha256: each.failure for sha256, each in self._failed.items()},
            backing_off=frozenset(sha256 for sha256, each in self._failed.items() if each.until > now),
            leaving=self.report.leaving,
        )

    def status(self, *, now: float) -> SearcherStatus:
        """Return the searcher's entry in the reply to `get_routes`."""
        return SearcherStatus(
            searcher_id=self.report.searcher_id,
            free_space=self.report.free_space,
            capacity=self.report.capacity,
            age=round(max(now - self.last_seen, 0.0), 3),
            domains=tuple(sorted(self._held)),
            loading=self.report.loading,
            leaving=self.report.leaving,
        )


def _by_domain(report: SearcherReport) -> dict[str, PackVersion]:
    return {version.domain: version for version in report.holdings}
