"""Why a message is dead, whoever put it there: our headers, those of Sneakers and of the Perl indexer, the broker's."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ..delivery import Delivery
from ..headers import (
    ATTEMPTS,
    EXCEPTION,
    FAILED,
    FIRST_FAILED,
    LAST_ERROR,
    MESSAGE,
    QUEUE,
    REASON,
    TASK,
    TRACEBACK,
    WORKER,
    whole_number,
)
from ..policies.base import MAX_MESSAGE, MAX_TRACEBACK

#: The reason of a message that nobody buried: its key led to no queue, and an alternate exchange brought it here.
UNROUTABLE = "unroutable"

#: The reason of a message that a client put into the dead set itself.
BY_HAND = "by-hand"

#: The last second that a date can tell.
_LATEST = datetime.max.replace(tzinfo=UTC).timestamp()

_FRAME = re.compile(r'^ *File "([^"\n]+)", line (\d+), in (\S+)', re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """What is told of a death; empty, 0 or None where nobody told. Times are seconds since the epoch."""

    reason: str
    #: The queue that the message was consumed from when it died.
    queue: str = ""
    task: str = ""
    exception: str = ""
    message: str = ""
    traceback: str = ""
    attempts: int = 0
    worker: str = ""
    first_failed_at: float | None = None
    failed_at: float | None = None

    @property
    def error(self) -> str:
        """Exception and message in one."""
        return f"{self.exception}: {self.message}".strip(": ")

    @property
    def location(self) -> str:
        """`file:line in function` of the traceback's last frame; of the file's path the last two parts, since
        checkouts stand in different places.
        """
        frames = _FRAME.findall(self.traceback)
        if not frames:
            return ""
        path, line, function = frames[-1]
        return f"{'/'.join(path.replace(chr(92), '/').split('/')[-2:])}:{line} in {function}"


def cause_of(delivery: Delivery) -> Cause:
    """Return why a message of a dead set is there; never raises, whatever its headers hold."""
    headers = delivery.headers
    if REASON in headers:
        return _ours(headers)
    if "retry_info" in headers:
        return _sneakers(headers)
    if "mb-exceptions" in headers or headers.get("mb-retries") == -1:
        return _indexer(headers)
    return _broker(delivery)


def _ours(headers: Mapping[str, Any]) -> Cause:
    return Cause(
        reason=_text(headers.get(REASON)),
        queue=_text(headers.get(QUEUE)),
        task=_text(headers.get(TASK) or headers.get("task")),
        exception=_text(headers.get(EXCEPTION)),
        message=_text(headers.get(MESSAGE)),
        traceback=_text(headers.get(TRACEBACK), MAX_TRACEBACK),
        attempts=whole_number(headers, ATTEMPTS, default=0),
        worker=_text(headers.get(WORKER)),
        first_failed_at=_seconds(headers.get(FIRST_FAILED)),
        failed_at=_seconds(headers.get(FAILED)),
    )


def _sneakers(headers: Mapping[str, Any]) -> Cause:
    """Read what Sneakers' error handler writes as `retry_info`: a JSON object, or a list of them, newest first."""
    try:
        info = json.loads(_text(headers["retry_info"], 1_000_000))
    except (ValueError, RecursionError):
        info = None
    newest = info[0] if isinstance(info, list) and info else info
    told: Mapping[str, Any] = newest if isinstance(newest, Mapping) else {}
    return Cause(
        reason=_text(told.get("error") or "error"),
        queue=_dead_lettered(headers).queue,
        task=_text(headers.get("task")),
        exception=_text(told.get("error_class")),
        message=_text(told.get("error_message")),
        traceback=_lines(told.get("backtrace")),
        attempts=whole_number(told, "num_attempts", default=0),
        first_failed_at=_dead_lettered(headers).at,
        failed_at=_iso(told.get("failed_at")),
    )


def _indexer(headers: Mapping[str, Any]) -> Cause:
    """Read what the Cover Art Archive's own indexer leaves: a spent countdown, and the errors so far."""
    errors = headers.get("mb-exceptions")
    listed = errors if isinstance(errors, list) else [errors] if errors else []
    return Cause(reason="exception", message=_text(listed[-1]) if listed else "", attempts=len(listed))


def _broker(delivery: Delivery) -> Cause:
    """Read the broker's last entry: a first one may tell of a wait in a delay queue long before."""
    entry = _dead_lettered(delivery.headers)
    if not entry.reason:
        by_hand = delivery.exchange in ("", delivery.queue)
        text = f"no queue was bound for key {delivery.routing_key!r} of exchange {delivery.exchange!r}"
        return Cause(
            reason=BY_HAND if by_hand else UNROUTABLE,
            task=_text(delivery.headers.get("task")),
            message="" if by_hand else text,
            failed_at=_seconds(delivery.properties.get("timestamp")),
        )
    return Cause(
        reason=entry.reason,
        queue=entry.queue,
        task=_text(delivery.headers.get("task")),
        message=_text(delivery.headers.get(LAST_ERROR)),
        attempts=entry.count,
        first_failed_at=_seconds(delivery.headers.get(FIRST_FAILED)) or entry.at,
        failed_at=entry.at,
    )


@dataclass(frozen=True, slots=True)
class _Entry:
    """The newest entry of `x-death`."""

    queue: str = ""
    reason: str = ""
    count: int = 0
    at: float | None = None


def _dead_lettered(headers: Mapping[str, Any]) -> _Entry:
    deaths = headers.get("x-death")
    newest = deaths[0] if isinstance(deaths, list) and deaths else None
    if not isinstance(newest, Mapping):
        return _Entry()
    reason = _text(newest.get("reason")).replace("_", "-")
    count = whole_number(newest, "count", default=1)
    return _Entry(_text(newest.get("queue")), reason, count, _seconds(newest.get("time")))


def _text(value: Any, most: int = MAX_MESSAGE) -> str:
    if value is None:
        return ""
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return text[-most:] if most == MAX_TRACEBACK else text[:most]


def _lines(value: Any) -> str:
    return "\n".join(_text(line) for line in value) if isinstance(value, list) else ""


def _seconds(value: Any) -> float | None:
    """Return a header's time; the broker's are UTC without saying so."""
    if isinstance(value, datetime):
        value = value.replace(tzinfo=value.tzinfo or UTC).timestamp()
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value) if 0 <= value <= _LATEST else None


def _iso(value: Any) -> float | None:
    try:
        return _seconds(datetime.fromisoformat(value))
    except (TypeError, ValueError, OverflowError):
        return None
