"""The indexer of an archive: decides when a job runs, and carries it out. A job may run twice and stop anywhere."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal, Self

from redis import Redis, RedisError

from app.broker.errors import Postpone
from app.broker.policies.fixed_ttl import RETRIES
from app.coverart import musicbrainz
from app.coverart.archive import Archive, PublicArchive
from app.coverart.coordination import COALESCED, CoalescingWindow, ItemLocks, archive_breaker
from app.coverart.jobs import Delete, Index, Job, Move
from app.coverart.ordering import deletion_waits, listing_waits, present_move
from app.coverart.project import LISTING_FILE, Entity, Project, listing, served_project, settings_of
from app.coverart.webservice import WebService
from app.errors import ArchiveNotFound, ArchiveUnavailable
from app.state.circuit_breaker import CircuitBreaker
from app.state.outage import WITHOUT_REDIS, is_outage
from config.settings import Settings

_log = logging.getLogger(__name__)

#: Seconds beyond all retries of a `move` for which `index` and `delete` wait for it.
_MARGIN = 3_600.0

#: `done`: the archive was changed; `skipped`: it was as it should be.
Outcome = Literal["done", "skipped"]


@dataclass(frozen=True, slots=True)
class Indexer:
    """What the jobs of one archive need."""

    project: Project
    archive: Archive
    public: PublicArchive
    web_service: WebService
    read_entity: Callable[[str], Entity | None]
    #: Returns the gid of the entity of an image, or None.
    read_home: Callable[[int], str | None]
    locks: ItemLocks
    window: CoalescingWindow
    breaker: CircuitBreaker
    #: Seconds after a merge for which its moves are waited for.
    patience: float
    #: Whether the event queue decides when a job's turn has come. A move keeps its source, which another job deletes.
    ordered: bool = False

    @classmethod
    def of(cls, exchange: str, settings: Settings, redis: Redis) -> Self:
        """Return the indexer of an exchange; raises InvalidJob for one that is not served."""
        project = served_project(exchange, settings)

        def read_entity(gid: str) -> Entity | None:
            with musicbrainz.connect(settings.musicbrainz_url.get_secret_value()) as connection:
                return musicbrainz.entity(connection, project, gid)

        def read_home(image: int) -> str | None:
            with musicbrainz.connect(settings.musicbrainz_url.get_secret_value()) as connection:
                return musicbrainz.homes(connection, project, [image]).get(image)

        return cls(
            project=project,
            archive=Archive.of(settings_of(project, settings)),
            public=PublicArchive.of(settings),
            web_service=WebService.of(settings),
            read_entity=read_entity,
            read_home=read_home,
            locks=ItemLocks(redis, project),
            window=CoalescingWindow(redis, project, settings.art_window),
            breaker=archive_breaker(redis, settings.art_outage_pause),
            patience=settings.art_retry_ms / 1_000 * (settings.art_retry_max + 1) + _MARGIN,
        )

    def handle(self, job: Job, message_id: str, headers: Collection[str]) -> None:
        """Run the job of a message now, drop it as a duplicate, or raise Postpone.

        An outage of Redis postpones the message: it is no fault of the message. A retry would take hours, and cost its
        budget.
        """
        try:
            decision = self.decide(job, message_id, headers)
            if isinstance(decision, Postpone):
                raise decision
            if decision == "run":
                self.run(job)
        except RedisError as error:
            if not is_outage(error):
                raise
            raise Postpone(WITHOUT_REDIS, f"Redis: {error}") from error

    def decide(self, job: Job, message_id: str, headers: Collection[str]) -> Literal["run", "drop"] | Postpone:
        """Return what to do with a message now. Only a new message, neither coalesced nor a retry, may be dropped."""
        if self.window.seconds and not {COALESCED, RETRIES} & set(headers):
            return self.window.decide(job, message_id)
        if pause := self.breaker.seconds_open():
            return Postpone(pause, "the circuit breaker is open: the archive was unavailable")
        return "run"

    def run(self, job: Job) -> Outcome:
        """Run a job; opens the circuit breaker where the archive is unavailable, and resets it otherwise.

        Raises Postpone where another job works on the item or must run first, and the errors of archive, web service
        and database.
        """
        try:
            self.window.clear(job)
            match job:
                case _ if self.ordered:
                    outcome = self._run_in_turn(job)
                case Index():
                    outcome = self._index(job)
                case Move():
                    outcome = self._move(job)
                case Delete():
                    outcome = self._delete(job)
        except ArchiveUnavailable as error:
            self.breaker.open(error.retry_after)
            raise
        self.breaker.reset()
        return outcome

    def _run_in_turn(self, job: Job) -> Outcome:
        """Run a job of the event queue, which has run before it what had to be first."""
        match job:
            case Index():
                with self.locks.hold_entity(job.gid, self.read_entity) as entity:
                    if entity is None:
                        _log.info("%s %s does not exist: not indexed", self.project.entity, job.gid)
                        return "skipped"
                    return index(self.project, entity, archive=self.archive, web_service=self.web_service)
            case Move():
                with self.locks.hold(job.old_gid, job.new_gid):
                    return copy(self.project, job, archive=self.archive)
            case Delete():
                with self.locks.hold(job.gid):
                    return delete(self.project, job, archive=self.archive)

    def _index(self, job: Index) -> Outcome:
        with self.locks.hold_entity(job.gid, self.read_entity) as entity:
            if entity is None:
                _log.info("%s %s does not exist: not indexed", self.project.entity, job.gid)
                return "skipped"
            if wait := listing_waits(self.project, entity, self.public.item, patience=self.patience):
                raise wait
            # The listing of an entity that lost its last image is empty; one that never had any needs no item.
            if not entity.images and self.public.item(self.project.bucket(entity.gid)) is None:
                _log.info("%s %s has no image and no item: not indexed", self.project.entity, entity.gid)
                return "skipped"
            return index(self.project, entity, archive=self.archive, web_service=self.web_service)

    def _move(self, job: Move) -> Outcome:
        present = present_move(job, self.read_home(job.id))
        if present is None:
            _log.warning(
                "Move of image %d from %s to %s: skipped, the database has it elsewhere; `caa audit` finds its file",
                *(job.id, job.old_gid, job.new_gid),
            )
            return "skipped"
        with self.locks.hold(present.old_gid, present.new_gid) as require_held:
            return move(self.project, present, archive=self.archive, require_held=require_held)

    def _delete(self, job: Delete) -> Outcome:
        with self.locks.hold(job.gid):
            if job.id is None:
                entity = self.read_entity(job.gid)
                if wait := deletion_waits(self.project, job.gid, entity, self.public.item, patience=self.patience):
                    raise wait
            return delete(self.project, job, archive=self.archive)


def index(project: Project, entity: Entity, *, archive: Archive, web_service: WebService) -> Outcome:
    """Write the listing and then the metadata of the database's entity.

    Metadata that the web service no longer has are left out: the entity was deleted after it was read. Raises the
    errors of archive and web service.
    """
    bucket = project.bucket(entity.gid)
    json_type, xml_type = (f"application/{kind}; charset=utf-8" for kind in ("json", "xml"))
    archive.put(project, bucket, LISTING_FILE, listing(project, entity), content_type=json_type, keep_old=True)
    metadata = web_service.metadata(project, entity.gid)
    if metadata is None:
        _log.info("%s %s was deleted: no metadata written", project.entity, entity.gid)
        return "done"
    # Old versions are not kept: the metadata can be written again at any time.
    archive.put(project, bucket, project.metadata_file(entity.gid), metadata, content_type=xml_type)
    _log.info("%s %s indexed: %d images", project.entity, entity.gid, len(entity.images))
    return "done"


def move(project: Project, job: Move, *, archive: Archive, require_held: Callable[[], None] = lambda: None) -> Outcome:
    """Copy an image to its new item, then delete the old one; skip it if only the new one exists.

    A former run that stopped after its delete leaves only the new one. `require_held` raises an error if the job lost
    its locks. Another job may have moved the image back then, and the delete would remove the only copy. Raises
    ArchiveNotFound if neither exists, and the other errors of the archive.
    """
    if copy(project, job, archive=archive) == "skipped":
        return "skipped"
    require_held()
    archive.delete(project.bucket(job.old_gid), project.image_file(job.old_gid, job.id, job.suffix))
    _log.info("Image %d moved from %s to %s", job.id, job.old_gid, job.new_gid)
    return "done"


def copy(project: Project, job: Move, *, archive: Archive) -> Outcome:
    """Copy an image to its new item; skip it if only the new one exists. Raises as `move` does."""
    if job.old_gid == job.new_gid:  # Copied onto itself and then deleted, the image would be lost.
        _log.warning("Move of image %d from %s to the same item: skipped", job.id, job.old_gid)
        return "skipped"
    source, target = (
        (project.bucket(gid), project.image_file(gid, job.id, job.suffix)) for gid in (job.old_gid, job.new_gid)
    )
    try:
        archive.copy(project, source, target)
    except ArchiveNotFound as error:
        if archive.exists(*target):
            _log.info("%s was moved to %s before", "/".join(source), "/".join(target))
            return "skipped"
        raise ArchiveNotFound(
            f"cannot move {'/'.join(source)}: neither it nor {'/'.join(target)} exists; {error}", error.retry_after
        ) from error
    return "done"


def delete(project: Project, job: Delete, *, archive: Archive) -> Outcome:
    """Delete an image with its thumbnails, or a listing; skip a file that does not exist."""
    file = LISTING_FILE if job.id is None else project.image_file(job.gid, job.id, job.suffix)
    existed = archive.delete(project.bucket(job.gid), file)
    _log.info("%s/%s %s", project.bucket(job.gid), file, "deleted" if existed else "was deleted before")
    return "done" if existed else "skipped"
