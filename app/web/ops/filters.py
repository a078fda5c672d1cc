"""Filters of the templates of operations: times and numbers for people."""

from __future__ import annotations

from datetime import UTC, datetime

from app.text.humanize import duration
from config.logs import visible


def moment(value: float | str | datetime) -> datetime:
    """Return a time in UTC, given as seconds since the epoch, as ISO 8601 or as itself; raises ValueError."""
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    if isinstance(value, str):
        return datetime.fromisoformat(value).astimezone(UTC)
    return datetime.fromtimestamp(value, UTC)


def iso(value: float | str | datetime) -> str:
    """Return a time as ISO 8601."""
    return moment(value).isoformat(timespec="seconds")


def utc(value: float | str | datetime) -> str:
    """Return a time as `2026-11-25 10:00:00 UTC`."""
    return f"{moment(value):%Y-%m-%d %H:%M:%S} UTC"


def ago(value: float | str | datetime) -> str:
    """Return how long ago a time was, or in how long it will be."""
    seconds = (datetime.now(UTC) - moment(value)).total_seconds()
    return f"{duration(seconds)} ago" if seconds >= 0 else f"in {duration(-seconds)}"


def number(value: float) -> str:
    """Return a number with commas between thousands."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"


def is_time(value: float | str | datetime) -> bool:
    """Return whether a value is a time that can be shown: a stored object may be damaged."""
    try:
        moment(value)
    except (ValueError, OverflowError, OSError):
        return False
    return True


def built(value: str) -> str:
    """Return the time of a pack as `2026-11-25 10:00`, or a text that is no time as it is."""
    return f"{moment(value):%Y-%m-%d %H:%M}" if is_time(value) else value


TEMPLATE_FILTERS = {
    "iso": iso,
    "utc": utc,
    "ago": ago,
    "duration": duration,
    "number": number,
    "visible": visible,
    "built": built,
}
