"""Why a message is in a dead set: read from the headers of this package, Sneakers, the Perl indexer or RabbitMQ."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from ..delivery import Delivery
from ..failure import MAX_MESSAGE, MAX_TRACEBACK
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
    deaths,
    whole_number,
)
from ..nesting import read_json

#: The reason of a message with an unknown routing key, which an alternate exchange brought to the dead set.
UNROUTABLE = "unroutable"

#: The reason of a message that a client published to the dead set itself.
BY_HAND = "by-hand"

#: Characters of a `retry_info` header that are parsed.
_MAX_RETRY_INFO = 1_000_000

#: The latest time that a datetime can hold, in seconds since the epoch.
_LATEST = datetime.max.replace(tzinfo=UTC).timestamp()

_FRAME = re.compile(r'^ *File "([^"\n]+)", line (\d+), in (\S+)', re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why a message was dead-lettered. Unknown fields are empty, 0 or None. Times are seconds since the epoch."""

    reason: str
    #: The queue from which the message was consumed before it was dead-lettered.
    queue: str = ""
    task: str = ""
    exception: str = ""
    message: str = ""
    traceback: str = ""
    #: `folder/file:line in function` of the traceback's last frame, independent of the path of the checkout.
    location: str = ""
    attempts: int = 0
    worker: str = ""
    first_failed_at: float | None = None
    failed_at: float | None = None

    @property
    def error(self) -> str:
        """Exception and message as one text."""
        return f"{self.exception}: {self.message}".strip(": ")


def cause_of(delivery: Delivery) -> Cause:
    """Return why a message is in a dead set. Never raises, whatever its headers hold."""
    cause = _from_headers(delivery)
    frames = _FRAME.findall(cause.traceback)
    if not frames:
        return cause
    path, line, function = frames[-1]
    return replace(cause, location=f"{'/'.join(path.replace(chr(92), '/').split('/')[-2:])}:{line} in {function}")


def _from_headers(delivery: Delivery) -> Cause:
    headers = delivery.headers
    if REASON in headers:
        return Cause(
            reason=_text(headers.get(REASON)),
            queue=_text(headers.get(QUEUE)),
            task=_text(headers.get(TASK) or headers.get("task")),
            exception=_text(headers.get(EXCEPTION)),
            message=_text(headers.get(MESSAGE)),
            traceback=_text(headers.get(TRACEBACK), MAX_TRACEBACK),
            attempts=whole_number(headers, ATTEMPTS, default=0),
            worker=_text(headers.get(WORKER)),
            first_failed_at=_epoch_seconds(headers.get(FIRST_FAILED)),
            failed_at=_epoch_seconds(headers.get(FAILED)),
        )
    if "retry_info" in headers:
        return _from_sneakers(delivery)
    if "mb-exceptions" in headers or headers.get("mb-retries") == -1:
        # The Cover Art Archive's Perl indexer: a spent countdown, and the errors so far.
        errors = headers.get("mb-exceptions")
        texts = errors if isinstance(errors, list) else [errors] if errors else []
        return Cause(reason="exception", message=_text(texts[-1]) if texts else "", attempts=len(texts))
    return _from_broker(delivery)


def _from_sneakers(delivery: Delivery) -> Cause:
    """Read the `retry_info` of Sneakers' error handler: a JSON object, or a list of them with the latest first."""
    headers, death = delivery.headers, _latest_death(delivery)
    try:
        parsed = read_json(_text(headers["retry_info"], _MAX_RETRY_INFO))
    except ValueError:
        parsed = None
    latest = parsed[0] if isinstance(parsed, list) and parsed else parsed
    info: Mapping[str, Any] = latest if isinstance(latest, Mapping) else {}
    try:
        failed_at = _epoch_seconds(datetime.fromisoformat(info["failed_at"]))
    except (KeyError, TypeError, ValueError, OverflowError):
        failed_at = None
    backtrace = info.get("backtrace")
    return Cause(
        reason=_text(info.get("error") or "error"),
        queue=_text(death.get("queue")),
        task=_text(headers.get("task")),
        exception=_text(info.get("error_class")),
        message=_text(info.get("error_message")),
        traceback="\n".join(_text(line) for line in backtrace) if isinstance(backtrace, list) else "",
        attempts=whole_number(info, "num_attempts", default=0),
        first_failed_at=_epoch_seconds(death.get("time")),
        failed_at=failed_at,
    )


def _from_broker(delivery: Delivery) -> Cause:
    death, task = _latest_death(delivery), _text(delivery.headers.get("task"))
    reason, died_at = _text(death.get("reason")).replace("_", "-"), _epoch_seconds(death.get("time"))
    if not reason:
        failed_at = _epoch_seconds(delivery.properties.get("timestamp"))
        if delivery.exchange in ("", delivery.queue):
            return Cause(reason=BY_HAND, task=task, failed_at=failed_at)
        text = f"no queue was bound for key {delivery.routing_key!r} of exchange {delivery.exchange!r}"
        return Cause(reason=UNROUTABLE, task=task, message=text, failed_at=failed_at)
    return Cause(
        reason=reason,
        queue=_text(death.get("queue")),
        task=task,
        message=_text(delivery.headers.get(LAST_ERROR)),
        attempts=whole_number(death, "count", default=1),
        first_failed_at=_epoch_seconds(delivery.headers.get(FIRST_FAILED)) or died_at,
        failed_at=died_at,
    )


def _latest_death(delivery: Delivery) -> Mapping[str, Any]:
    """Return the latest `x-death` entry. Earlier ones can be of delay queues that the message passed before."""
    return next(iter(deaths(delivery)), {})


def _text(value: Any, limit: int = MAX_MESSAGE) -> str:
    """Return a header as text of at most `limit` characters: the end of a traceback, the beginning of anything else."""
    if value is None:
        return ""
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return text[-limit:] if limit == MAX_TRACEBACK else text[:limit]


def _epoch_seconds(value: Any) -> float | None:
    """Return a header's time in seconds since the epoch. A datetime without a zone, as RabbitMQ writes, is UTC."""
    if isinstance(value, datetime):
        value = value.replace(tzinfo=value.tzinfo or UTC).timestamp()
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value) if 0 <= value <= _LATEST else None
