"""The indexer of an archive: decides when a job runs, and carries it out. A job may run twice and stop anywhere."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Self

from redis import Redis, RedisError

from app.broker.errors import ApplicationError, Postpone
from app.broker.headers import whole_number
from app.broker.policies.delays import rounded_up
from app.counters import ART_JOBS
from app.coverart import musicbrainz
from app.coverart.archive import Archive, PublicArchive
from app.coverart.coordination import Claim, ItemLocks, MessageOrder, always_claimed
from app.coverart.jobs import Delete, Index, Job, Move, kind_of
from app.coverart.musicbrainz import Connection
from app.coverart.outages import (
    FIRST_FREE_RUNS,
    FREE_RUNS,
    MAX_FREE_RUNS,
    ServiceBreakers,
    admit_and_report,
    reporting_to,
)
from app.coverart.project import LISTING_FILE, Entity, Project, listing, served_project, settings_of
from app.coverart.webservice import WebService
from app.errors import ArchiveNotFound, ImageInUse, RemoteError, WebServiceBehind
from app.redis_state.circuit_breaker import admit_to_all
from app.redis_state.outage import is_outage, without_redis
from config.settings import Settings

_log = logging.getLogger(__name__)

#: Seconds beyond all retries of a `move` for which `index` and `delete` wait for it.
_MARGIN = 3_600.0

#: Seconds after which metadata are requested again that the web service does not have yet.
_BEHIND = 60.0

#: `done`: the archive was changed; `skipped`: it was as it should be.
JobResult = Literal["done", "skipped"]


@dataclass(frozen=True, slots=True)
class Indexer:
    """What the jobs of one archive need."""

    project: Project
    archive: Archive
    public: PublicArchive
    web_service: WebService
    read_entity: Callable[[str], Entity | None]
    #: Returns the gid of the entity of an image, or None.
    read_gid_of_image: Callable[[int], str | None]
    locks: ItemLocks
    order: MessageOrder
    breakers: ServiceBreakers
    #: The parents of the event whose job it is, None for a message. The event queue has merged equal events, and what
    #: had to be first has run.
    parents: Sequence[int] | None = None

    @property
    def is_of_event(self) -> bool:
        """Whether the event queue orders the jobs, and not their messages."""
        return self.parents is not None

    @classmethod
    def of(cls, exchange: str, settings: Settings, redis: Redis) -> Self:
        """Return the indexer of an exchange; raises InvalidJob for one that is not served."""
        project, breakers = served_project(exchange, settings), ServiceBreakers.of(exchange, settings, redis)

        def from_database(read: Callable[[Connection, Project, Any], Any], key: object) -> Any:
            with (
                reporting_to(breakers.database, str(key)),
                musicbrainz.kept_connection(settings.musicbrainz_url.get_secret_value()) as connection,
            ):
                return read(connection, project, key)

        public = PublicArchive.of(settings, reporting=partial(admit_and_report, breakers.public))
        patience = settings.art_retry_ms / 1_000 * (settings.art_retry_max + 1) + _MARGIN
        return cls(
            project=project,
            archive=Archive.of(settings_of(project, settings), reporting=partial(reporting_to, breakers.archive)),
            public=public,
            web_service=WebService.of(settings, reporting=partial(reporting_to, breakers.web_service)),
            read_entity=partial(from_database, musicbrainz.entity),
            read_gid_of_image=lambda image: from_database(musicbrainz.gids_of_images, [image]).get(image),
            locks=ItemLocks(redis, project),
            order=MessageOrder(
                redis=redis, project=project, read_item=public.item, window=settings.art_window, patience=patience
            ),
            breakers=breakers,
        )

    def handle(self, job: Job, message_id: str, headers: Mapping[str, Any]) -> None:
        """Run the job of a message now, drop it as a duplicate, or raise Postpone.

        An outage, also of Redis, postpones the message: it is no fault of the message. A retry would take hours, and
        cost its budget.
        """
        try:
            # The table of events has merged equal ones.
            self.run(job, always_claimed if self.is_of_event else self.order.admit(message_id, headers))
        except RemoteError as error:
            free_runs = whole_number(headers, FREE_RUNS, default=0)
            if error.free_after is None or free_runs >= (FIRST_FREE_RUNS if error.may_be_own else MAX_FREE_RUNS):
                raise
            # Rounded up, so that there are few delay queues.
            seconds = rounded_up(round(error.free_after * 1_000)) / 1_000
            _log.warning("%s postponed for %g s, no retry spent: %s", kind_of(job), seconds, error)
            raise Postpone(
                seconds, str(error), code=error.reason, exactly=True, headers={FREE_RUNS: free_runs + 1}
            ) from error
        except RedisError as error:
            if not is_outage(error):
                raise
            raise without_redis(error) from error

    def run(self, job: Job, claim: Claim = always_claimed) -> JobResult:
        """Run a job. It is skipped where `claim`, called before its reads, returns false.

        Raises Postpone where another job works on the item or a circuit breaker is open, and the errors of archive, web
        service and database.
        """
        gids = [job.old_gid, job.new_gid] if isinstance(job, Move) else [job.gid]
        reads_database = self.is_of_event or (isinstance(job, Delete) and job.id is None)
        breakers = self.breakers.needed_by(kind_of(job), reads_database=reads_database)
        try:
            with admit_to_all(breakers, *gids, *map(self.project.bucket, gids)):
                match job:
                    case Index():
                        outcome = self._index(job, claim)
                    case Move():
                        outcome = self._move(job, claim)
                    case Delete():
                        outcome = self._delete(job, claim)
        except Exception as error:
            ART_JOBS.add(kind_of(job), error.reason if isinstance(error, ApplicationError) else "exception")
            raise
        ART_JOBS.add(kind_of(job), outcome)
        return outcome

    def _index(self, job: Index, claim: Claim) -> JobResult:
        with self.locks.hold(job.gid) as held:
            # A merged gid leads to another one. That is locked, too, and read under both locks.
            while True:
                if not claim(*map(Index, held.locks)):
                    return "skipped"
                entity = self.read_entity(job.gid)
                if entity is None:
                    _log.info("%s %s does not exist: not indexed", self.project.entity, job.gid)
                    return "skipped"
                if entity.gid in held.locks:
                    break
                held.add(entity.gid)
            if not self.is_of_event:
                self.order.require_moved(entity, entity.merged, or_copied=True)
                # The listing of an entity that lost its last image is empty; one that never had any needs no item.
                if not entity.images and self.public.item(self.project.bucket(entity.gid)) is None:
                    _log.info("%s %s has no image and no item: not indexed", self.project.entity, entity.gid)
                    return "skipped"
            if not self._write(entity):
                # The web service may read a replica that is behind, which for a new release is the normal case.
                name, present = f"{self.project.entity} {entity.gid}", self.read_entity(entity.gid)
                if present is not None and present.gid == entity.gid:
                    error = WebServiceBehind(f"{name}: 404 from the web service, but the database has it")
                    error.free_after = _BEHIND
                    raise error
                _log.info("%s was deleted or merged: no metadata written", name)
            return "done"

    def _write(self, entity: Entity) -> bool:
        """Write the listing and then the metadata of an entity; return whether the web service has any."""
        bucket = self.project.bucket(entity.gid)
        json_type, xml_type = (f"application/{kind}; charset=utf-8" for kind in ("json", "xml"))
        document = listing(self.project, entity)
        self.archive.put(self.project, bucket, LISTING_FILE, document, content_type=json_type, keep_old=True)
        metadata = self.web_service.metadata(self.project, entity.gid)
        if metadata is None:
            return False
        # Old versions are not kept: the metadata can be written again at any time.
        file = self.project.metadata_file(entity.gid)
        self.archive.put(self.project, bucket, file, metadata, content_type=xml_type)
        _log.info("%s %s indexed: %d images", self.project.entity, entity.gid, len(entity.images))
        return True

    def _move(self, job: Move, claim: Claim) -> JobResult:
        """Copy an image to its new item, then delete the old one; an event's is copied only."""
        if self.is_of_event:
            # Another event deletes the source, maybe hours later.
            with self.locks.hold(job.old_gid, job.new_gid):
                return self._copy(job)
        if not claim(job):
            return "skipped"
        gid = self.read_gid_of_image(job.id)
        if gid in (None, job.old_gid):
            _log.warning(
                "Move of image %d from %s to %s: skipped, the database has it elsewhere; `caa audit` finds its file",
                *(job.id, job.old_gid, job.new_gid),
            )
            return "skipped"
        present = replace(job, new_gid=gid)
        with self.locks.hold(job.old_gid, present.new_gid) as held:
            outcome = self._copy(present)
            if outcome == "done":
                # Without its locks the delete could remove the only copy: another job may have moved the image back.
                held.require()
                file = self.project.image_file(job.old_gid, job.id, job.suffix)
                self.archive.delete(self.project.bucket(job.old_gid), file)
                _log.info("Image %d moved from %s to %s", job.id, job.old_gid, present.new_gid)
            return outcome

    def _copy(self, job: Move) -> JobResult:
        """Copy an image to its new item; skip it if only the new one exists: a former run stopped after its delete.

        Raises ArchiveNotFound if neither exists, and the other errors of the archive.
        """
        if job.old_gid == job.new_gid:  # Copied onto itself and then deleted, the image would be lost.
            _log.warning("Move of image %d from %s to the same item: skipped", job.id, job.old_gid)
            return "skipped"
        source, target = (
            (self.project.bucket(gid), self.project.image_file(gid, job.id, job.suffix))
            for gid in (job.old_gid, job.new_gid)
        )
        try:
            self.archive.copy(self.project, source, target)
        except ArchiveNotFound as error:
            if self.archive.exists(*target):
                _log.info("%s was moved to %s before", "/".join(source), "/".join(target))
                return "skipped"
            raise ArchiveNotFound(
                f"cannot move {'/'.join(source)}: neither it nor {'/'.join(target)} exists; {error}", error.retry_after
            ) from error
        return "done"

    def _delete(self, job: Delete, claim: Claim) -> JobResult:
        """Delete a file; that of an event unless it is needed again, since a retry may come hours after the event.

        Raises ImageInUse for an event's image that no move brought back: an operator queued its deletion.
        """
        with self.locks.hold(job.gid):
            if not claim(job):
                return "skipped"
            entity = self.read_entity(job.gid) if job.id is None else None
            if not self.is_of_event:
                if entity is not None:
                    self.order.require_moved(entity, [merge for merge in entity.merged if merge.gid == job.gid])
            elif job.id is None:
                if entity is not None and entity.gid == job.gid and entity.images:
                    _log.info("%s of %s not deleted: it has images again", LISTING_FILE, job.gid)
                    return "skipped"
            elif self.read_gid_of_image(job.id) == job.gid:
                text = f"image {job.id} of {self.project.entity} {job.gid} not deleted"
                if not self.parents:
                    why = "MusicBrainz's database has it there: remove it there, or post a message `delete` of it"
                    raise ImageInUse(f"{text}, since {why}")
                _log.info("%s: it was moved back", text)
                return "skipped"
            file = LISTING_FILE if job.id is None else self.project.image_file(job.gid, job.id, job.suffix)
            existed = self.archive.delete(self.project.bucket(job.gid), file)
            _log.info("%s/%s %s", self.project.bucket(job.gid), file, "deleted" if existed else "was deleted before")
            return "done" if existed else "skipped"
