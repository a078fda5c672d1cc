"""What servers of every kind say in a header of HTTP."""

from __future__ import annotations

import email.utils
import time


def retry_after(value: str, *, cap: float, now: float | None = None) -> float | None:
    """Return the seconds that a Retry-After asks for, at most `cap`; None for none or an unreadable one.

    It holds seconds or an HTTP date (RFC 9110 section 10.2.3); `now` is in seconds since the epoch.
    """
    if value.strip().isdecimal():
        return min(float(value), cap)
    try:
        then = email.utils.parsedate_to_datetime(value).timestamp()
    except (ValueError, OverflowError):
        return None
    return min(max(then - (time.time() if now is None else now), 0.0), cap)
