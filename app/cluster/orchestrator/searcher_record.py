"""A searcher as the orchestrator knows it: its last report, pending orders and backoff."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from app.cluster.placement.model import LoadFailure, Order, Pack, SearcherState
from app.cluster.protocol import Holding, Load, Node, Report, Unload

log = logging.getLogger(__name__)

#: Seconds of backoff from a version after its first failure; each further failure doubles them, up to the next number.
FIRST_REST = 4.0
#: Seconds of the longest backoff. As long after it, the failures are dropped.
LONGEST_REST = 600.0


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

    def __init__(self, report: Report, now: float) -> None:
        self.report = report
        self.last_seen = now
        self._held = _by_domain(report)
        self._pending: dict[str, _PendingOrder] = {}
        self._failed: dict[str, _Backoff] = {}

    def receive(self, report: Report, *, now: float, patience: float) -> bool:
        """Receive a later report; return whether it changes anything.

        An order without effect for `patience` seconds counts as lost and may be sent again.
        """
        before, self.report, self.last_seen = self.report, report, now
        self._held = _by_domain(report)
        held = {holding.sha256 for holding in report.holdings}
        self._failed = {sha256: each for sha256, each in self._failed.items() if sha256 not in held or each.until > now}
        settled = [domain for domain, pending in self._pending.items() if self._is_settled(pending, now, patience)]
        for domain in settled:
            del self._pending[domain]
        return bool(settled) or replace(before, seq=report.seq) != report

    def _is_settled(self, pending: _PendingOrder, now: float, patience: float) -> bool:
        order, held = pending.order, self._held.get(pending.order.domain)
        sha256 = held.sha256 if held else ""
        if isinstance(order, Load):
            # The store may have had a newer version by then, and a searcher loads what there is.
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
                "Searcher %s did not execute an order in time, it may be sent again: %s", self.report.searcher_id, order
            )
        return is_lost

    def note_order(self, order: Order, *, now: float) -> None:
        """Add a pending order."""
        held = self._held.get(order.domain)
        self._pending[order.domain] = _PendingOrder(order, held.sha256 if held else "", now)

    def end(self, domain: str, sha256: str) -> bool:
        """Remove a pending order that has an outcome; return whether there was one."""
        pending = self._pending.get(domain)
        if pending is None or pending.order.sha256 != sha256:
            return False
        del self._pending[domain]
        return True

    def order_failed(self, sha256: str, reason: str, *, now: float) -> None:
        """Back off from a version: twice as long after each further failure."""
        count = self._failed[sha256].failure.count + 1 if sha256 in self._failed else 1
        rest = min(FIRST_REST * 2 ** min(count - 1, 30), LONGEST_REST)
        self._failed[sha256] = _Backoff(LoadFailure(count=count, reason=reason), now + rest)

    def backoff_ends_at(self, *, now: float) -> float:
        """Return when the next backoff ends; infinity where there is none."""
        return min((each.until for each in self._failed.values() if each.until > now), default=float("inf"))

    def holding(self, domain: str) -> Holding | None:
        """Return the version that it holds of a domain."""
        return self._held.get(domain)

    def answers(self, domain: str) -> bool:
        """Return whether it answers for a domain and is not about to unload it or to leave."""
        unloading = domain in self._pending and isinstance(self._pending[domain].order, Unload)
        return domain in self._held and not unloading and not self.report.leaving

    def concerns(self, domain: str) -> bool:
        """Return whether it holds a domain or has a pending order for it."""
        return domain in self._held or domain in self._pending

    def view(self, by_checksum: Mapping[str, Pack], *, now: float) -> SearcherState:
        """Return the searcher's part of the state that placement decides on."""
        self._forget(now)
        orders = {domain: pending.order for domain, pending in self._pending.items()}
        ordered = {order.sha256 for order in orders.values()}
        unknown = False
        for sha256 in self.report.loading:
            if sha256 in ordered:
                continue
            # An earlier orchestrator ordered it, or the searcher recovers its data directory: perhaps thousands.
            pack = by_checksum.get(sha256)
            if pack is not None and pack.domain not in orders:
                orders[pack.domain] = pack.load()
            unknown = unknown or pack is None
        used = sum(holding.size_mb for holding in self.report.holdings)
        return SearcherState(
            searcher_id=self.report.searcher_id,
            # The room that an unknown version needs is unknown.
            free=0 if unknown else self.report.free_space,
            capacity=max(self.report.capacity, self.report.free_space + used),
            held=self._held,
            orders=orders,
            failures={sha256: each.failure for sha256, each in self._failed.items()},
            resting=frozenset(sha256 for sha256, each in self._failed.items() if each.until > now),
            leaving=self.report.leaving,
        )

    def _forget(self, now: float) -> None:
        self._failed = {sha256: each for sha256, each in self._failed.items() if now < each.until + LONGEST_REST}

    def node(self, *, now: float) -> Node:
        """Return it as it is shown; `loading` by checksum."""
        return Node(
            searcher_id=self.report.searcher_id,
            free_space=self.report.free_space,
            capacity=self.report.capacity,
            age=round(max(now - self.last_seen, 0.0), 3),
            domains=tuple(sorted(self._held)),
            loading=self.report.loading,
            leaving=self.report.leaving,
        )


def _by_domain(report: Report) -> dict[str, Holding]:
    return {holding.domain: holding for holding in report.holdings}
