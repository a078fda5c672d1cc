"""A job as the arguments of a task and as a message: what is said to `delay()`, and what goes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from app.amqp.publish import Outgoing
from app.coverart.messages import body, gid, image_id, kind_of, suffix
from app.coverart.values import Delete, Index, Job, Move
from app.errors import InvalidJob, UnknownType

#: Arguments of each kind of job in their order, and those that need not be given.
_NAMES = {
    "index": ("gid",),
    "move": ("id", "old_gid", "new_gid", "suffix"),
    "delete": ("gid", "id", "suffix"),
}
_OPTIONAL = {"index": set(), "move": {"suffix"}, "delete": {"id", "suffix"}}


def arguments(job: Job) -> dict[str, Any]:
    """Return a job as arguments by name."""
    return asdict(job)


def job_of(kind: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Job:
    """Return the job that a call means; raises InvalidJob naming the argument, and UnknownType for another kind."""
    if kind not in _NAMES:
        raise UnknownType(f"kind {kind!r}: expected index, move or delete")
    given = _named(kind, args, kwargs)
    match kind:
        case "index":
            return Index(gid(str(given["gid"])))
        case "move":
            places = {name: gid(str(given[name]), name) for name in ("old_gid", "new_gid")}
            return Move(id=image_id(str(given["id"])), suffix=suffix(str(given.get("suffix", "jpg"))), **places)
        case _:
            return _delete(given)


def message(job: Job, exchange: str, ident: str) -> Outgoing:
    """Return the message of a job as MusicBrainz would post it, but persistent and with an id."""
    return Outgoing(
        exchange=exchange,
        routing_key=kind_of(job),
        body=body(job),
        properties={"message_id": ident},
        content_type=None,
        content_encoding=None,
    )


def _delete(given: Mapping[str, Any]) -> Delete:
    if given.get("id") is None:
        return Delete(gid(str(given["gid"])))
    return Delete(gid(str(given["gid"])), image_id(str(given["id"])), suffix(str(given.get("suffix", "jpg"))))


def _named(kind: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    names = _NAMES[kind]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    missing = [name for name in names if name not in given and name not in _OPTIONAL[kind]]
    unknown = [name for name in given if name not in names]
    if len(args) > len(names) or missing or unknown:
        wanted = ", ".join(f"{name}={'...' if name in _OPTIONAL[kind] else ''}".rstrip("=") for name in names)
        raise InvalidJob(f"{kind}: expected ({wanted}), got {args!r:.100} {dict(kwargs)!r:.100}")
    return given
