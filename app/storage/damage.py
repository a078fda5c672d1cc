"""Damaged objects: each counts as missing, is logged and noted, and stops no other crawl, site or object."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from billiard.exceptions import SoftTimeLimitExceeded
from redis import Redis, RedisError

from app.broker.errors import PublishFailed
from app.errors import ObjectDamaged, StoreError
from app.redis_state.client import PREFIX
from app.redis_state.outage import is_outage as is_redis_outage
from app.storage.outage import is_outage
from app.storage.reading import Decoder, decoded, get_if_present, read_objects
from app.storage.store import ObjectStore, StoredObject

log = logging.getLogger(__name__)

_KEY: Final = f"{PREFIX}damaged"
#: Damaged objects that are noted, those that were met last.
MAX_NOTED: Final = 200
#: Seconds after which the notes expire if nothing damaged is met any more.
_KEPT: Final = 30 * 86_400

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DamagedObject:
    """An object that could not be read: its key, and the ETag of its bytes."""

    key: str
    etag: str

    @property
    def domain(self) -> str:
        """The domain that the object is about."""
        return self.key.partition("/")[2].partition("/")[0].removesuffix(".json")


class DamageNotes:
    """The damaged objects that were met last, in Redis. One with other bytes than before counts as repaired."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def add(self, error: ObjectDamaged) -> None:
        """Note an object. It is met again by the next reader, so nothing waits for a Redis that fails."""
        member = json.dumps([error.key, error.etag])
        with suppress(RedisError), self._redis.pipeline() as pipe:
            pipe.zadd(_KEY, {member: time.time()})
            pipe.zremrangebyrank(_KEY, 0, -MAX_NOTED - 1)
            pipe.expire(_KEY, _KEPT)
            pipe.execute()

    def present(self, store: ObjectStore, domain: str = "") -> list[DamagedObject]:
        """Return the noted objects of a domain, or of all, by key; forget those that are repaired or deleted."""
        members = [str(each) for each in self._redis.zrange(_KEY, 0, -1)]
        noted = {member: DamagedObject(*json.loads(member)) for member in members}
        noted = {member: each for member, each in noted.items() if domain in ("", each.domain)}
        objects = zip(noted.items(), read_objects(store, [each.key for each in noted.values()]), strict=True)
        repaired = [member for (member, each), (_, found) in objects if found is None or found.etag != each.etag]
        if repaired:
            self._redis.zrem(_KEY, *repaired)
        return sorted((noted[member] for member in noted.keys() - repaired), key=lambda each: each.key)


def decoded_if_intact(store: ObjectStore, key: str, stored: StoredObject | None, decode: Decoder[T]) -> T | None:
    """Return what the decoder makes of an object, None for a missing one. A damaged one is noted, and missing, too."""
    try:
        return None if stored is None else decoded(key, stored, decode)
    except ObjectDamaged as error:
        note_damaged(store, error)
        return None


def read_intact(store: ObjectStore, keys: Iterable[str], decode: Decoder[T]) -> Iterator[tuple[str, T]]:
    """Yield keys with what the decoder makes of their objects, in the order given, without those it cannot read."""
    for key, stored in read_objects(store, keys):
        value = decoded_if_intact(store, key, stored, decode)
        if value is not None:
            yield key, value


def read_if_intact(store: ObjectStore, key: str, decode: Decoder[T]) -> T | None:
    """Return what the decoder makes of one object, None for a missing or damaged one."""
    return decoded_if_intact(store, key, get_if_present(store, key), decode)


def note_damaged(store: ObjectStore, error: ObjectDamaged) -> None:
    """Log a damaged object, and note it if the store has notes."""
    log.warning("Damaged object counts as missing: %s", error)
    note_quietly(store, error)


def note_quietly(store: ObjectStore, error: ObjectDamaged) -> None:
    """Note a damaged object that is logged already, if the store has notes."""
    if store.on_damage is not None:
        store.on_damage(error)


@contextmanager
def isolated(store: ObjectStore, text: str, *values: object, errors: list[Exception] | None = None) -> Iterator[None]:
    """Log an error of the block and add it to `errors`, so that the next crawl, site or object has its turn.

    What concerns all of them is raised: an outage of the store, of Redis or of the broker, and the time limit.
    """
    try:
        yield
    except (PublishFailed, SoftTimeLimitExceeded):
        raise
    except Exception as error:
        if isinstance(error, RedisError) and is_redis_outage(error):
            raise
        if isinstance(error, ObjectDamaged):
            note_damaged(store, error)
        elif isinstance(error, StoreError) and is_outage(store, error):
            raise
        log.exception(text, *values)
        if errors is not None:
            errors.append(error)
