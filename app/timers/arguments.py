"""What a message says of a timer: how long, and what to post when it runs out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from app.broker.errors import InvalidMessage
from app.timers.timers import Callback
from config.routes import PACK, ROUTE_BY_TYPE, callback_queue

#: Seconds. A timer of more than a week is a mistake in units.
MAX_TIMEOUT = 7 * 86_400

#: Names that the reference document uses for the two packs, besides the vocabulary's own.
_SYNONYMS = {
    "full_pack_callback": "pack_full",
    "full_end": "pack_full",
    "pack_inc_callback": "pack_incremental",
    "incremental_end": "pack_incremental",
}


def full_pack(domain: str, crawl_id: str = "") -> Callback:
    """Return the callback that builds a domain's pack anew, from one crawl where it is named."""
    crawl = {"crawl_id": crawl_id} if crawl_id else {}
    return Callback(PACK, {"type": "pack_full", "domain": domain, **crawl})


def incremental_pack(domain: str) -> Callback:
    """Return the callback that brings a domain's pack up to date."""
    return Callback(PACK, {"type": "pack_incremental", "domain": domain})


def timeout_of(message: Mapping[str, Any], *, default: float) -> float:
    """Return the `timeout` of a message in seconds; raises InvalidMessage for what is no positive number."""
    value = message.get("timeout")
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidMessage(f"timeout {value!r}: expected a number of seconds")
    if not 0 < value <= MAX_TIMEOUT:
        raise InvalidMessage(f"timeout {value!r}: expected more than 0 and at most {MAX_TIMEOUT} seconds")
    return float(value)


def callback_of(message: Mapping[str, Any], domain: str) -> Callback | None:
    """Return the callback of a message, or None where it names none; raises InvalidMessage saying what is wrong."""
    told = message.get("callback_msg")
    if told is None:
        return None
    fields = {"type": told} if isinstance(told, str) else told
    if not isinstance(fields, dict):
        raise InvalidMessage(f"callback_msg {told!r}: expected a JSON object or the name of a message type")
    kind = _SYNONYMS.get(str(fields.get("type")), fields.get("type"))
    if not isinstance(kind, str) or kind not in ROUTE_BY_TYPE:
        raise InvalidMessage(f"callback_msg of type {kind!r}: expected one of {', '.join(ROUTE_BY_TYPE)}")
    queue = _queue(message.get("callback_queue"), ROUTE_BY_TYPE[kind].queue)
    return Callback(queue, {"domain": domain, **fields, "type": kind})


def _queue(told: Any, default: str) -> str:
    if told is None:
        return default
    queue = callback_queue(told) if isinstance(told, str) else None
    if queue is None:
        raise InvalidMessage(f"callback_queue {told!r}: there is no such queue")
    return queue
