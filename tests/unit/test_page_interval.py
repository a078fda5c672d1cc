"""How long an unchanged page is not requested again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.crawl.page import with_interval
from app.crawl.read.classify import FetchResult, Gone, Indexed, Unchanged
from app.crawl.record.entries import Former, UrlEntry
from app.storage.layout import Page

pytestmark = pytest.mark.unit

PAGE = Page(canonical_key="k", url="https://a.gov/", domain="a.gov", path="/", title="t")
UNCHANGED, CHANGED = Unchanged(page=PAGE, why="not-modified"), Indexed(page=PAGE)
FORMER = Former("", "", "h", interval=0, at=1_000)


@pytest.mark.parametrize(
    ("result", "former", "interval"),
    [
        (UNCHANGED, FORMER, 140),
        (UNCHANGED, replace(FORMER, interval=140), 196),
        (UNCHANGED, replace(FORMER, interval=900), 1_000),
        (CHANGED, replace(FORMER, interval=500), 400),
        (CHANGED, FORMER, 80),
        (UNCHANGED, replace(FORMER, at=0), 0),
        (UNCHANGED, None, 0),
        (Gone(why="404"), FORMER, 0),
    ],
)
def test_an_interval_grows_while_a_page_is_unchanged_and_shrinks_when_it_changes(
    result: FetchResult, former: Former | None, interval: float
) -> None:
    timed = with_interval(result, former, now=1_100, longest=1_000)
    assert (timed.interval, timed.due) == pytest.approx((interval, 1_100 + interval if interval else 0))


def test_without_a_longest_interval_a_page_is_always_due() -> None:
    assert with_interval(UNCHANGED, FORMER, now=1_100, longest=None).due == 0


@pytest.mark.parametrize(
    ("longest", "scheduled", "former"),
    [
        (None, True, Former("e", "", "h")),
        (900, False, Former("e", "", "h", 500, 1_000, 0)),
        (900, True, Former("e", "", "h", 500, 1_000, 1_500)),
        (60, True, Former("e", "", "h", 500, 1_000, 1_060)),
    ],
)
def test_a_crawl_knows_when_pages_are_due_if_the_schedule_started_it(
    longest: float | None, scheduled: bool, former: Former
) -> None:
    entry = UrlEntry(
        url="https://a.gov/", page_id="p", state="unchanged", at=1_300, etag="e", hash="h", interval=500, due=1_500
    )
    found = Former.of(UrlEntry.from_line(entry.to_line()), longest=longest, scheduled=scheduled)
    assert Former.from_text(found.to_text()) == former
