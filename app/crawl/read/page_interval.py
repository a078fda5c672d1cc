"""How long a page is not requested again: longer each time that it is unchanged, shorter each time that it changed.

Factors as in Apache Nutch's AdaptiveFetchSchedule.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from app.crawl.read.classify import FetchResult, Indexed, Unchanged
from app.crawl.record.former import Former

UNCHANGED_FACTOR: Final = 1.4
CHANGED_FACTOR: Final = 0.8


def with_interval(result: FetchResult, former: Former | None, *, now: float, longest: float | None) -> FetchResult:
    """Return a result with the seconds until its page is due again, at most `longest`; without it, as it is.

    A page without a former request is due in the next crawl, as is one with an interval of 0.
    """
    if longest is None or former is None or not former.at or not isinstance(result, Indexed | Unchanged):
        return result
    factor = UNCHANGED_FACTOR if isinstance(result, Unchanged) else CHANGED_FACTOR
    interval = min(longest, factor * (former.interval or max(0.0, now - former.at)))
    return replace(result, interval=interval, due=now + interval)
