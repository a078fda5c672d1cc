"""Cover art and event art: index, move and delete in the archive, as a MusicBrainz database asks for them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from app.broker.errors import Postpone
from app.broker.policies.fixed_ttl import RETRIES
from app.broker.worker.task import Task
from app.celery import app
from app.coverart import jobs, musicbrainz
from app.coverart.archive import Archive
from app.coverart.calls import job_of, message
from app.coverart.locks import Locks
from app.coverart.outage import Outage
from app.coverart.project import Project, served
from app.coverart.values import Delete, Entity, Index, Job, Move
from app.coverart.webservice import WebService
from app.coverart.window import SETTLED, Window
from app.errors import ArchiveUnavailable, InvalidJob
from app.state.client import get_quick_redis
from app.topology.queues import art_queues
from config.routes import art_routes
from config.settings import get_settings
from tasks.base import context

#: Seconds for which a killed job's item stays locked (a living one renews its lock three times in that time), and
#: after which a job that found its item locked asks again.
_LOCK, _LOCKED_AGAIN = 10.0, 1.0

#: Seconds after which a job that did not reach Redis asks again.
_WITHOUT_REDIS = 8.0


@dataclass(frozen=True, slots=True)
class Art:
    """What the jobs of one archive work with."""

    project: Project
    archive: Archive
    web_service: WebService
    locks: Locks
    window: Window
    outage: Outage


def art(exchange: str) -> Art:
    """Return what the jobs of an exchange work with; raises InvalidJob for one that is not served here."""
    settings, redis = context().settings, context().redis
    projects = served(settings)
    if exchange not in projects:
        served_here = ", ".join(projects) or "none (is MUSICBRAINZ_URL set?)"
        raise InvalidJob(f"archive {exchange!r} is not served here; served: {served_here}")
    project = projects[exchange]
    return Art(
        project=project,
        archive=Archive.of(settings),
        web_service=WebService.of(settings),
        locks=Locks(redis, project, seconds=_LOCK, retry_after=_LOCKED_AGAIN),
        window=Window(redis, project, settings.art_window),
        outage=Outage(redis, settings.art_outage_pause),
    )


class ArtTask(Task):
    """A job that goes out, and comes back, as the plain message that MusicBrainz itself would post."""

    abstract = True

    @property
    def kind(self) -> str:
        """The job's routing key."""
        return str(self.name).removeprefix("coverart.")

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Post the plain message of a job, confirmed; raises InvalidJob before anything is sent.

        `archive` names the exchange where more than one is served. No other option of Celery's has a place in a plain
        message: InvalidJob names it.
        """
        refused = sorted(set(options) - {"task_id", "confirm"})
        if refused:
            raise InvalidJob(f"{self.name}: a plain message cannot carry {', '.join(refused)}")
        job, exchange = self._read(tuple(args or ()), dict(kwargs or {}))
        ident = options.get("task_id") or str(uuid.uuid4())
        prefix, publisher = art(exchange).project.prefix, context().publisher
        publisher.declare(art_queues(prefix, context().settings))
        publisher.publish([message(job, prefix, ident)])
        return self.AsyncResult(ident)

    def on_postponed(self, task_id: str, args: Any, kwargs: Any) -> None:
        """Note, when the broker has it, that a message waits out its window."""
        job, exchange = self._read(tuple(args or ()), dict(kwargs or {}))
        settings = context().settings
        # Asked with little patience, for the event loop stands still meanwhile; without this mark one more job runs.
        quick = get_quick_redis(settings.redis)
        Window(quick, served(settings)[exchange], settings.art_window).opened(job, task_id)

    def work(self, call: Mapping[str, Any], run: Callable[[Art, Any], None]) -> None:
        """Run a job when its turn has come; raises Postpone while it has not.

        Redis is ours, and no fault of a job's: one that does not reach it spends no retry, which would be four hours.
        """
        try:
            self._work(call, run)
        except (RedisConnectionError, RedisTimeoutError) as error:
            raise Postpone(_WITHOUT_REDIS, f"Redis: {error}") from error

    def _work(self, call: Mapping[str, Any], run: Callable[[Art, Any], None]) -> None:
        job, exchange = self._read((), call)
        place = art(exchange)
        headers = self.request.headers or {}
        is_new = not {SETTLED, RETRIES} & set(headers)
        if place.window.seconds and is_new and place.window.settle(job, str(self.request.id)):
            return
        with minding(place.outage):
            place.window.close(job)
            run(place, job)

    def _read(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Job, str]:
        named = dict(kwargs)
        exchange = named.pop("archive", None) or get_settings().cover_art_exchange
        return job_of(self.kind, args, named), str(exchange)


@contextmanager
def minding(outage: Outage) -> Iterator[None]:
    """Run the block unless the archive is let alone; an archive that does not answer is let alone from then on.

    Raises:
        Postpone: it is let alone.
    """
    if pause := outage.remaining():
        raise Postpone(pause, "the archive is let alone: it did not answer")
    try:
        yield
    except ArchiveUnavailable as error:
        outage.failed(error.retry_after)
        raise
    outage.over()


_LIMITS = {route.task: route for route in art_routes("")}


def _task(kind: str) -> Callable[[Callable[..., None]], Any]:
    route = _LIMITS[f"coverart.{kind}"]
    limits = {"time_limit": route.time_limit, "soft_time_limit": route.soft_time_limit}
    decorator: Callable[[Callable[..., None]], Any] = app.task(name=route.task, base=ArtTask, bind=True, **limits)
    return decorator


@_task("index")
def index(self: ArtTask, **call: Any) -> None:
    """Write anew what the archive holds about a release: `index.delay(gid)`."""
    self.work(call, _index)


@_task("move")
def move(self: ArtTask, **call: Any) -> None:
    """Move an image to another release: `move.delay(id, old_gid, new_gid, suffix="jpg")`."""
    self.work(call, _move)


@_task("delete")
def delete(self: ArtTask, **call: Any) -> None:
    """Delete an image, or without `id` the listing: `delete.delay(gid, id=None, suffix="jpg")`."""
    self.work(call, _delete)


def _index(place: Art, job: Index) -> None:
    url = context().settings.musicbrainz_url.get_secret_value()

    def read(gid: str) -> Entity | None:
        with musicbrainz.connect(url) as connection:
            return musicbrainz.entity(connection, place.project, gid)

    with place.locks.hold_entity(job.gid, read) as entity:
        jobs.index(place.project, job, entity=entity, archive=place.archive, web_service=place.web_service)


def _move(place: Art, job: Move) -> None:
    with place.locks.hold(job.old_gid, job.new_gid):
        jobs.move(place.project, job, archive=place.archive)


def _delete(place: Art, job: Delete) -> None:
    with place.locks.hold(job.gid):
        jobs.delete(place.project, job, archive=place.archive)
