"""The frontier, the host rate limiter, the single flight and leases in a real Redis."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from redis import Redis

from app.broker.errors import InvalidMessage, Postpone
from app.crawl.frontier import single_flight
from app.crawl.frontier.frontier import Frontier
from app.crawl.frontier.host_limits import HostRateLimiter
from app.crawl.frontier.single_flight import SingleFlight
from app.crawl.frontier.values import (
    Admitted,
    Completed,
    Completion,
    Crawl,
    Entered,
    FetchedPage,
    FrontierUrl,
    Host,
    MessageKind,
    fingerprint,
)
from app.crawl.parse.classify import FetchResult
from app.crawl.traps import TrapLimits, pattern_of
from app.crawl.urls import Link
from app.errors import ServerError
from app.redis_state.client import get_raw_redis, get_redis
from app.redis_state.lease import lease
from app.storage.layout import Page
from tests.support.completing import complete_one, enter_one
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration


HOST = Host("a.gov", delay=0, concurrency=2)
WIDE = Host("a.gov", delay=0, concurrency=99)


@pytest.fixture
def frontier(redis_url: str) -> Frontier:
    frontier = Frontier(get_redis(redis_url))
    frontier.begin(Crawl("c", "a.gov", "https://a.gov/", datetime.now(UTC), recorded=True))
    return frontier


def link(key: str, depth: int = 1) -> FrontierUrl:
    return FrontierUrl(f"https://a.gov/{key}", key, depth)


def complete(
    frontier: Frontier, kind: MessageKind, key: str, *links: str, dead: bool = False, host: Host = HOST, pages: int = 99
) -> Completed:
    made = [link(each) for each in links]
    return complete_one(frontier, "c", kind, key, host=host, links=made, max_pages=pages, dead=dead, indexed=not dead)


def urls(admitted: Admitted) -> list[str]:
    return [each.url.rpartition("/")[2] for each in admitted.urls]


def enter(frontier: Frontier, key: str, message_id: str = "m", *, host: Host = HOST, crawl_id: str = "c") -> Entered:
    return enter_one(frontier, crawl_id, "a.gov", link(key), host, message_id=message_id)


def unseen(frontier: Frontier, *keys: str, max_pages: int, depth: int = 0) -> list[str]:
    return list(frontier.unseen("c", dict.fromkeys(keys, "url"), depth=depth, max_pages=max_pages, max_depth=1))


@pytest.mark.parametrize("steps", list(itertools.permutations(("published", "index", "crawl"))))
def test_a_published_pair_is_open_until_both_messages_are_completed_in_any_order(
    frontier: Frontier, steps: Sequence[str]
) -> None:
    for step in steps:
        if step == "published":
            frontier.note_published("c", [link("k")])
            assert unseen(frontier, "k", "other", max_pages=9) == ["other"]
        else:
            complete(frontier, "index" if step == "index" else "crawl", "k")
        done = set(steps[: steps.index(step) + 1])
        assert frontier.open_messages("a.gov") == (2 - len(done - {"published"}) if "published" in done else 0)
    assert frontier.page_state("c", "k") == {"page": "seen", "index": "done", "crawl": "done"}


def test_a_completed_page_admits_the_next_ones_up_to_the_window_and_the_others_wait(frontier: Frontier) -> None:
    assert enter(frontier, "start").fetch
    first = complete(frontier, "page", "start", "1", "2", "3", "4")
    assert (urls(first.admitted), first.admitted.wait, first.ended) == (["1", "2"], 0, False)
    progress = frontier.progress("a.gov")
    assert (progress.seen, progress.open, progress.waiting, progress.done) == (5, 2, 2, 1)
    assert enter(frontier, "1").fetch
    assert urls(complete(frontier, "page", "1", "2", "start", "5").admitted) == ["3"]
    assert enter(frontier, "2").fetch
    assert frontier.page_state("c", "5") == {"page": "waiting"}


def test_a_host_with_a_delay_gets_one_page_at_a_time_counted_from_the_end_of_its_response(frontier: Frontier) -> None:
    polite = Host("a.gov", delay=100, concurrency=1)
    assert enter(frontier, "start", host=polite).fetch
    with pytest.raises(Postpone, match="one request in 100 s"):
        enter(frontier, "other", host=polite)
    completed = complete(frontier, "page", "start", "1", "2", host=polite)
    assert urls(completed.admitted) == ["1"]
    assert 95 < completed.admitted.wait <= 100
    with pytest.raises(Postpone) as postponed:
        enter(frontier, "1", host=polite)
    assert 90 < postponed.value.seconds <= 100


def test_active_crawls_share_the_pages_that_may_be_admitted(
    frontier: Frontier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.crawl.frontier.frontier.ADMISSION", 4)
    wide = Host("a.gov", delay=0, concurrency=16)
    for crawl_id in ("c", "d", "e"):
        frontier.begin(Crawl(crawl_id, "a.gov", "https://a.gov/", datetime.now(UTC), recorded=True))
        links = [link(f"{crawl_id}{number}") for number in range(9)]
        enter(frontier, f"start-{crawl_id}", host=wide, crawl_id=crawl_id)
        completed = complete_one(frontier, crawl_id, "page", f"start-{crawl_id}", host=wide, links=links, max_pages=99)
        # All for the first one; the second one is not counted as active before its first completion.
        assert len(completed.admitted.urls) == {"c": 4, "d": 4, "e": 2}[crawl_id]


def test_a_message_has_one_page_or_a_whole_small_backlog_beside_a_crawl_that_has_just_begun(frontier: Frontier) -> None:
    def admitted(crawl_id: str, *keys: str, links: int = 0, batch: int = 4) -> tuple[int, int]:
        found = [link(f"{crawl_id}{number}") for number in range(links)]
        ends = [Completion(key=key, links=found) for key in keys]
        done = frontier.complete(crawl_id, ends, host=HOST, max_pages=99, batch=batch).admitted
        return len(done.urls), done.batch

    assert admitted("c", "start", links=30) == (8, 4)
    frontier.begin(Crawl("e", "a.gov", "https://a.gov/", datetime.now(UTC), recorded=True))
    frontier.begin(Crawl("d", "b.gov", "https://b.gov/", datetime.now(UTC), recorded=True))
    assert admitted("c", *(f"c{number}" for number in range(8))) == (2, 1)
    assert admitted("e", "start", links=4, batch=16) == (4, 4)
    assert admitted("d", "start", links=30) == (8, 4)


def test_a_page_is_worked_on_by_one_message_and_a_redelivered_one_takes_over(frontier: Frontier) -> None:
    assert enter(frontier, "k").fetch
    with pytest.raises(Postpone, match="another message"):
        enter(frontier, "k", "another message")
    assert enter(frontier, "k").fetch
    complete(frontier, "page", "k")
    assert not enter(frontier, "k").fetch


def test_what_a_page_admitted_is_handed_over_again_until_its_publication_is_noted(frontier: Frontier) -> None:
    enter(frontier, "start")
    completed = complete(frontier, "page", "start", "1", "2", "3")
    again = enter(frontier, "start")
    assert (again.fetch, urls(again.unconfirmed)) == (False, ["1", "2"])
    enter(frontier, "1")
    complete(frontier, "page", "1")
    assert urls(enter(frontier, "start").unconfirmed) == ["2"]
    frontier.note_confirmed("c", completed.name)
    enter(frontier, "2")
    complete(frontier, "page", "2")
    assert enter(frontier, "start").unconfirmed == Admitted()


def test_a_failed_page_leaves_the_window_and_the_next_refill_admits_another(frontier: Frontier) -> None:
    narrow = Host("a.gov", delay=0, concurrency=1)
    enter(frontier, "start", host=narrow)
    complete(frontier, "page", "start", "1", "2", host=narrow)
    enter(frontier, "1", host=narrow)
    assert list(frontier.refill(stalled=60)) == []
    frontier.release("c", "page", "1", narrow.name, failed=True)
    [refill] = frontier.refill(stalled=60)
    assert (refill.crawl_id, refill.domain, urls(refill.admitted)) == ("c", "a.gov", ["2"])
    # It is returned until its publication is noted: a tick may die before that.
    assert [urls(each.admitted) for each in frontier.refill(stalled=60)] == [["2"]]
    frontier.confirm_refill(refill)
    assert list(frontier.refill(stalled=60)) == []
    assert frontier.open_messages("a.gov") == 2


def end_hold(redis: Redis, host: str) -> None:
    """End the pause of a host at once."""
    assert redis.delete(f"perennial:host:{host}:hold")


def test_a_host_on_hold_takes_no_page_and_its_pages_go_back_to_the_backlog_without_a_message(
    frontier: Frontier, redis_url: str
) -> None:
    enter(frontier, "start")
    complete(frontier, "page", "start", "1", "2", "3")
    enter(frontier, "2")
    frontier.release("c", "page", "2", HOST.name, failed=True)
    redis = get_redis(redis_url)
    HostRateLimiter(redis).pause("a.gov", 60)
    assert not enter(frontier, "1").fetch
    progress = frontier.progress("a.gov")
    assert (progress.open, progress.waiting) == (1, 2)
    with pytest.raises(Postpone):  # It has spent a part of its budget, which is in its message.
        enter(frontier, "2")
    assert list(frontier.refill(stalled=60)) == []
    end_hold(redis, "a.gov")
    assert [urls(each.admitted) for each in frontier.refill(stalled=60)] == [["1", "3"]]


def test_a_paused_crawl_keeps_its_backlog_and_a_cancelled_one_forgets_it(frontier: Frontier) -> None:
    enter(frontier, "start")
    complete(frontier, "page", "start", "1", "2", "3", "4")
    enter(frontier, "2")
    frontier.set_state("c", "paused")
    assert not enter(frontier, "1").fetch
    assert urls(complete(frontier, "page", "2").admitted) == []
    assert list(frontier.refill(stalled=60)) == []
    assert frontier.progress("a.gov").waiting == 3
    frontier.set_state("c", "running")
    assert [urls(each.admitted) for each in frontier.refill(stalled=60)] == [["1", "3"]]
    frontier.set_state("c", "cancelled")
    assert not enter(frontier, "1").fetch
    assert frontier.open_messages("a.gov") == 0
    assert frontier.figures("c").is_cut
    [refill] = frontier.refill(stalled=60)
    assert refill.ended


def test_a_dead_page_is_no_longer_open_and_its_replay_completes_it(frontier: Frontier) -> None:
    enter(frontier, "k")
    complete(frontier, "page", "k", dead=True)
    assert frontier.page_state("c", "k") == {"page": "dead"}
    assert (frontier.open_messages("a.gov"), frontier.progress("a.gov").dead) == (0, 1)
    assert enter(frontier, "k").fetch
    complete(frontier, "page", "k")
    assert frontier.page_state("c", "k") == {"page": "done"}
    assert (frontier.progress("a.gov").dead, frontier.progress("a.gov").done) == (0, 1)


def test_a_replayed_or_unknown_page_that_goes_back_to_the_backlog_is_counted_as_any_other(frontier: Frontier) -> None:
    enter(frontier, "dead")
    complete(frontier, "page", "dead", dead=True)
    frontier.set_state("c", "paused")
    for key in ("dead", "unknown", "dead", "unknown"):
        assert not enter(frontier, key).fetch
    progress = frontier.progress("a.gov")
    assert (progress.seen, progress.waiting, progress.dead) == (2, 2, 0)
    frontier.set_state("c", "running")
    assert [urls(each.admitted) for each in frontier.refill(stalled=60)] == [["unknown"]]
    for key in ("unknown", "dead"):
        enter(frontier, key)
        complete(frontier, "page", key)
    progress = frontier.progress("a.gov")
    assert (progress.seen, progress.done, progress.dead) == (2, 2, 0)


def test_an_active_crawl_has_the_id_that_its_client_chose(frontier: Frontier) -> None:
    chosen = Crawl("of a client", "b.gov", "https://b.gov/", datetime.now(UTC), recorded=True)
    frontier.begin(chosen)
    frontier.note_published(chosen.id, [FrontierUrl("https://b.gov/", "https://b.gov/", 0)])
    assert frontier.active() == [chosen]


def test_a_crawl_has_no_more_pages_than_its_limit(frontier: Frontier) -> None:
    enter(frontier, "start")
    complete(frontier, "page", "start", "1", "2", pages=3)
    assert not frontier.figures("c").is_cut
    enter(frontier, "1")
    complete(frontier, "page", "1", "2", "start", pages=3)
    assert not frontier.figures("c").is_cut
    enter(frontier, "2")
    complete(frontier, "page", "2", "1", "3", pages=3)
    assert (frontier.figures("c").is_cut, frontier.progress("a.gov").seen) == (True, 3)
    assert unseen(frontier, "4", "5", max_pages=4) == ["4"]


def test_a_page_that_is_too_deep_behind_one_link_is_crawled_where_another_one_leads_to_it(frontier: Frontier) -> None:
    assert urls(complete(frontier, "page", "deep", "1", pages=0).admitted) == []
    assert urls(complete(frontier, "page", "start", "1").admitted) == ["1"]


def test_open_messages_of_an_older_crawl_count_as_well_and_it_is_not_the_latest_of_its_domain(
    frontier: Frontier,
) -> None:
    frontier.begin(Crawl("older", "a.gov", "https://a.gov/", datetime(2026, 1, 1, tzinfo=UTC), recorded=True))
    frontier.note_published("older", [link("k")])
    assert frontier.open_messages("a.gov") == 2
    assert frontier.latest("a.gov") == frontier.crawl("c")


def test_open_messages_of_a_crawl_without_progress_are_returned_to_be_published_again(frontier: Frontier) -> None:
    enter(frontier, "start")
    complete(frontier, "page", "start", "1", "2")
    frontier.note_published("c", [link("pair")])
    frontier.release("c", "page", "1", HOST.name, failed=True)
    [stalled] = frontier.refill(stalled=-1)
    assert (stalled.ended, stalled.admitted.urls) == (False, ())
    messages, rounds = frontier.begin_republishing("c")
    assert (sorted(each.kind for each in messages), rounds) == (["crawl", "index", "page", "page"], 1)
    assert frontier.begin_republishing("c")[1] == 2
    complete(frontier, "index", "pair")
    assert frontier.begin_republishing("c")[1] == 1


def test_lines_of_the_record_are_removed_once_by_two_processes_that_stored_them(frontier: Frontier) -> None:
    for number in range(5):
        complete_one(frontier, "c", "page", str(number), host=HOST, line=f"line {number}")
    offset, waiting = frontier.next_lines("c")
    assert (offset, waiting) == (0, [f"line {number}" for number in range(5)])
    frontier.note_stored_lines("c", 0, 3, waiting[:3])
    frontier.note_stored_lines("c", 0, 3, waiting[:3])
    assert frontier.next_lines("c") == (3, ["line 3", "line 4"])


def test_a_rebuilt_crawl_goes_on_where_its_record_ends_and_caches_of_lost_pages_are_forgotten(
    frontier: Frontier, redis_url: str
) -> None:
    enter(frontier, "start")
    complete(frontier, "page", "start", "1", "2", "3")
    get_redis(redis_url).flushdb()
    assert not enter(frontier, "1").crawl_found
    frontier.begin(Crawl("c", "a.gov", "https://a.gov/", datetime.now(UTC), recorded=True))
    # The host is free: the first attempt has left no trace.
    assert enter(frontier, "1").fetch
    assert frontier.rebuild("c", [FetchedPage("start", True)], [link("1"), link("2"), link("3")]) == 2
    completed = complete(frontier, "page", "1", "3", "4")
    assert (urls(completed.admitted), frontier.progress("a.gov").waiting) == (["2", "3"], 1)


@pytest.fixture
def trapped(frontier: Frontier, monkeypatch: pytest.MonkeyPatch) -> Frontier:
    """Return the frontier of a crawl with small budgets, whose start page is in work."""
    small = partial(TrapLimits, query_variants=2, pattern_pages=3, identical_texts=2)
    monkeypatch.setattr("app.crawl.frontier.frontier.TrapLimits", small)
    enter(frontier, "start", host=WIDE)
    return frontier


@pytest.mark.parametrize(
    ("links", "reason"),
    [
        (["s?a=1&b=1", "s?a=2&b=1", "s?a=1&b=2"], "query-variants"),
        (["n?p=1", "n?p=2", "n?p=3", "n?p=4"], "pattern-pages"),
    ],
)
def test_a_budget_that_is_spent_stops_the_next_url_and_is_named(
    trapped: Frontier, links: list[str], reason: str
) -> None:
    complete(trapped, "page", "start", *links, "plain", links[0])
    assert trapped.excluded("c").counts == {reason: 1}
    assert trapped.progress("a.gov").waiting + trapped.progress("a.gov").open == len(links)
    assert trapped.figures("c").is_cut


def read(frontier: Frontier, key: str, text: str, *links: str) -> None:
    """Run the message of a page with this text."""
    assert enter(frontier, key, host=WIDE).fetch
    made = [link(each) for each in links]
    complete_one(frontier, "c", "page", key, host=WIDE, text=text, links=made, max_pages=99)


def test_identical_texts_in_a_row_close_a_pattern_and_a_new_text_between_them_does_not(trapped: Frontier) -> None:
    read(trapped, "d/1", "one", "d/2", "d/3", "e/1", "e/2", "e/3")
    read(trapped, "d/2", "one")
    read(trapped, "d/3", "two")
    read(trapped, "d/4", "two")
    assert enter(trapped, "d/5", host=WIDE).fetch
    read(trapped, "d/6", "one", "d/7", "other")
    assert enter(trapped, "d/8", host=WIDE) == Entered(fetch=False, spent="identical-texts")
    assert trapped.excluded("c").counts == {"identical-texts": 1}
    assert not trapped.figures("c").is_cut
    assert enter(trapped, "e/1", host=WIDE).fetch


@pytest.mark.parametrize("step", ["enter", "complete", "rebuild"])
def test_a_page_that_is_left_out_for_identical_texts_closes_its_pattern_and_does_not_cut_the_crawl(
    trapped: Frontier, redis_url: str, step: str
) -> None:
    key = "https://a.gov/d/8"
    complete(trapped, "page", "start", "other")
    for number in range(1, 4):
        read(trapped, f"https://a.gov/d/{number}", "one")
    assert not trapped.figures("c").closed
    match step:
        case "enter":
            assert enter(trapped, key, host=WIDE).spent
        case "complete":
            read(trapped, f"page of {key}", "", key)
        case _:
            trapped.rebuild("c", (), [link(key)])
    assert trapped.figures("c").closed == {pattern_of(key)}
    assert get_redis(redis_url).ttl("perennial:crawl:c:closed") > 0
    assert not trapped.figures("c").is_cut


def test_no_page_is_admitted_before_the_soft_404_check_of_its_crawl_is_completed(frontier: Frontier) -> None:
    enter(frontier, "start", host=WIDE)
    check = FrontierUrl("https://a.gov/check", "soft-404-check", 1, role="soft-404-check")
    links = [check, link("1"), link("2"), link("3")]
    completed = complete_one(frontier, "c", "page", "start", host=WIDE, links=links, max_pages=99)
    assert [each.role for each in completed.admitted.urls] == ["soft-404-check"]
    assert not enter(frontier, "soft-404-check", host=WIDE).soft_404
    frontier.note_soft_404("c", "hash")
    assert len(complete(frontier, "page", "soft-404-check", host=WIDE).admitted.urls) == 3
    assert enter(frontier, "1", host=WIDE).soft_404 == "hash"
    assert frontier.progress("a.gov").seen == 4


def test_each_key_of_a_crawl_expires_whichever_of_its_completions_made_the_key(
    frontier: Frontier, redis_url: str
) -> None:
    redis = get_redis(redis_url)
    frontier.note_published("c", [link("start")])
    complete(frontier, "index", "start")
    complete(frontier, "crawl", "start", *(f"https://a.gov/list?page={number}" for number in range(4)))
    assert redis.exists("perennial:crawl:c:budgets", "perennial:crawl:c:unconfirmed") == 2
    assert [key for key in redis.keys("perennial:crawl:c*") if redis.ttl(key) < 0] == []


def test_no_key_of_an_active_crawl_expires_however_long_it_takes_or_is_paused(
    frontier: Frontier, redis_url: str
) -> None:
    redis = get_redis(redis_url)
    excluded = [("nofollow", link("1")), ("blocked", link("2"))]
    complete_one(frontier, "c", "page", "start", host=HOST, links=[link("3")], excluded=excluded, max_pages=9)
    frontier.set_state("c", "paused")
    keys = redis.keys("perennial:crawl:c*") + redis.keys("perennial:domain:a.gov:*")
    for key in keys:
        redis.expire(key, 5)
    assert list(frontier.refill(stalled=60)) == []
    assert [key for key in keys if redis.ttl(key) <= 5] == []


def test_a_crawl_that_has_ended_leaves_no_key_that_stays_for_ever(frontier: Frontier, redis_url: str) -> None:
    redis = get_redis(redis_url)
    enter(frontier, "start")
    frontier.set_state("c", "cancelled")
    assert not enter(frontier, "start").fetch  # Redelivered: its process was killed.
    assert frontier.close("c")
    frontier.add_line("c", "the line of a page that was indexed later")
    frontier.set_state("forgotten by Redis", "cancelled")
    assert frontier.figures("forgotten by Redis").is_cut
    assert [key for key in redis.keys("*") if redis.ttl(key) < 0] == []


@pytest.mark.parametrize("moment", ["while a page is in work", "before its start page is noted", "with a late backlog"])
def test_a_cancelled_crawl_ends(frontier: Frontier, redis_url: str, moment: str) -> None:
    match moment:
        case "while a page is in work":
            enter(frontier, "start")
            frontier.set_state("c", "cancelled")
            assert frontier.rebuild("c", (), [link("of a sitemap")]) == 0
            assert complete(frontier, "page", "start", "1", "2").ended
            assert frontier.open_messages("a.gov") == 0
        case "before its start page is noted":
            frontier.set_state("c", "cancelled")
            frontier.note_published("c", [link("start")])
        case _:
            enter(frontier, "start")
            complete(frontier, "page", "start", "1", "2", "3")
            get_redis(redis_url).hset("perennial:crawl:c", "state", "cancelled")
            for key in ("1", "2"):
                enter(frontier, key)
    [refill] = frontier.refill(stalled=60)
    assert refill.ended


def test_a_page_of_another_host_leaves_the_window_and_the_delay_of_the_crawl(frontier: Frontier) -> None:
    polite = Host("a.gov", delay=10, concurrency=1)
    enter(frontier, "start", host=polite)
    complete(frontier, "page", "start", *"12345", host=polite)
    complete(frontier, "page", "sitemap", host=Host("cdn.net", delay=0, concurrency=9, own=False))
    assert frontier.progress("a.gov").delay == 10
    assert frontier.progress("a.gov").waiting == 4


def test_a_crawl_that_has_ended_keeps_no_texts(trapped: Frontier, redis_url: str) -> None:
    redis = get_redis(redis_url)
    read(trapped, "d/1", "one")
    assert redis.keys("*:texts")
    assert not trapped.close("c")  # Pages wait.
    trapped.set_state("c", "cancelled")
    assert trapped.close("c")
    assert not redis.keys("*:texts")


def test_the_shorter_url_of_two_pages_with_one_text_is_the_page(trapped: Frontier) -> None:
    for number in range(4):
        read(trapped, f"session/{number}/p/{number}", f"text {number}")
        read(trapped, f"p/{number}", f"text {number}")
    assert enter(trapped, "p/9", host=WIDE).fetch
    assert enter(trapped, "session/9/p/1", host=WIDE).fetch


def test_budgets_are_counted_again_when_a_crawl_is_rebuilt(trapped: Frontier) -> None:
    done = [
        FetchedPage("n?p=1", True),
        FetchedPage("n?p=2", True),
        *(FetchedPage(f"d/{n}", True, "one") for n in (1, 2, 3)),
    ]
    assert trapped.rebuild("c", done, [link("n?p=3"), link("n?p=4"), link("d/4"), link("plain")]) == 2
    assert enter(trapped, "d/5").spent == "identical-texts"


def test_a_redelivered_start_keeps_the_time_at_which_the_crawl_started(frontier: Frontier) -> None:
    first = frontier.crawl("c")
    frontier.begin(Crawl("c", "a.gov", "https://a.gov/", datetime.now(UTC), recorded=True))
    assert frontier.crawl("c") == first


def reserve(limiter: HostRateLimiter, requester: str, delay: float, host: str = "h") -> float:
    """Reserve, and end the request at once if it may be sent."""
    named = Host(host, delay, 1)
    wait = limiter.reserve(named, requester=requester)
    if wait == 0:
        limiter.release(named, requester=requester)
    return wait


def shift_times(redis: Redis, seconds: float, *requesters: str) -> None:
    """Add seconds to all times that Redis holds of host `h` and of these requesters' reservations."""
    for field in ("last", "tail"):
        redis.hincrbyfloat("perennial:host:h", field, seconds)
    for requester in requesters:
        redis.hincrbyfloat("perennial:host:h:slots", requester, seconds)


def test_the_first_request_to_a_host_may_go_and_the_next_ones_get_reservations(redis_url: str) -> None:
    limiter = HostRateLimiter(get_redis(redis_url))
    assert reserve(limiter, "1", 100) == 0
    second, third = reserve(limiter, "2", 100), reserve(limiter, "3", 100)
    assert 90 < second <= 100
    assert 190 < third <= 200
    assert reserve(limiter, "3", 100) <= third
    assert reserve(limiter, "4", 100, "elsewhere") == 0


def test_the_delay_of_a_host_begins_with_the_end_of_a_response(redis_url: str) -> None:
    redis, host = get_redis(redis_url), Host("h", 100, 1)
    limiter = HostRateLimiter(redis)
    assert limiter.reserve(host, requester="1") == 0
    assert 90 < reserve(limiter, "2", 100) <= 100
    shift_times(redis, -60, "2")  # The response takes a minute.
    limiter.release(host, requester="1")
    assert 90 < reserve(limiter, "2", 100) <= 100


def test_a_host_waits_no_hour_because_the_clock_was_set_back_by_one(redis_url: str) -> None:
    redis = get_redis(redis_url)
    limiter = HostRateLimiter(redis)
    assert reserve(limiter, "1", 10) == 0
    assert 0 < reserve(limiter, "2", 10) <= 10
    # What Redis holds after its clock was set back by an hour.
    shift_times(redis, 3_600, "2")
    assert reserve(limiter, "2", 10) == 0
    assert 0 < reserve(limiter, "3", 10) <= 10


def test_requesters_that_missed_their_reservations_get_new_ones_at_different_times(redis_url: str) -> None:
    redis, delay, late = get_redis(redis_url), 10, [str(number) for number in range(10)]
    limiter = HostRateLimiter(redis)
    for requester in ["first", *late]:
        reserve(limiter, requester, delay)
    # An hour later.
    shift_times(redis, -3_600, *late)
    assert reserve(limiter, late[0], delay) == 0
    waits = [reserve(limiter, requester, delay) for requester in late[1:]]
    assert all(later - earlier > delay / 2 for earlier, later in itertools.pairwise(waits))
    assert max(waits) > 8 * delay


def test_a_retry_after_pauses_a_host_without_using_up_reservations(redis_url: str) -> None:
    redis = get_redis(redis_url)
    limiter = HostRateLimiter(redis)
    limiter.pause("h", 0.0004)  # Redis knows no time below a millisecond.
    for seconds in (30, 60, 5):  # The longest one counts.
        limiter.pause("h", seconds)
    assert 55 < reserve(limiter, "1", 0) <= 60
    end_hold(redis, "h")
    assert reserve(limiter, "1", 0) == 0
    limiter.pause("short", 0.3)
    eventually(lambda: reserve(limiter, "1", 0, "short") == 0, "the pause is over")


@pytest.fixture
def flight(redis_url: str) -> SingleFlight:
    return SingleFlight(get_raw_redis(redis_url), seconds=5)


@pytest.mark.parametrize(
    "result",
    [
        FetchResult(
            "indexed",
            page=Page(canonical_key="k", url="u", domain="d", path="/", headings=("a", "é"), body="text"),
            links=(Link("x", "x", "X"), Link("y?b&a", "y?a&b")),
        ),
        FetchResult("gone", "404", status=404, etag='"1"', last_modified="Sat, 21 Nov 2026 12:00:00 GMT"),
        FetchResult("redirected", "redirect", "https://b.gov/"),
        FetchResult("skipped", "robots", "disallowed"),
    ],
)
def test_the_second_message_gets_the_result_that_the_first_one_fetched(
    flight: SingleFlight, result: FetchResult
) -> None:
    assert flight.fetch("c", "index", "k", lambda: result) == result
    shared = flight.fetch("c", "index", "k", lambda: pytest.fail("fetched twice"))
    assert shared == result
    assert (shared.status, shared.etag, shared.last_modified) == (result.status, result.etag, result.last_modified)


def test_a_result_that_another_worker_shares_just_before_it_releases_the_lease_is_used(
    flight: SingleFlight, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = FetchResult("gone", "404")

    def shared_first(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(single_flight, "lease", lease)
        assert flight.fetch("c", "index", "k", lambda: gone) == gone
        return lease(*args, **options)

    monkeypatch.setattr(single_flight, "lease", shared_first)
    assert flight.fetch("c", "crawl", "k", lambda: pytest.fail("fetched twice")) == gone


def test_a_slow_fetch_renews_its_lease_and_that_of_a_dead_worker_expires(redis_url: str) -> None:
    redis = get_raw_redis(redis_url)
    alive, key = SingleFlight(redis, seconds=6), "perennial:lease:crawl:c:result:" + fingerprint("k")
    began, release = threading.Event(), threading.Event()

    def slow() -> FetchResult:
        began.set()
        release.wait(20)
        return FetchResult("gone", "404")

    thread = threading.Thread(target=alive.fetch, args=("c", "index", "k", slow))
    thread.start()
    assert began.wait(20)
    for _ in range(2):
        eventually(lambda: 0 < redis.pttl(key) < 5_400, "a part of the lease is over")
        eventually(lambda: redis.pttl(key) > 5_400, "the lease is renewed")
    with pytest.raises(Postpone):
        SingleFlight(redis).fetch("c", "crawl", "k", lambda: pytest.fail("fetched twice"))
    release.set()
    thread.join()

    redis.set("perennial:lease:crawl:c:result:" + fingerprint("other"), "a worker that died", px=500)

    def fetched() -> bool:
        try:
            return SingleFlight(redis).fetch("c", "index", "other", lambda: FetchResult("gone", "410")) == FetchResult(
                "gone", "410"
            )
        except Postpone:
            return False

    assert eventually(fetched, "the page is free")


def test_a_message_that_names_a_crawl_of_another_domain_is_refused(frontier: Frontier, flight: SingleFlight) -> None:
    crawl = Crawl("theirs", "a.gov", "https://a.gov/", datetime.now(UTC))
    frontier.begin(crawl)
    assert frontier.crawl_of("a.gov", "theirs") == crawl
    assert frontier.crawl_of("b.gov", "unknown") is None
    with pytest.raises(InvalidMessage, match=r"a crawl of a\.gov, not of b\.gov"):
        frontier.crawl_of("b.gov", "theirs")
    with pytest.raises(InvalidMessage, match=r"a crawl of a\.gov, not of b\.gov"):
        flight.fetch("theirs", "index", "k", lambda: pytest.fail("fetched"), domain="b.gov")
    gone = FetchResult("gone", "404")
    assert flight.fetch("theirs", "index", "k", lambda: gone, domain="a.gov") == gone
    assert flight.fetch("unknown", "index", "k", lambda: gone, domain="b.gov") == gone


def test_a_failed_fetch_is_not_shared(flight: SingleFlight) -> None:
    def fail() -> FetchResult:
        raise ServerError("500")

    with pytest.raises(ServerError):
        flight.fetch("c", "index", "k", fail)
    assert flight.fetch("c", "index", "k", lambda: FetchResult("gone", "404")) == FetchResult("gone", "404")


@pytest.mark.parametrize("order", list(itertools.permutations(("index", "crawl"))))
@pytest.mark.parametrize("dead", [False, True])
def test_a_fetch_result_stays_until_both_messages_of_its_page_are_completed(
    frontier: Frontier, flight: SingleFlight, redis_url: str, order: tuple[MessageKind, MessageKind], dead: bool
) -> None:
    redis, (first, second) = get_redis(redis_url), order
    keys = [f"k{number}" for number in range(20)]
    frontier.note_published("c", [link(key) for key in keys])
    results = {key: FetchResult("gone", "404", key) for key in keys}
    for key in keys:
        assert flight.fetch("c", first, key, partial(results.__getitem__, key)) == results[key]
        complete(frontier, first, key)
        # Its acknowledgement was lost, and so was the reply to the completion.
        assert flight.fetch("c", first, key, lambda: pytest.fail("fetched")) is None
        complete(frontier, first, key)
    assert len(list(redis.scan_iter("perennial:crawl:c:result:*"))) == len(keys)
    for key in keys:
        assert flight.fetch("c", second, key, lambda: pytest.fail("fetched twice")) == results[key]
        complete(frontier, second, key, dead=dead)
        complete(frontier, second, key, dead=dead)
    assert list(redis.scan_iter("perennial:crawl:c:result:*")) == []
    assert flight.fetch("c", first, keys[0], lambda: pytest.fail("fetched")) is None


def test_a_worker_that_lost_its_lease_shares_no_result_of_a_page_that_is_completed(
    frontier: Frontier, flight: SingleFlight, redis_url: str
) -> None:
    redis, gone = get_redis(redis_url), FetchResult("gone", "404")
    kinds: tuple[MessageKind, ...] = ("index", "crawl")

    def slow() -> FetchResult:
        redis.delete(f"perennial:lease:crawl:c:result:{fingerprint('k')}")
        for kind in kinds:
            assert flight.fetch("c", kind, "k", lambda: gone) == gone
            complete(frontier, kind, "k")
        return gone

    assert flight.fetch("c", "index", "k", slow) == gone
    assert list(redis.scan_iter("perennial:crawl:c:result:*")) == []


def test_a_lease_has_one_holder_and_is_released_at_the_end(redis_url: str) -> None:
    redis = get_redis(redis_url)
    with lease(redis, "pack:a.gov"), pytest.raises(Postpone, match=r"pack:a\.gov is held"), lease(redis, "pack:a.gov"):
        pytest.fail("held twice")
    with lease(redis, "pack:a.gov"):
        assert redis.exists("perennial:lease:pack:a.gov")
    assert not redis.exists("perennial:lease:pack:a.gov")
