"""The audit: one object in the store for each act, and for each refused attempt to act."""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from pydantic import TypeAdapter

from app.errors import StoreError
from app.operations.operators import Operator
from app.operations.stored_times import IsoTime
from app.storage.reading import parsing
from app.storage.store import ObjectStore
from app.text.humanize import cut

logger = logging.getLogger(__name__)

#: Keys of the audit begin with this; the day follows, then the time and a random part.
AUDIT_PREFIX: Final = "audit/"
_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}")
#: Characters of a text in an entry. Longer ones are cut.
MAX_TEXT: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One act: which operator did what to `subject` and why, and how it ended. `at` is ISO 8601 in UTC."""

    key: str
    at: IsoTime
    operator: str
    role: str
    origin: str
    act: str
    subject: str
    why: str = ""
    result: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


_READER: Final = TypeAdapter(AuditEntry)


class AuditLog:
    """Writes and reads the entries of a store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def write(
        self,
        operator: Operator,
        act: str,
        subject: str,
        *,
        why: str = "",
        result: str = "",
        quiet: bool = False,
        **details: Any,
    ) -> None:
        """Write an entry. While the store is away, it is a line of the log instead, or with `quiet` nothing."""
        now = datetime.now(UTC)
        entry = AuditEntry(
            key=f"{AUDIT_PREFIX}{now:%Y-%m-%d}/{now:%H%M%S.%f}-{uuid.uuid4().hex[:8]}",
            at=now.isoformat(timespec="milliseconds"),
            operator=cut(operator.name, MAX_TEXT),
            role=operator.role.value,
            origin=operator.origin.value,
            act=act,
            subject=cut(subject, MAX_TEXT),
            why=cut(why, MAX_TEXT),
            result=cut(result, MAX_TEXT),
            details=details,
        )
        data = json.dumps(asdict(entry), ensure_ascii=True).encode()
        try:
            self._store.put(entry.key, data)
        except StoreError as error:
            if not quiet:
                logger.warning("The audit cannot be kept (%s): %s", error, data.decode())

    def entries(self, *, before: str = "") -> Iterator[AuditEntry]:
        """Yield the entries, the latest first; with `before`, those with a smaller key."""
        days = [day for day in self._store.list_folders(AUDIT_PREFIX) if _DAY.fullmatch(day)]
        for day in sorted(days, reverse=True):
            if before and f"{AUDIT_PREFIX}{day}/" > before:
                continue
            keys = [stat.key for stat in self._store.list(f"{AUDIT_PREFIX}{day}/")]
            for key in sorted(keys, reverse=True):
                if not before or key < before:
                    yield read_entry(self._store, key)


def read_entry(store: ObjectStore, key: str) -> AuditEntry:
    """Return an entry. One that cannot be read is shown as such: it must not hide the others."""
    try:
        data = store.get(key).data
        with parsing("an audit entry", data):
            return _READER.validate_python({**json.loads(data), "key": key})
    except StoreError as error:
        return AuditEntry(key=key, at="", operator="", role="", origin="", act="unreadable", subject=str(error))
