"""A job as the arguments of a task and as a message: what is said to `delay()`, and what goes out."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from app.broker.errors import UnknownType
from app.broker.publishing import Outgoing
from app.coverart import messages
from app.coverart.values import Delete, Index, Job, Move
from app.errors import InvalidJob


def arguments(job: Job) -> dict[str, Any]:
    """Return a job as arguments by name."""
    return asdict(job)


def job_of(kind: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Job:
    """Return the job that a call means; raises InvalidJob naming the argument, and UnknownType for another kind."""
    make = _MAKERS.get(kind)
    if make is None:
        raise UnknownType(f"kind {kind!r}: expected {', '.join(_MAKERS)}")
    signature = inspect.signature(make)
    try:
        given = signature.bind(*args, **kwargs)
    except TypeError as error:
        names = ", ".join(str(each.replace(annotation=each.empty)) for each in signature.parameters.values())
        raise InvalidJob(f"{kind}({names}): {error}") from error
    return make(*given.args, **given.kwargs)


def message(job: Job, exchange: str, ident: str) -> Outgoing:
    """Return the message of a job as MusicBrainz would post it, but persistent and with an id."""
    return Outgoing(
        exchange=exchange,
        routing_key=messages.kind_of(job),
        body=messages.body(job),
        properties={"message_id": ident},
        content_type=None,
        content_encoding=None,
    )


def _index(gid: object) -> Job:
    return Index(messages.gid(str(gid)))


def _move(id: object, old_gid: object, new_gid: object, suffix: object = "jpg") -> Job:
    return Move(
        id=messages.image_id(str(id)),
        old_gid=messages.gid(str(old_gid), "old_gid"),
        new_gid=messages.gid(str(new_gid), "new_gid"),
        suffix=messages.suffix(str(suffix)),
    )


def _delete(gid: object, id: object = None, suffix: object = "jpg") -> Job:
    of = messages.gid(str(gid))
    return Delete(of) if id is None else Delete(of, messages.image_id(str(id)), messages.suffix(str(suffix)))


_MAKERS: Mapping[str, Callable[..., Job]] = {"index": _index, "move": _move, "delete": _delete}
