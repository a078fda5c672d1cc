"""The last entries of a crawl's pages: as a dictionary has them, in a file."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.crawl.record.entries import STORED_STATES, UrlEntry
from app.crawl.record.latest import LatestEntries
from app.crawl.record.reasons import Reason
from app.crawl.reports.crawl_report import mark_duplicates

pytestmark = pytest.mark.unit

ENTRIES = st.lists(
    st.builds(
        UrlEntry,
        url=st.sampled_from(["/a", "/b", "/cc", "/\udcffé", "/ü"]),
        page_id=st.sampled_from(["1", "2", "3", "4", "\ud800"]),
        state=st.sampled_from(["indexed", "unchanged", "skipped", "failed"]),
        at=st.floats(0, 1e9),
        reason=st.sampled_from(["", "dns", Reason.CANONICAL]),
        hash=st.sampled_from(["", "x", "y"]),
        links=st.sampled_from([(), ("/a", "/b")]),
    ),
    max_size=12,
)


@given(ENTRIES)
def test_they_are_those_of_a_dictionary(written: list[UrlEntry]) -> None:
    expected = {entry.page_id: entry for entry in written}
    found = LatestEntries(written)
    assert list(found.items()) == list(expected.items())
    assert list(found.values()) == list(expected.values())
    assert list(found) == list(expected)
    assert len(found) == len(expected)
    assert {key: found.get(key) for key in ("1", "\ud800", "5")} == {
        key: expected.get(key) for key in ("1", "\ud800", "5")
    }
    assert ("2" in found) == ("2" in expected)


@given(ENTRIES)
def test_each_copy_of_a_stored_page_names_the_one_with_the_shortest_url(written: list[UrlEntry]) -> None:
    latest = {entry.page_id: entry for entry in written}
    found = LatestEntries(written)
    mark_duplicates(found)
    for page_id, entry in latest.items():
        same = [each for each in latest.values() if entry.hash == each.hash != "" and each.state in STORED_STATES]
        if entry.state not in STORED_STATES or entry.reason == Reason.CANONICAL or len(same) < 2:
            assert found[page_id] == entry
        elif found[page_id] != entry:
            shortest = min((each.url for each in same), key=lambda url: (len(url), url))
            assert found[page_id] == replace(entry, reason=Reason.DUPLICATE, detail=shortest)
    for group in {entry.hash for entry in latest.values() if entry.hash and entry.state in STORED_STATES}:
        same = [each for each in latest.values() if each.hash == group and each.state in STORED_STATES]
        left = [each for each in same if found[each.page_id] == each and each.reason != Reason.CANONICAL]
        assert len(left) <= 1


def test_entries_are_replaced_while_copies_are_read() -> None:
    copies = [
        UrlEntry(url=f"/{number:05}", page_id=str(number), state="indexed", at=1, hash="x") for number in range(3_000)
    ]
    found = LatestEntries(copies)
    mark_duplicates(found)
    assert [entry.detail for entry in found.values()] == ["", *["/00000"] * 2_999]
