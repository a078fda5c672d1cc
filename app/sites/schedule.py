"""Schedules of sites: a cron expression or an interval, with a jitter that is the same for each start of a site."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from celery.schedules import ParseException, crontab

from app.text.humanize import parse_duration

#: Seconds of the shortest and the longest interval.
MIN_INTERVAL = 1
MAX_INTERVAL = 366 * 86_400


@dataclass(frozen=True, slots=True)
class Schedule:
    """When the crawls of one site start. `jitter` is in seconds: the longest time that a start is delayed.

    The first start is delayed, and each start by a cron expression. An interval counts from the last start.
    """

    text: str
    jitter: float = 0.0

    def next_start(self, domain: str, last: datetime) -> datetime:
        """Return the first start after `last`, in UTC. A start is delayed by the same part of the jitter each time."""
        delay = self._delay(domain)
        interval = interval_of(self.text)
        if interval is not None:
            # The first start had the delay, and each later one follows from it.
            return last.astimezone(UTC) + timedelta(seconds=interval)
        start, step, _ = crontab.from_string(self.text).remaining_delta((last - delay).astimezone(UTC), tz="UTC")
        following: datetime = start + step
        return following + delay

    def first_start(self, domain: str, created: datetime) -> datetime:
        """Return the first start of a site that was added at `created`."""
        return created + self._delay(domain)

    def _delay(self, domain: str) -> timedelta:
        """Return a part of the jitter that depends on the domain only."""
        fraction = int.from_bytes(hashlib.blake2b(domain.encode(), digest_size=4).digest()) / 2**32
        return timedelta(seconds=self.jitter * fraction)


def check_schedule(text: str) -> str:
    """Return the text with single spaces; raises ValueError unless it is empty, an interval or a cron expression."""
    text = " ".join(text.split())
    if not text or interval_of(text) is not None:
        return text
    expected = (
        f"{text!r} is neither an interval (such as 30m, 6h or 7d) nor a cron expression of five fields, such as "
        "'0 3 * * *'"
    )
    if len(text.split()) != 5:  # Celery's error would be that of a Python assignment.
        raise ValueError(expected)
    try:
        crontab.from_string(text)
    except (ParseException, ValueError, KeyError) as error:
        raise ValueError(f"{expected}: {error}") from None
    return text


def interval_of(text: str) -> float | None:
    """Return the seconds of an interval such as `30m`, None for any other text.

    Raises ValueError for one that is too short or too long.
    """
    seconds = parse_duration(text)
    if seconds is None:
        return None
    if not MIN_INTERVAL <= seconds <= MAX_INTERVAL:
        raise ValueError(f"{text!r}: an interval is {MIN_INTERVAL} s at least and 366 days at most")
    return seconds
