"""Why a message is in a dead set: read from the headers of this package, Sneakers, the Perl indexer or RabbitMQ."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from ..delivery import Delivery
from ..failure import MAX_MESSAGE, MAX_TRACEBACK
from ..headers import (
    ATTEMPTS,
    EXCEPTION,
    FAILED,
    FIRST_FAILED,
    ITERATION,
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

#: The end of the name of a delay queue.
_DELAY = re.compile(r"\.delay\.[0-9]+$")

#: The reason of a message that a client published to the dead set itself.
BY_HAND = "by-hand"

#: Characters of a `retry_info` header that are parsed.
_MAX_RETRY_INFO = 1_000_000

#: The first second since the epoch that no datetime can hold.
_TOO_LATE = 253_402_300_800

_FRAME = re.compile(r'^ *File "([^"\n]+)", line (\d+), in (\S+)', re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why messages were dead-lettered: what many of them have in common. Unknown fields are empty or 0."""

    reason: str
    #: The queue from which the message was consumed before it was dead-lettered.
    queue: str = ""
    task: str = ""
    exception: str = ""
    #: `folder/file:line in function` of the traceback's last frame, independent of the path of the checkout.
    location: str = ""
    attempts: int = 0
    worker: str = ""
    #: Eight hex digits of reason, exception and location: the same for letters with the same cause.
    group: str = field(init=False)

    def __post_init__(self) -> None:
        """Compute the group once: lists of all letters need it of each."""
        object.__setattr__(self, "group", _group_of(self.reason, self.exception, self.location))


@lru_cache(maxsize=1_000)
def _group_of(*cause: str) -> str:
    return hashlib.blake2b("\0".join(cause).encode(errors="replace"), digest_size=4).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """How one message was dead-lettered: its cause and its own error. Times are seconds since the epoch, if known."""

    cause: Cause
    error_message: str = ""
    traceback: str = ""
    first_failed_at: float | None = None
    failed_at: float | None = None


_NAMES = tuple(each.name for each in fields(Death))


def values_of(death: Death) -> dict[str, Any]:
    """Return the values of a death by name, to make a value of a subclass."""
    return {name: getattr(death, name) for name in _NAMES}


def death_of(delivery: Delivery) -> Death:
    """Return how a message came to a dead set. Never raises, whatever its headers hold."""
    headers = delivery.headers
    if REASON in headers:
        traceback = _text(headers.get(TRACEBACK), MAX_TRACEBACK)
        return Death(
            cause=Cause(
                reason=_text(headers.get(REASON)),
                queue=_text(headers.get(QUEUE)),
                task=_text(headers.get(TASK) or headers.get("task")),
                exception=_text(headers.get(EXCEPTION)),
                location=_location(traceback),
                attempts=whole_number(headers, ATTEMPTS, default=0),
                worker=_text(headers.get(WORKER)),
            ),
            error_message=_text(headers.get(MESSAGE)),
            traceback=traceback,
            first_failed_at=epoch_seconds(headers.get(FIRST_FAILED)),
            failed_at=epoch_seconds(headers.get(FAILED)),
        )
    if "retry_info" in headers:
        return _from_sneakers(delivery)
    if "mb-exceptions" in headers or headers.get("mb-retries") == -1:
        # The Cover Art Archive's Perl indexer: a spent countdown, and the errors so far.
        errors = headers.get("mb-exceptions")
        texts = errors if isinstance(errors, list) else [errors] if errors else []
        error = _text(texts[-1]) if texts else ""
        return Death(cause=Cause(reason="exception", attempts=len(texts)), error_message=error)
    if ITERATION in headers and _DELAY.search(_text(_latest_death(delivery).get("queue"))):
        return _from_iterations(delivery)
    return _from_broker(delivery)


def _from_iterations(delivery: Delivery) -> Death:
    """Read the budget of a message that another consumer of the policy `delay_queues` gave up after its last wait.

    It came back from the wait to its queue, whose name is its routing key.
    """
    headers, keys = delivery.headers, _latest_death(delivery).get("routing-keys")
    cause = Cause(
        reason="exception",
        queue=_text(keys[0]) if isinstance(keys, list) and keys else "",
        task=_text(headers.get("task")),
        attempts=whole_number(headers, ITERATION, default=0) + 1,
    )
    first = epoch_seconds(headers.get(FIRST_FAILED))
    return Death(cause=cause, error_message=_text(headers.get(LAST_ERROR)), first_failed_at=first)


def _from_sneakers(delivery: Delivery) -> Death:
    """Read the `retry_info` of Sneakers' error handler: a JSON object, or a list of them with the latest first.

    The latest death is mostly of the retry queue, where the message waited before its last run.
    """
    rejections = (entry for entry in deaths(delivery) if entry.get("reason") == "rejected")
    headers, death = delivery.headers, next(rejections, _latest_death(delivery))
    try:
        parsed = read_json(_text(headers["retry_info"], _MAX_RETRY_INFO))
    except ValueError:
        parsed = None
    latest = parsed[0] if isinstance(parsed, list) and parsed else parsed
    info: Mapping[str, Any] = latest if isinstance(latest, Mapping) else {}
    try:
        failed_at = epoch_seconds(datetime.fromisoformat(info["failed_at"]))
    except (KeyError, TypeError, ValueError, OverflowError):
        failed_at = None
    backtrace = info.get("backtrace")
    traceback = "\n".join(_text(line) for line in backtrace) if isinstance(backtrace, list) else ""
    return Death(
        cause=Cause(
            reason=_text(info.get("error") or "error"),
            queue=_text(death.get("queue")),
            task=_text(headers.get("task")),
            exception=_text(info.get("error_class")),
            location=_location(traceback),
            attempts=whole_number(info, "num_attempts", default=0),
        ),
        error_message=_text(info.get("error_message")),
        traceback=traceback,
        first_failed_at=epoch_seconds(death.get("time")),
        failed_at=failed_at,
    )


def _from_broker(delivery: Delivery) -> Death:
    death, task = _latest_death(delivery), _text(delivery.headers.get("task"))
    reason, died_at = _text(death.get("reason")).replace("_", "-"), epoch_seconds(death.get("time"))
    if not reason:
        failed_at = epoch_seconds(delivery.properties.get("timestamp"))
        if delivery.exchange in ("", delivery.queue):
            return Death(cause=Cause(reason=BY_HAND, task=task), failed_at=failed_at)
        text = f"no queue was bound for key {delivery.routing_key!r} of exchange {delivery.exchange!r}"
        return Death(cause=Cause(reason=UNROUTABLE, task=task), error_message=text, failed_at=failed_at)
    attempts = whole_number(death, "count", default=1)
    return Death(
        cause=Cause(reason=reason, queue=_text(death.get("queue")), task=task, attempts=attempts),
        error_message=_text(delivery.headers.get(LAST_ERROR)),
        first_failed_at=epoch_seconds(delivery.headers.get(FIRST_FAILED)) or died_at,
        failed_at=died_at,
    )


def _latest_death(delivery: Delivery) -> Mapping[str, Any]:
    """Return the latest `x-death` entry. Earlier ones can be of delay queues that the message passed before."""
    return next(iter(deaths(delivery)), {})


def _location(traceback: str) -> str:
    """Return file, line and function of the last frame; empty without one."""
    frames = _FRAME.findall(traceback)
    if not frames:
        return ""
    path, line, function = frames[-1]
    return f"{'/'.join(path.replace(chr(92), '/').split('/')[-2:])}:{line} in {function}"


def _text(value: Any, limit: int = MAX_MESSAGE) -> str:
    """Return a header as text of at most `limit` characters: the end of a traceback, the beginning of anything else."""
    if value is None:
        return ""
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return text[-limit:] if limit == MAX_TRACEBACK else text[:limit]


def epoch_seconds(value: Any) -> float | None:
    """Return a header's time in seconds since the epoch. A datetime without a zone, as RabbitMQ writes, is UTC."""
    if isinstance(value, datetime):
        value = value.replace(tzinfo=value.tzinfo or UTC).timestamp()
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value) if 0 <= value < _TOO_LATE else None
