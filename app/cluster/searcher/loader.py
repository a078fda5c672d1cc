"""The loader: a searcher's queue of jobs on its packs, executed one at a time in a thread."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from app.cluster.protocol import Load, SearcherReport
from app.cluster.searcher.data_directory import StoredPack
from app.cluster.searcher.pack_jobs import IntegrityCheck, JobOutcome, PackJob, PackJobs

log = logging.getLogger(__name__)

#: Seconds after which a running recovery is reported. Checking a large data directory may take minutes, while an
#: orchestrator that starts meanwhile waits one second for registrations before it places packs.
_FIRST_REPORT = 0.5


class Loader:
    """Executes jobs in order and reports their outcomes."""

    def __init__(self, jobs: PackJobs) -> None:
        self._jobs = jobs
        self._unrecovered: deque[StoredPack] = deque()
        self._queue: deque[PackJob] = deque()
        self._closed = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def start(self, *, recovered: Callable[[], None], report_outcome: Callable[[JobOutcome], None]) -> None:
        """Start the thread, which first recovers the data directory.

        `recovered` is called after the recovery, and half a second after its start if it takes longer.
        `report_outcome` is called after each job. Both are called in the loader's threads.
        """
        try:
            # Before the thread starts, so that the first report lists the packs to recover as `loading`.
            self._unrecovered.extend(self._jobs.directory.recover())
        except OSError as error:
            log.warning("Data directory not completely recovered: %s", error)
        self._thread = threading.Thread(target=self._run, args=(recovered, report_outcome), name="loader", daemon=True)
        self._thread.start()

    def submit(self, job: PackJob) -> None:
        """Append a job, unless it is a check that waits already: very many queries of one pack may fail."""
        with self._changed:
            if isinstance(job, IntegrityCheck) and job in self._queue:
                return
            self._queue.append(job)
            self._changed.notify_all()

    def loading(self) -> tuple[str, ...]:
        """Return the checksums still to be recovered or loaded, the current one first."""
        with self._changed:
            to_load = [job.sha256 for job in self._queue if isinstance(job, Load)]
            return (*(version.sha256 for version, _path in self._unrecovered), *to_load)

    def report(self, searcher_id: str) -> SearcherReport:
        """Return a report of the searcher's state without its packs, with sequence number 0."""
        # In this order, a pack that is loaded meanwhile is in `loading`, counted in `changes`, or both.
        loading, changes = self.loading(), self._jobs.packs.changes()
        free_space, capacity = self._jobs.disk_space()
        return SearcherReport(
            searcher_id=searcher_id, seq=0, changes=changes, free_space=free_space, capacity=capacity, loading=loading
        )

    def registration(self, searcher_id: str) -> SearcherReport:
        """Return a complete report of the searcher's state, with sequence number 0."""
        report = self.report(searcher_id)
        changes, versions = self._jobs.packs.versions()
        return replace(report, changes=changes, pack_versions=versions)

    def close(self, seconds: float) -> None:
        """Start no further job, and wait for the current one, `seconds` at most; it does not count as a crash."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(seconds)
        self._jobs.directory.stop_opening()

    def _run(self, recovered: Callable[[], None], report_outcome: Callable[[JobOutcome], None]) -> None:
        first_report = threading.Timer(_FIRST_REPORT, recovered)
        first_report.start()
        while self._unrecovered and not self._closed:
            self._jobs.recover(*self._unrecovered[0])
            with self._changed:
                self._unrecovered.popleft()
        first_report.cancel()
        recovered()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closed)
                if self._closed:
                    return
                job = self._queue[0]
            outcome = self._jobs.execute(job)
            # The job stays in the queue until it is executed: reports list its checksum as `loading`.
            with self._changed:
                self._queue.popleft()
            if outcome is not None:
                try:
                    report_outcome(outcome)
                except Exception:
                    log.exception("Outcome not reported: %s", outcome)
