"""The last audit of each archive of cover art: how it ended, kept as one small object in the store."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

from pydantic import TypeAdapter

from app.errors import ObjectNotFound, StoreError
from app.operations.context import OperatorContext
from app.operations.stored_times import EpochTime
from app.storage.reading import decoded, parsing

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
