"""Cover art and event art: the tasks `index`, `move` and `delete` of messages that MusicBrainz's database sends."""

from __future__ import annotations

import functools
import os
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from app.broker.worker.task import Task
from app.celery import app
from app.coverart.jobs import Job, job_of, message
from app.coverart.project import served_project
from app.errors import InvalidJob
from app.messages.dead_messages import complete_dead_message
from app.topology.queues import art_queues
from config.routes import COVER_ART_EXCHANGE, art_routes
from tasks.base import context


class ArtTask(Task):
    """A task whose message is the plain one that MusicBrainz posts."""

    abstract = True

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Publish the plain message of a job, confirmed; raises InvalidJob before anything is sent.

        `archive` names the exchange where more than one is served. A plain message cannot carry Celery's other
        options: InvalidJob names them.
        """
        refused = sorted(set(options) - {"task_id", "confirm"})
        if refused:
            raise InvalidJob(f"{self.name}: a plain message cannot carry {', '.join(refused)}")
        job, exchange = self.job(tuple(args or ()), dict(kwargs or {}))
        served_project(exchange, context().settings)
        message_id = options.get("task_id") or str(uuid.uuid4())
        context().publisher.declare(art_queues(exchange, context().settings))
        context().publisher.publish([message(job, exchange, message_id)])
        return self.AsyncResult(message_id)

    def on_dead_letter(self, args: Any, kwargs: Any) -> None:
        """Fail the event of a dead-lettered message, and those that depend on it."""
        del args
        complete_dead_message(self.name, {}, context().settings, event=dict(kwargs or {}).get("event"))

    def handle(self, call: Mapping[str, Any]) -> None:
        """Run the job of a call, or raise Postpone until it may run."""
        # Imported here because every worker imports this module, and few need psycopg: 0.15 s of CPU.
        from app.coverart.event_run import ArtEventRun

        job, exchange = self.job((), call)
        indexer = _indexer(os.getpid(), exchange)
        message_id, headers = str(self.request.id), self.request.headers or {}
        if event := call.get("event"):
            ArtEventRun.of(event, context().settings).handle(indexer, job, message_id, headers)
        else:
            indexer.handle(job, message_id, headers)

    def job(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Job, str]:
        """Return the job of a call and its exchange; raises InvalidJob."""
        arguments = {name: value for name, value in kwargs.items() if name != "event"}
        exchange = arguments.pop("archive", None) or COVER_ART_EXCHANGE
        return job_of(str(self.name).removeprefix("coverart."), args, arguments), str(exchange)


@functools.cache
def _indexer(_process: int, exchange: str) -> Any:
    """Return the indexer of a process for the archive of an exchange; raises InvalidJob."""
    from app.coverart.indexer import Indexer

    return Indexer.of(exchange, context().settings, context().redis)


_ROUTES = {route.type: route for route in art_routes("")}


def _task(kind: str) -> Callable[[Callable[..., None]], Any]:
    """Return the decorator of the task of a kind of job, with the time limits of its route."""
    route = _ROUTES[kind]
    limits = {"time_limit": route.time_limit, "soft_time_limit": route.soft_time_limit}
    decorator: Callable[[Callable[..., None]], Any] = app.task(name=route.task, base=ArtTask, bind=True, **limits)
    return decorator


@_task("index")
def index(self: ArtTask, **call: Any) -> None:
    """Write the listing and metadata of a release's item again: `index.delay(gid)`."""
    self.handle(call)


@_task("move")
def move(self: ArtTask, **call: Any) -> None:
    """Move an image to another release: `move.delay(id, old_gid, new_gid, suffix="jpg")`."""
    self.handle(call)


@_task("delete")
def delete(self: ArtTask, **call: Any) -> None:
    """Delete an image, or without `id` the listing: `delete.delay(gid, id=None, suffix="jpg")`."""
    self.handle(call)
