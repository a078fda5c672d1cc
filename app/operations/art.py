"""Cover art and event art: the event queue, acts on its events, its reader and items, and the last audits."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Final

from pydantic import TypeAdapter
from redis import RedisError

from app.broker.errors import InvalidMessage
from app.coverart import event_table
from app.coverart.event_state import ArtEventQueueState, ReaderStatus, read_state
from app.coverart.event_table import ArtEventRow, Requeued
from app.coverart.jobs import Index, canonical_gid, event_of, message
from app.coverart.musicbrainz import Connection
from app.errors import ActRefused, ArtNotServed, DatabaseFailed, InvalidJob, ObjectNotFound, StoreError
from app.operations.context import OperatorContext
from app.operations.stored_times import EpochTime
from app.storage.reading import decoded, parsing

#: Failed events that are listed, and gids of one act.
MAX_FAILED: Final = 50
MAX_GIDS: Final = 200
#: Seconds to wait for the database before a page is shown; libpq takes no less than two.
_PATIENCE: Final = 2.0

_SUBJECT = "event queue"


@dataclass(frozen=True, slots=True)
class ArtEventReport:
    """The event queue and its events that failed last. `trouble` is why they are unknown."""

    state: ArtEventQueueState | None = None
    failed: Sequence[ArtEventRow] = ()
    trouble: str = ""


def read_events(ops: OperatorContext) -> ArtEventReport | None:
    """Return the state of the event queue, or None without ART_EVENT_QUEUE_URL."""
    try:
        with open_table(ops, timeout=_PATIENCE) as connection:
            state = read_state(connection, ops.settings)
            return ArtEventReport(state, event_table.list_events(connection, "failed", limit=MAX_FAILED, latest=True))
    except ArtNotServed:
        return None
    except (DatabaseFailed, RedisError) as error:
        return ArtEventReport(trouble=str(error))


def steer_reader(ops: OperatorContext, *, paused: bool, why: str = "") -> None:
    """Have the reader publish no event until it is resumed, or resume it. Jobs of published events go on."""
    with ops.act("pause events" if paused else "resume events", _SUBJECT, why=why):
        ReaderStatus(ops.redis).set_paused(paused)


def requeue(ops: OperatorContext, ids: Sequence[int] | None, *, dry_run: bool = False, why: str = "") -> Requeued:
    """Queue failed events again, all of them for None, and remove their dead letters; with `dry_run` change nothing.

    Raises ActRefused, before anything is changed, for an id that is no failed event.
    """
    with open_table(ops) as connection:
        if dry_run:
            return event_table.requeue(connection, "failed", ids, dry_run=True)
        # What is killed before the commit leaves failed events, of which the next call removes the dead letters.
        # A reader sees the events afterwards: the dead letter of a new run stays.
        with ops.act("requeue events", _SUBJECT, why=why) as act, connection.transaction():
            done = event_table.requeue(connection, "failed", ids)
            events = set(done.ids)
            dead_sets = [ops.dead_sets.only(f"{exchange}.failed") for exchange in ops.settings.art_exchanges if events]
            letters = (letter for each in dead_sets for letter in each.iter_letters())
            concerned = {letter.id for letter in letters if event_of(letter.delivery.headers) in events}
            removed = sum(each.forget(lambda letter: letter.id in concerned) for each in dead_sets) if concerned else 0
            act.result = f"{done}; {removed:,} dead letters removed"
    return done


def hand_back(ops: OperatorContext, *, dry_run: bool = False, why: str = "") -> Requeued:
    """Queue running events again for the indexer that takes the table over; with `dry_run` change nothing.

    Raises ActRefused while a reader publishes: it would publish them again at once.
    """
    with open_table(ops) as connection:
        if dry_run:
            return event_table.requeue(connection, "running", dry_run=True)
        with ops.act("hand back events", _SUBJECT, why=why) as act:
            if ReaderStatus(ops.redis).may_publish():
                raise ActRefused("the event reader publishes events: pause it first (`perennial caa events pause`)")
            done = event_table.requeue(connection, "running")
            act.result = str(done)
    return done


def reindex(ops: OperatorContext, exchange: str, gids: Sequence[str], *, why: str = "") -> list[str]:
    """Enqueue `index` of entities, which writes their listing and metadata again; return their gids.

    Raises InvalidMessage for an invalid gid, for no gid and for too many, and ArtNotServed for an exchange that is not
    served.
    """
    if exchange not in ops.settings.art_exchanges:
        raise ArtNotServed(f"{exchange[:80]!r} is not served here")
    if not 1 <= len(gids) <= MAX_GIDS:
        raise InvalidMessage(f"gids: expected 1 to {MAX_GIDS}, not {len(gids)}")
    try:
        wanted = list(dict.fromkeys(canonical_gid(gid) for gid in gids))
    except InvalidJob as error:
        raise InvalidMessage(str(error)) from error
    with ops.act("art reindex", exchange, why=why, gids=wanted):
        ops.publish([message(Index(gid), exchange, str(uuid.uuid4())) for gid in wanted])
    return wanted


@contextmanager
def open_table(ops: OperatorContext, *, timeout: float = 10.0) -> Iterator[Connection]:
    """Open the event queue for a block; raises ArtNotServed, and as `musicbrainz.connect`."""
    url = ops.settings.art_event_queue_url.get_secret_value()
    if not url:
        raise ArtNotServed("no event queue: ART_EVENT_QUEUE_URL is empty")
    with event_table.connect(url, timeout=timeout) as connection:
        yield connection


# The last audit of each archive: how it ended, kept as one small object in the store

#: Keys of results begin with this; the exchange of the archive follows.
PREFIX: Final = "art-audits/"
#: Findings that are kept of an audit, the first ones, and characters of each text.
MAX_FINDINGS: Final = 100
MAX_TEXT: Final = 500


@dataclass(frozen=True, slots=True)
class KeptFinding:
    """One difference: the file of an item, its kind, and the kind of the job that repairs it, empty without one."""

    gid: str
    kind: str
    file: str
    fix: str


@dataclass(slots=True, kw_only=True)
class ArtAudit:
    """How an audit of an archive goes on, or ended. `began` and `ended` are seconds since the epoch.

    Of `items`, `unread` could not be read. The others were compared, and `differing` have findings, whose number by
    kind is `kinds`. With `fixes`, jobs were enqueued: their number by kind is `enqueued`, and `held_back` images were
    not deleted. `stopped` is why it did not reach its end, `last` the gid after which another one can continue.
    """

    archive: str
    command: str
    operator: str
    fixes: bool
    began: EpochTime = field(default_factory=time.time)
    ended: EpochTime = 0.0
    items: int = 0
    unread: int = 0
    differing: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    enqueued: dict[str, int] = field(default_factory=dict)
    held_back: int = 0
    last: str = ""
    stopped: str = ""
    findings: list[KeptFinding] = field(default_factory=list)


_READER: Final = TypeAdapter(ArtAudit)


def keep_audit(ops: OperatorContext, audit: ArtAudit) -> None:
    """Replace the result of the archive's last audit; raises StoreError."""
    ops.store.put(f"{PREFIX}{audit.archive}.json", json.dumps(asdict(audit)).encode())


def read_audits(ops: OperatorContext, archives: Sequence[str]) -> tuple[dict[str, ArtAudit], str]:
    """Return the last audit of each archive that has one, and why others are unknown, or an empty text."""
    audits: dict[str, ArtAudit] = {}
    troubles: list[str] = []
    for archive in archives:
        key = f"{PREFIX}{archive}.json"
        try:
            audits[archive] = decoded(key, ops.store.get(key), _parsed)
        except ObjectNotFound:
            continue
        except StoreError as error:
            troubles.append(str(error))
    return audits, "; ".join(dict.fromkeys(troubles))


def _parsed(key: str, data: bytes) -> ArtAudit:
    del key
    with parsing("an audit of cover art", data):
        return _READER.validate_json(data)
