"""The orchestrator's record of a searcher: its last report, its packs, pending orders and backoff."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from app.cluster.placement.model import LoadFailure, Order, Pack, SearcherState
from app.cluster.protocol import (
    Load,
    OrderOutcome,
    PackVersion,
    SearcherReport,
    SearcherStatus,
    Unload,
)

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
    """A version of a domain's pack that the searcher failed to load; it is not ordered again before `until`."""

    domain: str
    failure: LoadFailure
    until: float


@dataclass(slots=True)
class _PackVersions:
    """The pack versions on a searcher by domain, as of the last registration or outcome, which had the number `seq`.

    `changes` is the searcher's count of the changes that led to them. `current_at` is when they last agreed with a
    report or followed one: minus infinity after an outcome that shows that an earlier one is missing.
    """

    by_domain: dict[str, PackVersion]
    seq: int
    changes: int
    current_at: float
    used_mb: int = field(init=False)

    @classmethod
    def of(cls, registration: SearcherReport, now: float) -> _PackVersions:
        """Return those of a registration."""
        by_domain = {version.domain: version for version in registration.pack_versions or ()}
        return cls(by_domain, registration.seq, registration.changes, now)

    def __post_init__(self) -> None:
        self.used_mb = sum(version.size_mb for version in self.by_domain.values())

    def change(self, outcome: OrderOutcome, *, now: float) -> None:
        """Apply an outcome that is later than the last one."""
        report, before = outcome.report, self.by_domain.pop(outcome.domain, None)
        if outcome.held is not None:
            self.by_domain[outcome.domain] = outcome.held
        self.used_mb += (outcome.held.size_mb if outcome.held else 0) - (before.size_mb if before else 0)
        self.seq = report.seq
        # The outcome of an order that changed nothing does not stand for a change whose message is missing.
        if report.changes - self.changes == (before != outcome.held):
            self.changes, self.current_at = report.changes, now
        else:
            self.current_at = float("-inf")


class SearcherRecord:
    """One searcher: its last report came at `last_seen`, its last registration at `registered_at`, by one clock.

    It adds to `changed` each domain whose version on the searcher has changed, or whether the searcher serves it.
    """

    def __init__(self, registration: SearcherReport, now: float, changed: set[str]) -> None:
        self._changed = changed
        self.report = registration
        self.last_seen = self.registered_at = now
        # A dict keeps their order.
        self._loading = dict.fromkeys(registration.loading or ())
        self._packs = _PackVersions.of(registration, now)
        self._pending: dict[str, _PendingOrder] = {}
        self._failed: dict[str, _Backoff] = {}
        self.note_all()

    def note_all(self) -> None:
        """Note all domains of the searcher as changed."""
        self._changed.update(self._packs.by_domain)

    def receive(self, report: SearcherReport, *, now: float) -> bool:
        """Receive a report that is later than all others; return whether it changes anything but packs and orders."""
        before, self.report, self.last_seen = self.report, report, now
        if report.pack_versions is not None:
            self.registered_at = now
        changed = False
        if report.leaving != before.leaving:
            self.note_all()
        if report.loading is not None:
            loading = dict.fromkeys(report.loading)
            changed, self._loading = loading != self._loading, loading
        return changed or any(
            getattr(before, name) != getattr(report, name) for name in ("free_space", "capacity", "leaving")
        )

    def replace_packs(self, report: SearcherReport, *, now: float) -> bool:
        """Replace the searcher's packs by those of a registration, unless a later outcome was applied.

        Return whether that changes anything.
        """
        if report.pack_versions is None or report.seq <= self._packs.seq:
            return False
        before, self._packs = self._packs.by_domain, _PackVersions.of(report, now)
        now_held = self._packs.by_domain
        changed = {domain for domain in before.keys() | now_held.keys() if before.get(domain) != now_held.get(domain)}
        self._changed |= changed
        return bool(changed)

    def change_pack(self, outcome: OrderOutcome, *, now: float) -> bool:
        """Apply an outcome to one pack, unless a later one was applied; return whether that changes anything."""
        if outcome.report.seq <= self._packs.seq:
            return False
        before, held = self.version(outcome.domain), outcome.held
        self._packs.change(outcome, now=now)
        self._loading.pop(outcome.sha256, None)
        if before == held:
            return False
        self._changed.add(outcome.domain)
        return True

    def is_current(self, *, now: float) -> bool:
        """Return whether the packs are those of the last report."""
        if self.report.changes == self._packs.changes:
            self._packs.current_at = now
        return self._packs.current_at == now

    def misses_packs(self, *, now: float, patience: float) -> bool:
        """Return whether a change of packs was lost: no outcome has reported it for `patience` seconds."""
        return not self.is_current(now=now) and now - self._packs.current_at >= patience

    def end_orders(self, *, now: float, patience: float) -> bool:
        """Remove orders that were executed or lost; return whether there were any.

        An order without effect for `patience` seconds counts as lost and may be sent again.
        """
        ended = [domain for domain, pending in self._pending.items() if self._has_ended(pending, now, patience)]
        for domain in ended:
            self._end(domain)
        return bool(ended)

    def _has_ended(self, pending: _PendingOrder, now: float, patience: float) -> bool:
        """Return whether an order was executed or lost, by the last reports."""
        order, held = pending.order, self.version(pending.order.domain)
        sha256 = held.sha256 if held else ""
        if isinstance(order, Load):
            # A searcher loads the newest version in the store, which may be newer than the ordered one.
            if sha256 and sha256 != pending.before:
                return True
            if order.sha256 in self._loading:
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

    def add_order(self, order: Order, reason: str, *, now: float) -> None:
        """Add a pending order, and log it with the reason for it."""
        log.info(
            "Order to searcher %s: %s %s (%.12s): %s",
            self.report.searcher_id,
            type(order).__name__.lower(),
            order.domain,
            order.sha256,
            reason,
        )
        held = self.version(order.domain)
        self._pending[order.domain] = _PendingOrder(order, held.sha256 if held else "", now)
        self._changed.add(order.domain)

    def end_order(self, outcome: OrderOutcome, *, now: float, patience: float) -> bool:
        """Remove a pending order that has an outcome; return whether there was one."""
        pending = self._pending.get(outcome.domain)
        if pending is None or not (pending.order.sha256 == outcome.sha256 or self._has_ended(pending, now, patience)):
            return False
        self._end(outcome.domain)
        return True

    def _end(self, domain: str) -> None:
        del self._pending[domain]
        self._changed.add(domain)

    def back_off(self, failed: OrderOutcome, *, now: float) -> None:
        """Back off from the version of a failed order: twice as long after each further failure."""
        sha256 = failed.sha256
        count = self._failed[sha256].failure.count + 1 if sha256 in self._failed else 1
        seconds = min(FIRST_BACKOFF * 2 ** min(count - 1, 30), LONGEST_BACKOFF)
        self._failed[sha256] = _Backoff(failed.domain, LoadFailure(count=count, reason=failed.reason), now + seconds)

    def backoff_ends_at(self, *, now: float) -> float:
        """Return when the next backoff ends; infinity without a backoff."""
        return min((each.until for each in self._failed.values() if each.until > now), default=float("inf"))

    def version(self, domain: str) -> PackVersion | None:
        """Return the version of a domain's pack on the searcher."""
        return self._packs.by_domain.get(domain)

    def versions(self) -> Iterable[PackVersion]:
        """Return all pack versions on the searcher."""
        return self._packs.by_domain.values()

    def serves(self, domain: str) -> bool:
        """Return whether the searcher serves a domain, has no order to unload it and is not leaving."""
        unloading = domain in self._pending and isinstance(self._pending[domain].order, Unload)
        return domain in self._packs.by_domain and not unloading and not self.report.leaving

    def concerns(self, domain: str) -> bool:
        """Return whether the searcher has a domain's pack or a pending order for it."""
        return domain in self._packs.by_domain or domain in self._pending

    def state(self, by_checksum: Mapping[str, Pack], *, now: float) -> SearcherState:
        """Return the searcher's part of the state for a decision. Drops failures of long ago, and of held versions."""
        by_domain = self._packs.by_domain
        held = {by_domain[each.domain].sha256 for each in self._failed.values() if each.domain in by_domain}
        self._failed = {
            sha256: each
            for sha256, each in self._failed.items()
            if now < each.until + (0.0 if sha256 in held else LONGEST_BACKOFF)
        }
        orders = {domain: pending.order for domain, pending in self._pending.items()}
        ordered = {order.sha256 for order in orders.values()}
        has_unknown = False
        for sha256 in self._loading:
            if sha256 in ordered:
                continue
            # A previous orchestrator ordered it, or the searcher recovers its data directory: perhaps thousands.
            pack = by_checksum.get(sha256)
            if pack is not None and pack.domain not in orders:
                orders[pack.domain] = pack.load()
            has_unknown = has_unknown or pack is None
        return SearcherState(
            searcher_id=self.report.searcher_id,
            # The size of an unknown version is unknown: order no load until it is loaded.
            free=0 if has_unknown else self.report.free_space,
            capacity=max(self.report.capacity, self.report.free_space + self._packs.used_mb),
            used=self._packs.used_mb,
            held=by_domain,
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
            packs=len(self._packs.by_domain),
            loading=tuple(self._loading),
            leaving=self.report.leaving,
        )
