"""A job as the arguments of a task, and back: what is said to `delay()` and what a plain body means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from app.coverart.messages import gid, image_id, suffix
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
