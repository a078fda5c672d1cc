"""Timers with a client's own callback, in the store: they survive the loss of Redis."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from app.storage.damage import read_intact
from app.storage.reading import parsing
from app.storage.store import ObjectStore
from app.timers.timers import Callback

_PREFIX: Final = "timers/"


@dataclass(frozen=True, slots=True)
class StoredTimer:
    """A domain's timer as a client started it. `timeout` is in seconds."""

    domain: str
    timeout: float
    callback: Callback


def store_timer(store: ObjectStore, timer: StoredTimer) -> None:
    """Write a timer in place of a former one of its domain."""
    fields = {"timeout": timer.timeout, "queue": timer.callback.queue, "message": timer.callback.message}
    store.put(timer_key(timer.domain), json.dumps(fields, sort_keys=True).encode())


def delete_stored_timers(store: ObjectStore, domains: Iterable[str]) -> None:
    """Delete the timers of domains from the store; missing ones cost no request of their own."""
    keys = set(map(timer_key, domains))
    for stat in store.list(_PREFIX):
        if stat.key in keys:
            store.delete(stat.key)


def stored_timers(store: ObjectStore, domain: str = "") -> Iterator[StoredTimer]:
    """Yield the timers of a domain or of all, without damaged ones."""

    def timer_of(key: str, data: bytes) -> StoredTimer:
        with parsing("a timer", data):
            fields = json.loads(data)
            callback = Callback(str(fields["queue"]), dict(fields["message"]))
            return StoredTimer(key.removeprefix(_PREFIX).removesuffix(".json"), float(fields["timeout"]), callback)

    keys = [timer_key(domain)] if domain else [stat.key for stat in store.list(_PREFIX)]
    for _, timer in read_intact(store, keys, timer_of):
        yield timer


def timer_key(domain: str) -> str:
    """Return the object key of a domain's timer."""
    return f"{_PREFIX}{domain}.json"
