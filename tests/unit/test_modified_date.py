"""The date of a page: its own, or that of its server."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.crawl.read.classify import modified_date

pytestmark = pytest.mark.unit

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
DATE = "Sat, 21 Nov 2026 12:00:00 GMT"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("2026-11-20", "2026-11-20"),
        ("2026-11-20T23:59:59-05:00", "2026-11-20"),
        ("2026-11-20 10:00", "2026-11-20"),
        ("20261120", "2026-11-20"),
        ("Fri, 20 Nov 2026 10:00:00 GMT", "2026-11-20"),
        ("2026-11-22", "2026-11-22"),
        ("2026-11-23", ""),
        ("1989-12-31", ""),
        ("1990-01-01", "1990-01-01"),
        ("0000-00-00", ""),
        ("yesterday", ""),
        ("2026", ""),
        ("", ""),
    ],
)
def test_a_plausible_date_of_a_page_is_its_date(given: str, expected: str) -> None:
    assert modified_date([given], {}, now=NOW) == expected


def test_the_first_plausible_date_counts() -> None:
    headers = {"last-modified": "Thu, 01 Jan 2015 00:00:00 GMT", "date": DATE}
    assert modified_date(["1970-01-01", "2020-02-02", "2021-01-01"], headers, now=NOW) == "2020-02-02"
    assert modified_date(["1970-01-01"], headers, now=NOW) == "2015-01-01"


@pytest.mark.parametrize(
    ("modified", "answered", "expected"),
    [
        ("Sat, 21 Nov 2026 11:58:59 GMT", DATE, "2026-11-21"),
        ("Sat, 21 Nov 2026 11:59:30 GMT", DATE, ""),
        (DATE, DATE, ""),
        ("Sat, 21 Nov 2026 12:00:30 GMT", DATE, ""),
        ("Thu, 01 Jan 1970 00:00:00 GMT", DATE, ""),
        ("Fri, 20 Nov 2026 12:00:00 GMT", "", "2026-11-20"),
        (DATE, "", ""),
        ("soon", DATE, ""),
        ("Fri, 20 Nov 2026 12:00:00 GMT", "0001-01-01T00:00:00", "2026-11-20"),
    ],
)
def test_last_modified_counts_unless_it_is_the_time_of_the_response(
    modified: str, answered: str, expected: str
) -> None:
    assert modified_date([], {"last-modified": modified, "date": answered}, now=NOW) == expected


@given(st.lists(st.text(max_size=40) | st.dates().map(str) | st.datetimes().map(str)), st.text(), st.text())
@example(["9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+14:00"], "Mon, 32 Foo 99999 99:99:99 +9999", "")
def test_any_dates_give_a_plausible_date_or_none(given: list[str], modified: str, answered: str) -> None:
    found = modified_date(given, {"last-modified": modified, "date": answered}, now=NOW)
    assert found == "" or date(1990, 1, 1) <= date.fromisoformat(found) <= date(2026, 11, 22)
