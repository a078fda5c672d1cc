"""The searcher registry: which searchers run, by their reports and heartbeats."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from app.cluster.orchestrator.searcher_record import SearcherRecord
from app.cluster.protocol import MISSED_HEARTBEATS, PackVersion, SearcherReport

log = logging.getLogger(__name__)

#: Seconds that searchers have at least to report again after the connection to the broker was lost.
GRACE = 15.0
#: Removed searchers whose last sequence number is kept.
_REMEMBERED = 1_000


class SearcherRegistry:
    """The searchers by id. `now` is in seconds, of a clock that only goes forward."""

    def __init__(self, *, heartbeat: float, now: float) -> None:
        """`heartbeat` is the interval of a searcher's heartbeats in seconds."""
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

    def versions(self) -> Iterator[PackVersion]:
        """Yield the pack versions on all searchers."""
        return (version for record in self.records.values() for version in record.report.holdings)

    def receive(self, report: SearcherReport, *, now: float) -> bool:
        """Receive a report, return whether it changes anything; a report older than the last one is ignored."""
        searcher_id = report.searcher_id
        if report.seq <= self._seqs.get(searcher_id, -1):
            return False
        self._seqs[searcher_id] = report.seq
        self.awaited.discard(searcher_id)
        record = self.records.get(searcher_id)
        if record is None:
            if report.leaving:
                return False
            packs = len(report.holdings)
            log.info("Searcher %s registered: %d packs, %d MB free", searcher_id, packs, report.free_space)
            self.records[searcher_id] = SearcherRecord(report, now)
            return True
        if report.leaving and not record.report.leaving:
            log.info("Searcher %s is leaving", searcher_id)
        return record.receive(report, now=now, patience=self.patience)

    def connected(self, *, now: float) -> None:
        """Note a connection to the broker. After a lost connection, searchers get time to report again."""
        # Reports that precede the first connection are recent, or were queued for a previous orchestrator.
        again, self._has_connected = self._has_connected, True
        if again and self.records:
            self._grace_until = now + max(GRACE, self.patience)
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
        if self.records.pop(searcher_id, None) is None:
            return False
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
        removed = [searcher_id for searcher_id in self._seqs if searcher_id not in self.records]
        for searcher_id in removed[:-_REMEMBERED]:
            del self._seqs[searcher_id]
