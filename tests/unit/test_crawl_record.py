"""The record of a crawl: its state under concurrent writers, lines, segments, and the last entry of each page."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from app.crawl.parse.classify import FetchResult
from app.crawl.record import segments
from app.crawl.record.crawls import (
    CrawlRecord,
    CrawlSettings,
    CrawlState,
    add_crawl,
    latest_crawl,
    list_crawls,
    prune,
    read_crawl,
    update_crawl,
)
from app.crawl.record.entries import MAX_LINK_CHARACTERS, MAX_VALIDATOR, STORED_STATES, Former, UrlEntry, UrlState
from app.crawl.record.keys import CrawlRef
from app.crawl.record.reasons import MEANINGS, Reason
from app.crawl.record.segments import (
    LatestEntries,
    append_segment,
    latest_entries,
    next_offset,
    read_entries,
    write_excluded,
)
from app.crawl.reports.crawl_report import mark_duplicates
from app.crawl.url_runs import with_interval
from app.errors import InvalidKey, PreconditionFailed, StoreError
from app.storage.layout import Page, page_id
from app.storage.store import ObjectStore, StoredObject
from tests.support import documents
from tests.support.stores import folder_store

pytestmark = pytest.mark.unit

STARTED = datetime(2026, 11, 22, 16, 5, tzinfo=UTC)
REF = CrawlRef("site.example", "c-1")


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return folder_store(tmp_path)


def crawl(crawl_id: str = "c-1", *, domain: str = "site.example", started: datetime = STARTED) -> CrawlRecord:
    return CrawlRecord(
        id=crawl_id,
        domain=domain,
        start_url=f"https://{domain}/",
        started=started,
        settings=CrawlSettings(scope="exact", max_pages=100, max_depth=5, host_delay=1.0, host_concurrency=1),
        timer_timeout=300.0,
        callback={"type": "pack_full", "domain": domain},
        counts={"indexed": 3},
    )


def entry(url: str, state: UrlState = "indexed", *, at: float = 1.0) -> UrlEntry:
    return UrlEntry(url=url, page_id=page_id(url), state=state, at=at)


def lines(*urls: str) -> list[bytes]:
    return [entry(url).to_line() for url in urls]


class TestCrawls:
    def test_a_crawl_is_added_once_read_as_it_was_written_and_changed(self, store: ObjectStore) -> None:
        assert read_crawl(store, REF) is None
        assert update_crawl(store, REF, lambda record: replace(record, state="paused")) is None
        assert list(store.list("")) == []
        add_crawl(store, crawl())
        assert read_crawl(store, REF) == crawl()
        with pytest.raises(PreconditionFailed):
            add_crawl(store, replace(crawl(), state="paused"))
        changed = update_crawl(store, REF, lambda record: replace(record, state="done"))
        assert changed == latest_crawl(store, "site.example") == replace(crawl(), state="done")

    def test_fields_of_a_later_release_are_ignored_and_another_version_is_refused(self) -> None:
        named = json.loads(crawl().to_json())
        named["settings"]["new"] = named["new"] = 1
        assert CrawlRecord.from_json(json.dumps(named).encode()) == crawl()
        with pytest.raises(StoreError, match="version 2; this release reads up to 1"):
            CrawlRecord.from_json(json.dumps(named | {"version": 2}).encode())

    @pytest.mark.parametrize(
        "change",
        [
            {"state": "asleep"},
            {"started": "2026-11-22T16:05:00"},
            {"settings": {}},
            {"seeds": [1] * 1_000},
            {"version": None},
        ],
    )
    def test_an_invalid_record_is_an_error_of_one_line(self, change: dict[str, object]) -> None:
        with pytest.raises(StoreError, match=r"^not a crawl record: .{,400}\Z"):
            CrawlRecord.from_json(json.dumps(json.loads(crawl().to_json()) | change).encode())

    def test_crawls_are_listed_newest_first_and_invalid_ones_are_left_out(self, store: ObjectStore) -> None:
        for number, domain in enumerate(["a.example", "b.example:8080", "a.example", "aa.example"]):
            started = STARTED + timedelta(seconds=number)
            add_crawl(store, crawl(f"c{number}", domain=domain, started=started))
        store.put("crawls/a.example/c9/crawl.json", b"{}")
        store.put("crawls/a.example/c8/crawl.json", crawl("c0", domain="a.example").to_json())
        assert [each.id for each in list_crawls(store)] == ["c3", "c2", "c1", "c0"]
        assert [each.id for each in list_crawls(store, "a.example")] == ["c2", "c0"]
        latest = latest_crawl(store, "a.example")
        assert latest is not None
        assert latest.id == "c2"
        assert latest_crawl(store, "none.example") is None

    @pytest.mark.parametrize("crawl_id", ["..", ".", "a/b", "", "\ud800", "x" * 101, "ü"])
    def test_an_id_that_is_no_plain_name_is_stored_under_its_hash(self, store: ObjectStore, crawl_id: str) -> None:
        ref = CrawlRef("site.example", crawl_id)
        add_crawl(store, crawl(crawl_id))
        folder, name, file = ref.key.split("/")[1:]
        assert (folder, len(name), file) == ("site.example", 32, "crawl.json")
        stored = read_crawl(store, ref)
        assert stored is not None
        assert stored.id == crawl_id

    @pytest.mark.parametrize("domain", ["", "a/b", ".."])
    def test_a_domain_that_would_leave_its_folder_is_refused(self, store: ObjectStore, domain: str) -> None:
        with pytest.raises(InvalidKey):
            read_crawl(store, CrawlRef(domain, "c"))

    def test_pruning_keeps_the_newest_finished_crawls_and_all_that_go_on(self, store: ObjectStore) -> None:
        states: list[CrawlState] = ["done", "paused", "cancelled", "done", "running", "done"]
        for number, state in enumerate(states):
            record = crawl(f"c{number}", started=STARTED + timedelta(seconds=number))
            add_crawl(store, replace(record, state=state))
            append_segment(store, record.ref, 0, lines(f"https://site.example/{number}"))
            write_excluded(store, record.ref, [entry("https://site.example/excluded", "skipped")])
        assert [ref.crawl_id for ref in prune(store, "site.example", keep=2)] == ["c2", "c0"]
        assert [each.id for each in list_crawls(store)] == ["c5", "c4", "c3", "c1"]
        assert len(list(store.list("crawls/"))) == 12
        assert prune(store, "site.example", keep=2) == []


TEXT = st.text(max_size=30)


class TestEntries:
    @given(
        entry=st.builds(
            UrlEntry,
            url=TEXT,
            page_id=TEXT.filter(bool),
            state=st.sampled_from(["indexed", "unchanged", "gone", "redirected", "skipped", "failed", "lost"]),
            at=st.integers(0, 2**41).map(lambda ms: round(ms / 1000, 3)),
            reason=TEXT,
            detail=TEXT,
            status=st.integers(0, 999),
            depth=st.integers(0, 10_000),
            referrer=TEXT,
            etag=st.text(st.characters(), max_size=9),
            last_modified=TEXT,
            hash=st.text("0123456789abcdef", max_size=16),
            links=st.lists(TEXT, max_size=4).map(tuple),
        )
    )
    def test_any_entry_is_read_as_it_was_written_from_one_ascii_line(self, entry: UrlEntry) -> None:
        line = entry.to_line()
        assert line.isascii()
        assert len(line.splitlines()) == 1
        assert UrlEntry.from_line(line) == entry

    def test_a_page_id_that_follows_from_the_url_and_empty_fields_are_not_stored(self) -> None:
        assert json.loads(entry("https://site.example/").to_line()) == {
            "url": "https://site.example/", "state": "indexed", "at": 1.0,
        }  # fmt: skip

    def test_long_fields_are_bounded_and_a_long_validator_is_left_out(self) -> None:
        links = tuple(f"https://site.example/{number}/{'x' * 1_000}" for number in range(5_000))
        long = replace(entry("https://site.example/"), etag="e" * (MAX_VALIDATOR + 1), reason="r" * 999, links=links)
        bounded = UrlEntry.from_line(replace(long, detail="d" * 999).to_line())
        assert (bounded.etag, len(bounded.reason), len(bounded.detail)) == ("", 200, 500)
        assert bounded.links == links[: len(bounded.links)]
        assert MAX_LINK_CHARACTERS - 1_100 < sum(map(len, bounded.links)) <= MAX_LINK_CHARACTERS
        with pytest.raises(StoreError, match="more than 8000 characters"):
            entry("https://site.example/" + "x" * 8_000).to_line()

    @pytest.mark.parametrize(
        "line",
        [
            b"", b"{", b"[]", b"1", b"\xff", b'{"url":"u","state":"indexed"}', b'{"url":1,"state":"indexed","at":1}',
            b'{"url":"u","state":"new","at":1}', b'{"url":"u","state":[],"at":1}',
            b'{"url":"u","state":"gone","at":"x"}',
            b'{"url":"u","state":"gone","at":1' + b"0" * 400 + b"}",
            b"[" * 100_000,
            b'{"url":"u","state":"gone","at":NaN}', b'{"url":"u","state":"gone","at":1,"links":[1]}',
            b'{"url":"u","state":"gone","at":1,"status":"200"}',
        ],
    )  # fmt: skip
    def test_any_other_line_is_an_error(self, line: bytes) -> None:
        with pytest.raises(StoreError, match="not an entry of a crawl record"):
            UrlEntry.from_line(line)


class TestSegments:
    def test_entries_are_read_in_order_and_the_last_one_of_a_page_counts(self, store: ObjectStore) -> None:
        assert (list(read_entries(store, REF)), next_offset(store, REF)) == ([], 0)
        assert append_segment(store, REF, 0, []) == (0, 0)
        assert append_segment(store, REF, 0, lines("https://site.example/a", "https://site.example/b")) == (2, 2)
        assert append_segment(store, REF, 2, [entry("https://site.example/a", "failed").to_line()]) == (1, 1)
        assert [(each.url[-1], each.state) for each in read_entries(store, REF)] == [
            ("a", "indexed"), ("b", "indexed"), ("a", "failed"),
        ]  # fmt: skip
        latest = latest_entries(store, REF)
        assert {each.url[-1]: each.state for each in latest.values()} == {"a": "failed", "b": "indexed"}
        assert next_offset(store, REF) == 3

    def test_of_a_segment_that_holds_other_lines_only_the_equal_ones_count_as_written(self, store: ObjectStore) -> None:
        first = lines(*(f"https://site.example/{name}" for name in "abc"))
        append_segment(store, REF, 0, first)
        assert append_segment(store, REF, 0, [first[0], *lines("https://site.example/d")]) == (3, 1)

    def test_a_segment_with_a_broken_line_is_named_and_read_up_to_it(
        self, store: ObjectStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        append_segment(store, REF, 0, [*lines("https://site.example/a"), b'{"url":'])
        append_segment(store, REF, 2, lines("https://site.example/b"))
        entries = latest_entries(store, REF)
        assert [each.url[-1] for each in entries.values()] == ["a", "b"]
        assert not entries.is_complete
        assert "crawls/site.example/c-1/urls/000000000000.jsonl.zst: line 2: not an" in caplog.text

    @pytest.mark.parametrize(
        "data",
        [b"", b"text", zstandard.compress(b"x" * (segments.MAX_UNCOMPRESSED + 1)), zstandard.compress(b"x\n")[:-1]],
    )
    def test_a_damaged_enormous_or_deleted_segment_is_missing_and_the_others_are_read(
        self, store: ObjectStore, data: bytes
    ) -> None:
        for offset, name in enumerate("abc"):
            append_segment(store, REF, offset, lines(f"https://site.example/{name}"))
        assert latest_entries(store, REF).is_complete
        store.put(REF.segment_key(1), data)
        for _ in ("damaged", "deleted"):
            entries = latest_entries(store, REF)
            assert ([each.url[-1] for each in entries.values()], entries.is_complete) == (["a", "c"], False)
            store.delete(REF.segment_key(1))

    def test_a_damaged_segment_is_replaced_by_the_lines_that_still_wait(self, store: ObjectStore) -> None:
        store.put(REF.segment_key(0), b"?")
        assert next_offset(store, REF) == 1
        assert append_segment(store, REF, 0, lines("https://site.example/a", "https://site.example/b")) == (2, 2)
        assert next_offset(store, REF) == 2
        assert latest_entries(store, REF).is_complete

    def test_a_damaged_segment_that_another_writer_has_just_replaced_stays(
        self, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.put(REF.segment_key(0), b"?")
        get = store.get

        def get_too_early(key: str) -> StoredObject:
            found = get(key)
            store.put(key, b"of another writer")
            return found

        monkeypatch.setattr(store, "get", get_too_early)
        with pytest.raises(PreconditionFailed):
            append_segment(store, REF, 0, lines("https://site.example/a"))
        assert get(REF.segment_key(0)).data == b"of another writer"


def test_the_reference_has_each_reason_code_with_its_meaning() -> None:
    page = documents.read("docs/reference/store.md")
    assert set(MEANINGS) == set(Reason)
    for code, meaning in MEANINGS.items():
        assert f"| `{code}` | {meaning} |" in page


def test_the_reference_lists_each_field_of_an_entry() -> None:
    section = documents.read("docs/reference/store.md").partition("## Crawl record\n")[2]
    rows = re.findall(r"^\| (`.*?) \|", section.partition("| Reason |")[0], re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == {field.name for field in fields(UrlEntry)}


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
    assert (len(found), found.get("5")) == (len(expected), None)


@given(ENTRIES)
def test_each_copy_of_a_stored_page_names_the_one_with_the_shortest_url(written: list[UrlEntry]) -> None:
    latest = {entry.page_id: entry for entry in written}
    found = LatestEntries(written)
    mark_duplicates(found)
    for key, entry in latest.items():
        same = [each for each in latest.values() if entry.hash == each.hash != "" and each.state in STORED_STATES]
        if entry.state not in STORED_STATES or entry.reason == Reason.CANONICAL or len(same) < 2:
            assert found[key] == entry
        elif found[key] != entry:
            shortest = min((each.url for each in same), key=lambda url: (len(url), url))
            assert found[key] == replace(entry, reason=Reason.DUPLICATE, detail=shortest)
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


PAGE = Page(canonical_key="k", url="https://a.gov/", domain="a.gov", path="/", title="t")
UNCHANGED, CHANGED = FetchResult("unchanged", "not-modified", page=PAGE), FetchResult("indexed", page=PAGE)
FORMER = Former("", "", "h", interval=0, at=1_000)


@pytest.mark.parametrize(
    ("result", "former", "longest", "interval"),
    [
        (UNCHANGED, FORMER, 1_000, 140),
        (UNCHANGED, replace(FORMER, interval=140), 1_000, 196),
        (UNCHANGED, replace(FORMER, interval=900), 1_000, 1_000),
        (CHANGED, replace(FORMER, interval=500), 1_000, 400),
        (CHANGED, FORMER, 1_000, 80),
        (UNCHANGED, replace(FORMER, at=0), 1_000, 0),
        (UNCHANGED, None, 1_000, 0),
        (FetchResult("gone", "404"), FORMER, 1_000, 0),
        (UNCHANGED, FORMER, None, 0),
    ],
)
def test_an_interval_grows_while_a_page_is_unchanged_and_shrinks_when_it_changes(
    result: FetchResult, former: Former | None, longest: float | None, interval: float
) -> None:
    timed = with_interval(result, former, now=1_100, longest=longest)
    assert (timed.interval, timed.due) == pytest.approx((interval, 1_100 + interval if interval else 0))


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


def test_of_a_page_that_is_not_stored_a_crawl_knows_only_the_links() -> None:
    entry = UrlEntry(
        url="https://a.gov/", page_id="p", state="redirected", at=1_300, etag="e", links=("https://a.gov/7",)
    )
    found = Former.of(entry, longest=900, scheduled=True)
    assert Former.from_text(found.to_text()) == found == Former("", "", "", links=entry.links)
    assert Former.from_text("") is None
