"""The searcher registry: which searchers run and what they have, by their registrations, outcomes and heartbeats."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from app.cluster.orchestrator.searcher_record import SearcherRecord
from app.cluster.protocol import MISSED_HEARTBEATS, OrderOutcome, PackVersion, SearcherReport

log = logging.getLogger(__name__)

#: Seconds that searchers have at least to report again after the connection to the broker was lost.
GRACE = 15.0


class SearcherRegistry:
    """The searchers by id. `now` is in seconds, of a clock that only goes forward."""

    def __init__(self, *, heartbeat: float, now: float, changed: set[str]) -> None:
        """`heartbeat` is the interval of a searcher's heartbeats in seconds.

        Domains are added to `changed` as a SearcherRecord does.
        """
        self._changed = changed
        self.records: dict[str, SearcherRecord] = {}
        self.patience = MISSED_HEARTBEATS * heartbeat
        self._heartbeat = heartbeat
        self._seqs: dict[str, int] = {}
        self._lost_at: dict[str, float] = {}
        self._checked_at = now
        self._grace_until = now
        #: Searchers that may still report again after the connection to the broker was lost.
        self.awaited: set[str] = set()
        self._has_connected = False
        #: When each searcher was requested to register because messages of it are missing, and those still to request.
        self._requested_at: dict[str, float] = {}
        self._requested_of_all_at = float("-inf")
        self._to_request: list[str] = []

    def versions(self) -> Iterator[PackVersion]:
        """Yield the pack versions on all searchers."""
        return (version for record in self.records.values() for version in record.versions())

    def versions_of(self, domain: str) -> dict[str, PackVersion]:
        """Return the versions of a domain's pack by searcher id."""
        found = {searcher_id: record.version(domain) for searcher_id, record in self.records.items()}
        return {searcher_id: version for searcher_id, version in found.items() if version is not None}

    def receive(self, report: SearcherReport, *, now: float) -> bool:
        """Receive a heartbeat or a registration; return whether it changes anything.

        Each fact is taken from the latest message that has it: heartbeats use another queue and may overtake a
        registration, or an outcome.
        """
        record = self.records.get(report.searcher_id)
        if record is None:
            return self._receive_first(report, now=now)
        changed = record.replace_packs(report, now=now)
        changed |= self._receive_later(record, report, now=now)
        return record.end_orders(now=now, patience=self.patience) or changed

    def receive_outcome(self, outcome: OrderOutcome, *, now: float) -> bool:
        """Receive the outcome of an order; return whether it changes anything. Takes constant time."""
        record = self.records.get(outcome.report.searcher_id)
        if record is None:
            return self._receive_first(outcome.report, now=now)
        changed = record.change_pack(outcome, now=now)
        changed |= self._receive_later(record, outcome.report, now=now)
        # An older outcome is valid all the same: it ends its order.
        return record.end_order(outcome, now=now, patience=self.patience) or changed

    def _receive_first(self, report: SearcherReport, *, now: float) -> bool:
        """Register a searcher, or request that it registers."""
        searcher_id = report.searcher_id
        if report.leaving or report.seq <= self._seqs.get(searcher_id, -1):
            return False
        if report.pack_versions is None:
            self._request_registration(searcher_id, now=now)
            return False
        packs = len(report.pack_versions)
        log.info("Searcher %s registered: %d packs, %d MB free", searcher_id, packs, report.free_space)
        self._seqs[searcher_id] = report.seq
        self.records[searcher_id] = SearcherRecord(report, now, self._changed)
        return True

    def _receive_later(self, record: SearcherRecord, report: SearcherReport, *, now: float) -> bool:
        """Receive a report of a registered searcher, unless a later one was received."""
        searcher_id, changed = report.searcher_id, False
        if report.seq > self._seqs[searcher_id]:
            self._seqs[searcher_id] = report.seq
            if report.leaving and not record.report.leaving:
                log.info("Searcher %s is leaving", searcher_id)
            changed = record.receive(report, now=now)
        if record.is_current(now=now):
            self.awaited.discard(searcher_id)
        elif record.misses_packs(now=now, patience=self.patience):
            self._request_registration(searcher_id, now=now)
        return changed

    def _request_registration(self, searcher_id: str, *, now: float) -> None:
        """Request that a searcher registers, unless it was requested a short while ago."""
        last = max(self._requested_at.get(searcher_id, self._requested_of_all_at), self._requested_of_all_at)
        if now - last >= self.patience:
            log.info("Searcher %s is requested to register again: a message of it is missing", searcher_id)
            self._requested_at[searcher_id] = now
            self._to_request.append(searcher_id)

    def registrations_to_request(self) -> tuple[str, ...]:
        """Return the searchers to request a registration of, each once."""
        found = tuple(self._to_request)
        self._to_request.clear()
        return found

    def connected(self, *, now: float) -> None:
        """Note a connection to the broker. After a lost connection, searchers get time to report again."""
        # Reports that precede the first connection are recent, or were queued for a previous orchestrator.
        again, self._has_connected = self._has_connected, True
        self._requested_of_all_at = now
        if again and self.records:
            self._grace_until = now + GRACE
            self.awaited = set(self.records)

    def silent(self, *, now: float) -> dict[str, float]:
        """Return the searchers without a report for too long, with the seconds since their last one."""
        late, self._checked_at = now - self._checked_at, now
        if late > self._heartbeat:
            # This process was suspended or busy: reports may still be waiting for it.
            self._grace_until = max(self._grace_until, now + self.patience)
        if now < self._grace_until:
            return {}
        self.awaited.clear()
        ages = {searcher_id: now - record.last_seen for searcher_id, record in self.records.items()}
        return {searcher_id: age for searcher_id, age in ages.items() if age > self.patience}

    def remove(self, searcher_id: str) -> bool:
        """Remove a searcher; return whether it was registered. Its older reports are still ignored afterwards."""
        if searcher_id not in self.records:
            return False
        self.records.pop(searcher_id).note_all()
        self._lost_at[searcher_id] = self._checked_at
        return True

    def forget_sequences(self, *, now: float) -> None:
        """Forget the sequence numbers of searchers that were removed longer ago than a heartbeat lives in its queue.

        Otherwise a searcher would be ignored forever after one report with too high a number in its name.
        """
        for searcher_id in [each for each, at in self._lost_at.items() if now - at > self.patience]:
            del self._lost_at[searcher_id]
            if searcher_id not in self.records:
                self._seqs.pop(searcher_id, None)
        self._requested_at = {each: at for each, at in self._requested_at.items() if now - at < self.patience}
