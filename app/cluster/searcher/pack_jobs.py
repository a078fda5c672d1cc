"""The jobs on a searcher's packs: recover, load, unload and check them. All run in the loader's thread."""

from __future__ import annotations

import logging
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from app.broker.errors import ApplicationError
from app.cluster.protocol import MB, Load, PackVersion, Unload, size_mb
from app.cluster.searcher.data_directory import DataDirectory
from app.cluster.searcher.packs import OpenPacks
from app.errors import PackCorrupt, PackError
from app.pack import database
from app.pack.download import download_pack_to
from app.storage.store import ObjectStore

log = logging.getLogger(__name__)

#: Seconds that a load waits for queries on retired versions to end, if it needs their room.
_RETIRED_TIMEOUT = 2.0
#: Characters of a failure's reason that are reported at most.
_LONGEST_REASON = 1_000
#: Seconds that a pack is not checked again: one query that always fails must not keep the loader busy.
_CHECK_INTERVAL = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """The outcome of a job; `kind` is the type of the message that reports it, `held` the version served after it."""

    kind: Literal["loaded", "unloaded", "failed"]
    domain: str
    sha256: str
    reason: str = ""
    held: PackVersion | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegrityCheck:
    """A check of the whole file, requested when a query could not read this version."""

    domain: str
    sha256: str


PackJob = Load | Unload | IntegrityCheck


class PackJobs:
    """Executes jobs. On failure the previous version of a pack is still served."""

    def __init__(
        self,
        *,
        directory: DataDirectory,
        packs: OpenPacks,
        budget_mb: int,
        store: ObjectStore,
    ) -> None:
        """Keep `budget_mb` in the data directory at most."""
        self.directory = directory
        self.packs = packs
        self._budget = budget_mb
        self._store = store
        self._intact_until: dict[str, float] = {}

    def disk_space(self) -> tuple[int, int]:
        """Return the MB for packs beside the present ones, and without any; less than the budget on a full disk."""
        used = self.packs.used_mb()
        disk = shutil.disk_usage(self.directory.folder).free // MB
        return max(0, min(self._budget - used, disk)), min(self._budget, used + disk)

    def recover(self, version: PackVersion, path: Path) -> None:
        """Serve a pack of the data directory's previous process if it can be opened and fits; otherwise remove it.

        It was checked when it arrived, and synced to the disk: only its schema may be that of another release.
        """
        if self.packs.used_mb() + version.size_mb > self._budget:
            log.warning("Pack of %s not recovered, removed: no room for its %d MB", version.domain, version.size_mb)
            self.directory.remove(path)
            return
        try:
            with self.directory.opening(version.domain, version.sha256):
                database.check(path, is_intact=True)
                self.packs.put(version, path)
        except Exception as error:  # noqa: BLE001 - One unreadable pack must not prevent the recovery of the others.
            reason = error if isinstance(error, ApplicationError | OSError) else repr(error)
            log.warning("Pack of %s not recovered, removed: %s", version.domain, reason)
            self.directory.remove(path)

    def execute(self, job: PackJob) -> JobOutcome | None:
        """Execute a job and return its outcome; None for a check that found the pack intact."""
        try:
            match job:
                case Load():
                    version = self._load(job)
                    return JobOutcome(kind="loaded", domain=version.domain, sha256=version.sha256, held=version)
                case Unload():
                    self.packs.drop(job.domain, job.sha256)
                    held = self.packs.version(job.domain)
                    return JobOutcome(kind="unloaded", domain=job.domain, sha256=job.sha256, held=held)
                case IntegrityCheck():
                    self._check_served(job)
                    return None
        except Exception as error:
            # Any exception: a searcher whose loader thread ended would still send heartbeats, but execute no order.
            expected = isinstance(error, ApplicationError | OSError)
            reason = (str(error).removeprefix(f"{job.domain}: ") if expected else "") or repr(error)
            log.warning("%s: order not executed: %s", job.domain, reason, exc_info=None if expected else error)
            return JobOutcome(
                kind="failed",
                domain=job.domain,
                sha256=job.sha256,
                reason=reason[:_LONGEST_REASON],
                held=self.packs.version(job.domain),
            )

    def _load(self, load: Load) -> PackVersion:
        """Replace the served version by the store's, unless they are the same; return the version then served."""
        held = self.packs.version(load.domain)
        if held and held.sha256 == load.sha256:
            return held
        if load.size_mb > self.disk_space()[0]:
            self.packs.wait_for_retired(_RETIRED_TIMEOUT)
        free, _ = self.disk_space()
        if load.size_mb > free:
            raise PackError(f"{load.size_mb} MB needed, {free} MB free on this searcher")
        self.directory.require_openable(load.domain, load.sha256)
        with self.directory.temporary_file() as written:
            # If the store has a newer version than the ordered one, that is fetched: it saves a second order.
            former = self.packs.path(load.domain)
            stored = download_pack_to(
                self._store, load.domain, written, former=former, at_least=load.generation, room=free * MB
            )
            version = PackVersion(
                domain=load.domain,
                sha256=stored.sha256,
                generation=stored.generation,
                size_mb=size_mb(written.stat().st_size),
            )
            if held and held.sha256 == version.sha256:
                return held
            # Marked only now: a process that is killed during a long download says nothing about the version.
            with self.directory.opening(version.domain, version.sha256):
                database.check(written)
                path = self.directory.keep(version, written)
                try:
                    self.packs.put(version, path)
                except BaseException:
                    self.directory.remove(path)
                    raise
        log.info("%s: serving generation %d (%d MB)", version.domain, version.generation, version.size_mb)
        return version

    def _check_served(self, job: IntegrityCheck) -> None:
        """Check the served file if it is this version; drop the pack and raise PackCorrupt if it is not intact.

        A version that was found intact a short while ago is not checked again.
        """
        path, held = self.packs.path(job.domain), self.packs.version(job.domain)
        if path is None or held is None or held.sha256 != job.sha256:
            return
        if time.monotonic() < self._intact_until.get(job.sha256, 0.0):
            return
        try:
            database.check(path)
        except PackCorrupt:
            self.packs.drop(job.domain, job.sha256)
            raise
        log.error("%s: a query failed, but the pack is intact; still served", job.domain)
        now = time.monotonic()
        self._intact_until = {sha256: until for sha256, until in self._intact_until.items() if until > now}
        self._intact_until[job.sha256] = now + _CHECK_INTERVAL
