"""The three jobs `index`, `move` and `delete`, as bodies of MusicBrainz's triggers and as calls of tasks."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from app.broker.errors import UnknownType
from app.broker.headers import whole_number
from app.broker.outgoing import Outgoing
from app.coverart.project import LISTING_FILE
from app.errors import InvalidJob

#: The header with the id of the event in MusicBrainz's database that a message carries out. A replay keeps it, as every
#: header whose name does not begin with `perennial-`.
EVENT = "artwork-event"

#: The suffix where a message has none: producers omitted it while all images were JPEG.
_DEFAULT_SUFFIX = "jpg"

_GID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE | re.ASCII)
_ID = re.compile(r"[0-9]{1,19}", re.ASCII)
_SUFFIX = re.compile(r"[a-z0-9]{1,8}")

#: The lines of each kind's body, by the names of its task's arguments. The suffix may be missing.
_LINES = {"index": ("gid",), "move": ("id", "old_gid", "new_gid", "suffix"), "delete": ("id", "gid", "suffix")}

#: The largest `bigint` of PostgreSQL.
_MAX_ID = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Index:
    """Write the listing and the metadata of an entity's item."""

    gid: str


@dataclass(frozen=True, slots=True)
class Move:
    """Move an image from one entity's item to another's."""

    id: int
    old_gid: str
    new_gid: str
    suffix: str = _DEFAULT_SUFFIX


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete one file of an entity's item: an image, or without `id` its `index.json`."""

    gid: str
    id: int | None = None
    suffix: str = _DEFAULT_SUFFIX


Job = Index | Move | Delete

_KINDS: Mapping[str, Callable[..., Job]] = {"index": Index, "move": Move, "delete": Delete}


def kind_of(job: Job) -> str:
    """Return the routing key of a job."""
    return type(job).__name__.lower()


def parse(kind: str, body: bytes) -> Job:
    """Return the job of a message's body; `kind` is the routing key: `index`, `move` or `delete`.

    Ignores empty lines at the end and lines beyond those needed; a gid may be upper case, a missing suffix is `jpg`.
    Raises InvalidJob, which names the line and the reason, and UnknownType for another kind.
    """
    if kind not in _KINDS:
        raise UnknownType(f"kind {kind!r}: expected {', '.join(_KINDS)}")
    try:
        text = body.decode("utf-8").rstrip("\n")
    except UnicodeDecodeError as error:
        raise InvalidJob(f"{kind}: not UTF-8 at byte {error.start}: {body[:60]!r}") from error
    if not text:
        raise InvalidJob(f"{kind}: the body is empty")
    given: dict[str, object] = dict(zip(_LINES[kind], text.split("\n"), strict=False))
    needed = [name for name in _LINES[kind] if name != "suffix"]
    if len(given) < len(needed):
        raise InvalidJob(f"{kind}: line {len(given) + 1} of {', '.join(needed)} is missing")
    if kind == "delete" and given["id"] == LISTING_FILE:
        given["id"] = None
    return _checked(kind, given)


def body_of(job: Job) -> bytes:
    """Return the body of a job, byte for byte as the database's triggers write it."""
    match job:
        case Index():
            return job.gid.encode()
        case Move():
            # The trigger ends this body alone with a line feed.
            return f"{job.id}\n{job.old_gid}\n{job.new_gid}\n{job.suffix}\n".encode()
        case Delete(id=None):
            return f"{LISTING_FILE}\n{job.gid}".encode()
        case Delete():
            return f"{job.id}\n{job.gid}\n{job.suffix}".encode()


def message(job: Job, exchange: str, message_id: str, *, headers: Mapping[str, Any] | None = None) -> Outgoing:
    """Return the message of a job as MusicBrainz posts it, but persistent and with an id."""
    return Outgoing(
        headers=headers or {},
        exchange=exchange,
        routing_key=kind_of(job),
        body=body_of(job),
        properties={"message_id": message_id},
        content_type=None,
        content_encoding=None,
    )


def event_of(headers: Mapping[str, Any]) -> int | None:
    """Return the id of a message's event, or None for a message of another producer."""
    return whole_number(headers, EVENT, default=0, most=_MAX_ID) or None


def job_of(kind: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Job:
    """Return the job of a task's call; raises InvalidJob, which names the argument and the reason."""
    signature = _signature(_KINDS[kind])
    try:
        given = signature.bind(*args, **kwargs)
    except TypeError as error:
        names = ", ".join(str(each.replace(annotation=each.empty)) for each in signature.parameters.values())
        raise InvalidJob(f"{kind}({names}): {error}") from error
    return _checked(kind, given.arguments)


#: To read a signature takes ten times as long as to bind a call to it.
_signature = functools.cache(inspect.signature)


def canonical_gid(value: object, name: str = "gid") -> str:
    """Return a MusicBrainz identifier in its canonical form, lower case; raises InvalidJob that begins with `name`."""
    if not _GID.fullmatch(str(value)):
        raise InvalidJob(f"{name} {_quoted(value)}: expected a UUID")
    return str(value).lower()


def _checked(kind: str, given: Mapping[str, object]) -> Job:
    """Return the job of unchecked arguments; raises InvalidJob."""
    # The deletion of a listing has no image.
    names = ["gid"] if kind == "delete" and given.get("id") is None else list(given)
    checked: dict[str, Any] = {}
    for name in names:
        text = str(given[name])
        if name == "id":
            if not _ID.fullmatch(text) or not 0 < int(text) <= _MAX_ID:
                raise InvalidJob(f"image {_quoted(text)}: expected an integer from 1 to {_MAX_ID}")
            checked[name] = int(text)
        elif name == "suffix":
            if not _SUFFIX.fullmatch(text):
                raise InvalidJob(f"suffix {_quoted(text)}: expected one to eight of a-z and 0-9")
            checked[name] = text
        else:
            checked[name] = canonical_gid(text, name)
    return _KINDS[kind](**checked)


def _quoted(value: object) -> str:
    text = str(value)
    return repr(text if len(text) <= 60 else f"{text[:60]}...")
