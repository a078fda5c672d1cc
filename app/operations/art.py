"""Cover art and event art: what is read of the event queue, and the act to index items again."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from redis import RedisError

from app.broker.errors import InvalidMessage
from app.coverart import event_record
from app.coverart.event_rows import EventRow, list_events
from app.coverart.event_state import EventQueueState, read_state
from app.coverart.jobs import Index, canonical_gid, message
from app.coverart.project import served
from app.errors import ArtNotServed, DatabaseFailed, InvalidJob
from app.operations.operations import Operations
from app.redis_state.client import get_quick_redis

#: Failed events that are listed, and gids of one act.
MAX_FAILED: Final = 50
MAX_GIDS: Final = 200
#: Seconds to wait for the database; libpq takes no less than two.
_PATIENCE: Final = 2.0


@dataclass(frozen=True, slots=True)
class EventReport:
    """The event queue and its events that failed last. `trouble` is why they are unknown."""

    state: EventQueueState | None = None
    failed: Sequence[EventRow] = ()
    trouble: str = ""


def archives(ops: Operations) -> list[str]:
    """Return the exchanges of the archives that are served; none without cover art."""
    return list(served(ops.settings))


def read_events(ops: Operations) -> EventReport | None:
    """Return the state of the event queue, or None without EVENT_QUEUE_URL."""
    url = ops.settings.event_queue_url.get_secret_value()
    if not url:
        return None
    try:
        with event_record.connect(url, timeout=_PATIENCE) as connection:
            state = read_state(connection, ops.settings, get_quick_redis(ops.settings.redis))
            return EventReport(state, list_events(connection, "failed", limit=MAX_FAILED, order="latest"))
    except (DatabaseFailed, RedisError) as error:
        return EventReport(trouble=str(error))


def reindex(ops: Operations, exchange: str, gids: Sequence[str], *, why: str = "") -> list[str]:
    """Enqueue `index` of entities, which writes their listing and metadata again; return their gids.

    Raises InvalidJob for an invalid gid, ArtNotServed for an exchange that is not served, and InvalidMessage for no
    gid or too many.
    """
    if exchange not in served(ops.settings):
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
