"""Loads, unloads and integrity checks of a searcher's packs: one at a time, in a thread."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from app.broker.errors import ApplicationError
from app.cluster.protocol import MB, Load, PackVersion, SearcherReport, Unload
from app.cluster.searcher.data_directory import DataDirectory, StoredPack
from app.cluster.searcher.packs import OpenPacks
from app.errors import PackCorrupt, PackError

log = logging.getLogger(__name__)

#: Seconds that a load waits for queries on what was replaced or dropped before it, where it needs their room.
_SETTLE = 2.0
#: Characters of why something failed that are told.
_LONGEST_REASON = 1_000
#: Seconds after which what is taken over by then is told of: looking at all of a large slot may take minutes, and an
#: orchestrator that starts at the same time listens for a second before it places.
_FIRST_WORD = 0.5
#: Seconds that a pack is taken for whole after it was looked at: one bad query must not keep the loader busy.
_TRUSTED = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """The outcome of a job; `kind` is the type of the message that reports it."""

    kind: Literal["loaded", "unloaded", "failed"]
    domain: str
    sha256: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegrityCheck:
    """A check of the whole file, ordered when a query could not read this version."""

    domain: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSpace:
    """MB for packs: `free` besides what is there, `capacity` if nothing were."""

    free: int
    capacity: int


class FetchPack(Protocol):
    """Fetches packs from the store."""

    def __call__(self, load: Load, target: Path, *, room: int) -> PackVersion:
        """Write the database that the store holds for `load` to `target`, checked, and return which version it is.

        Raises a ApplicationError, and writes no more than `room` bytes.
        """


Job = Load | Unload | IntegrityCheck


class Loader:
    """Runs jobs in order. On failure the previous version keeps serving and the error is reported."""

    def __init__(
        self,
        *,
        directory: DataDirectory,
        packs: OpenPacks,
        budget_mb: int,
        fetch: FetchPack,
        check: Callable[[Path], None],
    ) -> None:
        """Keep at most `budget_mb` in the slot; `check` raises PackCorrupt for a file that is no whole pack."""
        self._directory = directory
        self._packs = packs
        self._budget = budget_mb
        self._fetch = fetch
        self._check = check
        self._left: deque[StoredPack] = deque()
        self._jobs: list[Job] = []
        self._trusted: dict[str, float] = {}
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="loader", daemon=True)

    def start(self, *, recovered: Callable[[], None], tell: Callable[[JobOutcome], None]) -> None:
        """Start the thread, which first recovers the data directory.

        `recovered` is called when that is taken over, and where it takes longer, after half a second, too; `tell` with
        each later change, when it is so. Both are called in threads of the loader's.
        """
        self._on_recovered, self._tell = recovered, tell
        try:
            # At once: whatever is reported from now on tells of it.
            self._left.extend(self._directory.recover())
        except OSError as error:
            log.warning("Data directory not completely recovered: %s", error)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Append a job, unless it equals the last one of its domain."""
        if isinstance(job, IntegrityCheck) and time.monotonic() < self._trusted.get(job.sha256, 0.0):
            return
        with self._changed:
            if next((each for each in reversed(self._jobs) if each.domain == job.domain), None) != job:
                self._jobs.append(job)
                self._changed.notify_all()

    def loading(self) -> tuple[str, ...]:
        """Return the checksums still to be recovered or loaded, the current one first."""
        with self._changed:
            left = [holding.sha256 for holding, _path in self._left]
            return (*left, *(job.sha256 for job in self._jobs if isinstance(job, Load)))

    def room(self) -> DiskSpace:
        """Return how much room there is: less than the budget where the disk is full."""
        used = self._packs.used_mb()
        disk = shutil.disk_usage(self._directory.folder).free // MB
        return DiskSpace(free=max(0, min(self._budget - used, disk)), capacity=min(self._budget, used + disk))

    def report(self, searcher_id: str) -> SearcherReport:
        """Return a report of the searcher's state, with sequence number 0."""
        # In this order, what is loaded meanwhile is in one of the two.
        loading, holdings, room = self.loading(), self._packs.holdings(), self.room()
        return SearcherReport(
            searcher_id=searcher_id,
            seq=0,
            free_space=room.free,
            capacity=room.capacity,
            holdings=holdings,
            loading=loading,
        )

    def close(self, seconds: float) -> None:
        """Start no further job, and wait for the current one, `seconds` at most."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(seconds)

    def _run(self) -> None:
        self._recover()
        self._on_recovered()
        while (job := self._next()) is not None:
            change = self._outcome(job)
            with self._changed:
                self._jobs.pop(0)
            if change is not None:
                self._report_safely(change)

    def _recover(self) -> None:
        """Serve the packs of the data directory's previous process that are intact and fit the budget."""
        soon = threading.Timer(_FIRST_WORD, self._on_recovered)
        soon.start()
        while self._left and not self._closed:
            self._recover_pack(*self._left[0])
            with self._changed:
                self._left.popleft()
        soon.cancel()

    def _recover_pack(self, holding: PackVersion, path: Path) -> None:
        if self._packs.used_mb() + holding.size_mb > self._budget:
            log.warning("Pack of %s not recovered: no room for its %d MB", holding.domain, holding.size_mb)
            self._directory.remove(path)
            return
        try:
            self._check(path)
            self._packs.put(holding, path)
        except Exception as error:  # noqa: BLE001 - One that cannot be read must not keep the others waiting for good.
            log.warning(
                "Pack not recovered: %s", error if isinstance(error, ApplicationError | OSError) else repr(error)
            )
            self._directory.remove(path)

    def _report_safely(self, change: JobOutcome) -> None:
        try:
            self._tell(change)
        except Exception:
            log.exception("Outcome not reported: %s", change)

    def _next(self) -> Job | None:
        """Wait for a job, which stays in the list until it is done."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closed)
            return None if self._closed else self._jobs[0]

    def _outcome(self, job: Job) -> JobOutcome | None:
        try:
            match job:
                case Load():
                    holding = self._load(job)
                    return JobOutcome(kind="loaded", domain=holding.domain, sha256=holding.sha256)
                case Unload():
                    self._packs.drop(job.domain, job.sha256)
                    return JobOutcome(kind="unloaded", domain=job.domain, sha256=job.sha256)
                case IntegrityCheck():
                    self._check_pack(job)
                    return None
        except Exception as error:
            # Whatever it is, a loader that ended would leave a searcher that only looks alive.
            expected = isinstance(error, ApplicationError | OSError)
            reason = str(error).removeprefix(f"{job.domain}: ") if expected else repr(error)
            log.warning("%s: %s", job.domain, reason, exc_info=None if expected else error)
            return JobOutcome(kind="failed", domain=job.domain, sha256=job.sha256, reason=reason[:_LONGEST_REASON])

    def _load(self, load: Load) -> PackVersion:
        """Replace the held version by the store's, unless they are the same."""
        held = self._packs.holding(load.domain)
        if held and held.sha256 == load.sha256:
            return held
        free = self._free(load.size_mb)
        if load.size_mb > free:
            raise PackError(f"{load.size_mb} MB needed, {free} MB free on this searcher")
        with self._directory.temporary_file() as written:
            holding = self._fetch(load, written, room=free * MB)
            if held and held.sha256 == holding.sha256:
                return held
            self._put(holding, self._directory.keep(holding, written))
        log.info("%s: answering from generation %d (%d MB)", holding.domain, holding.generation, holding.size_mb)
        return holding

    def _free(self, wanted: int) -> int:
        """Return the MB that are free, and wait a little where they are fewer than wanted."""
        if wanted > self.room().free:
            self._packs.settle(_SETTLE)
        return self.room().free

    def _put(self, holding: PackVersion, path: Path) -> None:
        try:
            self._packs.put(holding, path)
        except BaseException:
            self._directory.remove(path)
            raise

    def _check_pack(self, doubt: IntegrityCheck) -> None:
        """Drop a pack that is broken; raises PackCorrupt then. A whole one met a query it could not answer."""
        path, held = self._packs.path(doubt.domain), self._packs.holding(doubt.domain)
        if path is None or held is None or held.sha256 != doubt.sha256:
            return
        try:
            self._check(path)
        except PackCorrupt:
            self._packs.drop(doubt.domain, doubt.sha256)
            raise
        log.error("%s: a query failed on a pack that is whole", doubt.domain)
        self._trusted = {doubt.sha256: time.monotonic() + _TRUSTED}
