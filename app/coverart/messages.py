"""The plain bodies of `index`, `move` and `delete`, as a MusicBrainz database writes them: lines of text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from app.broker.errors import UnknownType
from app.coverart.project import LISTING_FILE
from app.coverart.values import Delete, Index, Job, Move
from app.errors import InvalidJob

#: What a producer from before there were other suffixes means.
_OLD_SUFFIX = "jpg"
_GID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE | re.ASCII)
_ID = re.compile(r"[0-9]{1,19}", re.ASCII)
_SUFFIX = re.compile(r"[a-z0-9]{1,8}")
#: The largest `bigint` of PostgreSQL.
_MAX_ID = 2**63 - 1


def parse(kind: str, body: bytes) -> Job:
    """Return the job that a body means; `kind` is the routing key: `index`, `move` or `delete`.

    Empty lines at the end are dropped, lines beyond those needed are ignored, a gid may be of any case, a suffix that
    is missing is `jpg`. Raises InvalidJob that names the line and the reason, and UnknownType for another kind.
    """
    match kind:
        case "index":
            return Index(gid(_lines(kind, body)[0]))
        case "move":
            return _move(_lines(kind, body))
        case "delete":
            return _delete(_lines(kind, body))
    raise UnknownType(f"kind {kind!r}: expected index, move or delete")


def body(job: Job) -> bytes:
    """Return the body of a job, byte for byte as the database's triggers write it."""
    match job:
        case Index():
            return job.gid.encode()
        case Move():
            # Only this one ends with a line feed.
            return f"{job.id}\n{job.old_gid}\n{job.new_gid}\n{job.suffix}\n".encode()
        case Delete(id=None):
            return f"{LISTING_FILE}\n{job.gid}".encode()
        case Delete():
            return f"{job.id}\n{job.gid}\n{job.suffix}".encode()


def kind_of(job: Job) -> str:
    """Return the routing key of a job."""
    return type(job).__name__.lower()


def gid(text: str, name: str = "gid") -> str:
    """Return a MusicBrainz identifier in its canonical form, lower case; raises InvalidJob."""
    if not _GID.fullmatch(text):
        raise InvalidJob(f"{name} {_quoted(text)}: expected a UUID")
    return text.lower()


def image_id(text: str) -> int:
    """Return the number of an image; raises InvalidJob."""
    if not _ID.fullmatch(text) or not 0 < int(text) <= _MAX_ID:
        raise InvalidJob(f"image {_quoted(text)}: expected an integer from 1 to {_MAX_ID}")
    return int(text)


def suffix(text: str) -> str:
    """Return the suffix of an image's file; raises InvalidJob."""
    if not _SUFFIX.fullmatch(text):
        raise InvalidJob(f"suffix {_quoted(text)}: expected one to eight of a-z and 0-9")
    return text


def _move(lines: Sequence[str]) -> Move:
    number, old, new = _needed(lines, ("image", "old gid", "new gid"), "move")
    return Move(
        id=image_id(number),
        old_gid=gid(old, "old gid"),
        new_gid=gid(new, "new gid"),
        suffix=_suffix_at(lines, 3),
    )


def _delete(lines: Sequence[str]) -> Delete:
    name, of = _needed(lines, ("image", "gid"), "delete")
    if name == LISTING_FILE:
        return Delete(gid(of))
    return Delete(gid(of), id=image_id(name), suffix=_suffix_at(lines, 2))


def _suffix_at(lines: Sequence[str], position: int) -> str:
    return suffix(lines[position]) if len(lines) > position else _OLD_SUFFIX


def _needed(lines: Sequence[str], names: Sequence[str], kind: str) -> Sequence[str]:
    if len(lines) < len(names):
        raise InvalidJob(f"{kind}: line {len(lines) + 1} of {', '.join(names)} is missing")
    return lines[: len(names)]


def _lines(kind: str, body: bytes) -> list[str]:
    """Return the lines of a body without empty ones at its end: at least one."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidJob(f"{kind}: not UTF-8 at byte {error.start}: {body[:60]!r}") from error
    stripped = text.rstrip("\n")
    if not stripped:
        raise InvalidJob(f"{kind}: the body is empty")
    return stripped.split("\n")


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}...")
