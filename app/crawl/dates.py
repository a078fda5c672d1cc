"""The date of a page: what the page says of itself, else what its server says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from email.utils import parsedate_to_datetime

#: Nothing on the web is older; what claims to be is a clock that was never set.
_EARLIEST = date(1990, 1, 1)
#: A server that says "modified now" made the page for this answer, and says nothing of its content.
_NOW = timedelta(minutes=1)


def date_of(said: Iterable[str], headers: Mapping[str, str], *, now: datetime | None = None) -> str:
    """Return the first plausible date of what a page says, else its `Last-Modified`, as `2026-11-21`; else nothing.

    Texts are ISO 8601 dates, with or without a time, or HTTP dates (RFC 9110 section 5.6.7). A day is taken as it is
    written, in whatever time zone. Dates before 1990 and after `now` (UTC; a day is granted, for time zones) are not
    plausible. Header names are lower case.
    """
    now = now or datetime.now(UTC)
    latest = (now + timedelta(days=1)).date()
    for moment in (*map(_moment, said), _last_modified(headers, now)):
        if moment is not None and _EARLIEST <= moment.date() <= latest:
            return moment.date().isoformat()
    return ""


def _last_modified(headers: Mapping[str, str], now: datetime) -> datetime | None:
    """Return the time of `Last-Modified`, unless it is but that of the answer."""
    modified = _http_date(headers.get("last-modified", ""))
    answered = _http_date(headers.get("date", "")) or now
    return modified if modified is not None and modified < answered - _NOW else None


def _moment(text: str) -> datetime | None:
    text = text.strip()
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return _http_date(text)


def _http_date(text: str) -> datetime | None:
    try:
        found = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
