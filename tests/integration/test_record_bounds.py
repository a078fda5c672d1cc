"""The record of a crawl costs Redis, a worker and the store few bytes, whatever a site's pages contain."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

import pytest

from app.crawl.frontier.values import Crawl
from app.crawl.parse.classify import FetchResult
from app.crawl.record.entries import FIRST_LINKS, UrlEntry
from app.crawl.record.keys import CrawlRef
from app.crawl.record.segments import latest_entries, read_entries
from app.crawl.urls import CrawlUrl, Link
from app.redis_state.client import get_raw_redis
from app.sites.site import Site
from app.sites.stored import add_site
from app.sites.sweep import Sweep
from app.storage.layout import page_id
from tasks.base import Context
from tests.support.completing import complete_page

pytestmark = pytest.mark.integration

DOMAIN = "a.gov"
REF = CrawlRef(DOMAIN, "c")
#: Bytes of the lines of a segment, as in record.lua.
SEGMENT = 4 * 2**20
MENU = tuple(f"https://{DOMAIN}/{'x' * 200}/{number}" for number in range(5_000))


@pytest.fixture
def crawl(process: Context) -> Crawl:
    return begin(process)


def begin(process: Context) -> Crawl:
    start = Crawl("c", DOMAIN, f"https://{DOMAIN}/", datetime.now(UTC), recorded=True)
    process.recorder.begin(start, timer_timeout=30, callback={})
    return start


def complete(process: Context, name: str, links: Iterable[str], *, flush: bool = True) -> None:
    """Complete a noindex page with these links as a worker does."""
    url = f"https://{DOMAIN}/{name}"
    result = FetchResult("gone", "noindex", links=tuple(Link(each, each) for each in links))
    completed = complete_page(process, CrawlUrl(url, DOMAIN, url, "c", 1), result)
    if completed.write and flush:
        process.recorder.write_segment(REF)


def add(process: Context, crawl: Crawl, number: int, size: int) -> None:
    """Add a line of about `size` bytes, as a message outside of the crawl does."""
    url = f"https://{DOMAIN}/{number}"
    links = tuple(f"{url}/{each:0200}" for each in range(size // 250))
    process.recorder.add_to_latest(
        crawl.domain, UrlEntry(url=url, page_id=page_id(url), state="gone", at=1.0, links=links)
    )


def waiting(process: Context) -> int:
    return int(process.redis.memory_usage("perennial:crawl:c:record", samples=0) or 0)


def received(process: Context) -> int:
    """Return the bytes that Redis has sent so far."""
    return int(process.redis.info("stats")["total_net_output_bytes"])


def test_pages_that_are_not_stored_and_have_one_long_menu_cost_no_more_than_its_links(
    process: Context, crawl: Crawl
) -> None:
    most = 0
    for number in range(16):
        complete(process, str(number), MENU)
        most = max(most, waiting(process))
    assert most < 2 * 2**20  # Each line with all links would be 1 MB.
    process.recorder.flush(REF)
    entries = list(latest_entries(process.store, REF).values())
    assert set(entries[0].links) == set(MENU)
    assert {len(entry.links) for entry in entries[1:]} == {FIRST_LINKS}


def test_lines_are_written_when_many_bytes_wait_and_one_read_takes_no_more_than_a_segment(
    process: Context, crawl: Crawl
) -> None:
    most = largest = 0
    for number in range(40):
        before = received(process)
        add(process, crawl, number, 600_000)
        largest = max(largest, received(process) - before)
        most = max(most, waiting(process))
    assert most < SEGMENT + 2**20
    assert largest < SEGMENT + 2**20
    process.recorder.flush(REF)
    assert waiting(process) == 0
    assert process.redis.hget("perennial:crawl:c", "record_bytes") is None
    assert sum(1 for _ in read_entries(process.store, REF)) == 40


def test_while_one_process_writes_a_segment_no_other_does_and_a_dead_one_holds_none_back_for_long(
    process: Context, crawl: Crawl
) -> None:
    lines = ["x" * 2**20] * 6
    due = [process.frontier.add_line("c", line) for line in lines]
    assert due == [False, False, False, True, False, False]
    assert 0 < process.redis.ttl("perennial:crawl:c:writer") <= 30 < process.redis.ttl("perennial:crawl:c:record")
    process.redis.delete("perennial:crawl:c:writer")  # It expires.
    assert process.frontier.add_line("c", "x")
    offset, taken = process.frontier.next_lines("c")
    assert (offset, len(taken)) == (0, 4)
    process.frontier.note_stored_lines("c", 0, 4, taken)
    assert int(process.redis.hget("perennial:crawl:c", "record_bytes") or 0) == 2 * 2**20 + 1


def test_lines_that_a_redis_without_its_last_writes_gets_instead_are_stored_as_well(
    process: Context, crawl: Crawl
) -> None:
    raw = get_raw_redis(process.settings.redis)
    complete(process, "a", [])
    snapshot = {key: raw.dump(key) for key in raw.scan_iter("perennial:crawl:*")}
    complete(process, "b", [])
    process.recorder.flush(REF)
    raw.flushdb()
    for key, dumped in snapshot.items():
        assert dumped is not None
        raw.restore(key, 0, dumped)
    complete(process, "c", [])
    process.recorder.flush(REF)
    complete(process, "d", [])
    process.recorder.flush(REF)
    found = [entry.url[-1] for entry in latest_entries(process.store, REF).values()]
    assert found == ["a", "b", "c", "d"]


def test_a_sweep_of_a_crawl_whose_pages_had_more_links_than_it_may_follow_finds_all_pages_and_that_it_is_cut(
    process: Context,
) -> None:
    limited = 2_000
    add_site(process.store, Site.of(DOMAIN, {"max_pages": limited}))
    begin(process)
    links = [f"https://{DOMAIN}/{number}" for number in range(limited + 1_000)]
    for name in ("first", "second", "third"):
        complete(process, name, links)
    process.recorder.flush(REF)
    backlog = process.frontier.progress(DOMAIN).waiting
    process.redis.flushdb()
    sweeper = Sweep(process.store, process.frontier, process.timers, process.recorder, timeout=60)
    list(sweeper.run(DOMAIN))
    assert backlog - 10 < process.frontier.progress(DOMAIN).waiting <= limited
    assert process.frontier.figures("c").is_cut
