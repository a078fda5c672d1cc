"""The three jobs: which requests in which order. Each may run twice, and may be cut off anywhere."""

from __future__ import annotations

import logging
from typing import Literal

from app.coverart.archive import Archive
from app.coverart.listing import listing
from app.coverart.project import LISTING_FILE, Project
from app.coverart.values import Delete, Entity, Index, Move
from app.coverart.webservice import WebService
from app.errors import ArchiveNotFound

_log = logging.getLogger(__name__)

#: What a job came to; `skipped`: there was nothing to do.
Outcome = Literal["done", "skipped"]


def index(project: Project, job: Index, *, entity: Entity | None, archive: Archive, web_service: WebService) -> Outcome:
    """Write the listing, then the metadata, of what the database has for the job's gid.

    `entity` is None if it has nothing. A metadata that the web service no longer has is left out: the entity vanished
    after it was read. Raises what the archive and the web service raise.
    """
    if entity is None:
        _log.info("%s %s does not exist: not indexed", project.entity, job.gid)
        return "skipped"
    bucket = project.bucket(entity.gid)
    json_type, xml_type = (f"application/{kind}; charset=utf-8" for kind in ("json", "xml"))
    archive.put(project, bucket, LISTING_FILE, listing(project, entity), content_type=json_type, keep_old=True)
    metadata = web_service.metadata(project, entity.gid)
    if metadata is None:
        _log.info("%s %s vanished: no metadata written", project.entity, entity.gid)
        return "done"
    # No old version of it is kept: it can be made anew at any time.
    archive.put(project, bucket, project.metadata_file(entity.gid), metadata, content_type=xml_type)
    _log.info("%s %s indexed: %d images", project.entity, entity.gid, len(entity.images))
    return "done"


def move(project: Project, job: Move, *, archive: Archive) -> Outcome:
    """Copy an image to its new item, then delete the old one; done already if only the new one is there.

    Raises ArchiveNotFound if neither is there, and what the archive raises.
    """
    if job.old_gid == job.new_gid:  # Copied onto itself and then deleted, it would be lost.
        _log.warning("image %d is to move from %s to itself: left alone", job.id, job.old_gid)
        return "skipped"
    source, target = _place(project, job.old_gid, job), _place(project, job.new_gid, job)
    try:
        archive.copy(project, source, target)
    except ArchiveNotFound as error:
        return _moved_before(archive, source, target, error)
    archive.delete(*source)
    _log.info("image %d moved from %s to %s", job.id, job.old_gid, job.new_gid)
    return "done"


def delete(project: Project, job: Delete, *, archive: Archive) -> Outcome:
    """Delete an image, with its thumbnails, or a listing; one that is not there is no error."""
    file = LISTING_FILE if job.id is None else project.image_file(job.gid, job.id, job.suffix)
    was_there = archive.delete(project.bucket(job.gid), file)
    _log.info("%s/%s %s", project.bucket(job.gid), file, "deleted" if was_there else "was deleted before")
    return "done" if was_there else "skipped"


def _place(project: Project, gid: str, job: Move) -> tuple[str, str]:
    return project.bucket(gid), project.image_file(gid, job.id, job.suffix)


def _moved_before(
    archive: Archive, source: tuple[str, str], target: tuple[str, str], error: ArchiveNotFound
) -> Outcome:
    """Return that a move is done if its target is there; else raise an error that names both places.

    A run that was cut off after its delete leaves this behind.
    """
    if archive.exists(*target):
        _log.info("%s was moved to %s before", "/".join(source), "/".join(target))
        return "skipped"
    raise ArchiveNotFound(
        f"cannot move {'/'.join(source)}: it is not there, nor is {'/'.join(target)}; {error}", error.retry_after
    ) from error
