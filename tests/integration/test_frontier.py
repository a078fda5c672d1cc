"""The frontier, the host rate limiter, the single flight and leases in a real Redis."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from app.broker.errors import InvalidMessage, Postpone
from app.crawl.classify import FetchResult, Gone, Indexed, Redirected, Skipped
from app.crawl.frontier import CUT_AT_LIMIT, Crawl, Frontier, fingerprint
from app.crawl.politeness import HostRateLimiter
from app.crawl.single_flight import SingleFlight
from app.crawl.urls import Link
from app.errors import ServerError
from app.state.client import get_raw_redis, get_redis
from app.state.lease import lease
from app.storage.layout import Page
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration


@pytest.fixture
def frontier(redis_url: str) -> Frontier:
    frontier = Frontier(get_redis(redis_url), ttl=60)
    frontier.begin(Crawl("c", "a.gov", "https://a.gov/", datetime.now(UTC)))
    return frontier


def unseen(frontier: Frontier, *keys: str, max_pages: int, depth: int = 0) -> list[str]:
    return list(frontier.unseen("c", dict.fromkeys(keys, "url"), depth=depth, max_pages=max_pages, max_depth=1))


def test_a_published_page_is_seen_and_its_two_messages_are_open_until_they_are_completed(frontier: Frontier) -> None:
    frontier.note_published("c", ["k"])
    assert unseen(frontier, "k", "other", max_pages=9) == ["other"]
    assert frontier.open_messages("a.gov") == 2
    frontier.complete("c", "a.gov", "index", "k", page_id="p")
    frontier.complete("c", "a.gov", "crawl", "k")
    assert frontier.open_messages("a.gov") == 0
    state = frontier.page_state("c", "k")
    assert (state["index done"], state["index dead"]) == (True, False)
    assert frontier.page_ids("c") == {"p"}


STEPS = st.permutations(["published", "index", "crawl"])


@given(STEPS)
@hypothesis_settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_publication_and_completion_may_be_noted_in_any_order(frontier: Frontier, steps: list[str]) -> None:
    key = "-".join(steps)
    for step in steps:
        if step == "published":
            frontier.note_published("c", [key])
        else:
            frontier.complete("c", "a.gov", "index" if step == "index" else "crawl", key)
    assert frontier.open_messages("a.gov") == 0


def test_a_dead_message_is_no_longer_open_and_a_replay_completes_it(frontier: Frontier) -> None:
    frontier.note_published("c", ["k"])
    frontier.complete("c", "a.gov", "index", "k", page_id="p", dead=True)
    assert frontier.page_state("c", "k")["index dead"]
    assert frontier.open_messages("a.gov") == 1
    frontier.complete("c", "a.gov", "index", "k", page_id="p")
    state = frontier.page_state("c", "k")
    assert (state["index done"], state["index dead"]) == (True, False)


def test_a_crawl_has_no_more_pages_than_its_limit(frontier: Frontier) -> None:
    frontier.note_published("c", ["1", "2"])
    assert unseen(frontier, "3", "4", max_pages=4) == ["3", "4"]
    assert frontier.cuts("c") == set()
    assert unseen(frontier, "3", "4", "5", max_pages=4) == ["3", "4"]
    assert frontier.cuts("c") == {CUT_AT_LIMIT}


def test_a_crawl_is_cut_below_its_deepest_level(frontier: Frontier) -> None:
    frontier.note_published("c", ["1"])
    assert unseen(frontier, "1", max_pages=9, depth=2) == []
    assert frontier.cuts("c") == set()
    assert unseen(frontier, "1", "2", max_pages=9, depth=2) == []
    assert frontier.cuts("c") == {CUT_AT_LIMIT}


def test_open_messages_of_an_older_crawl_of_the_domain_count_as_well(frontier: Frontier) -> None:
    frontier.note_published("c", ["k"])
    frontier.begin(Crawl("c2", "a.gov", "https://a.gov/", datetime.now(UTC)))
    assert frontier.open_messages("a.gov") == 2


def test_a_redelivered_start_keeps_the_time_at_which_the_crawl_started(frontier: Frontier) -> None:
    first = frontier.crawl("c")
    again = frontier.begin(Crawl("c", "a.gov", "https://a.gov/", datetime.now(UTC)))
    assert again == first


def test_the_first_request_to_a_host_may_go_and_the_next_ones_get_reservations(redis_url: str) -> None:
    limiter = HostRateLimiter(get_redis(redis_url))
    assert limiter.reserve("h", requester="1", delay=10) == 0
    second, third = limiter.reserve("h", requester="2", delay=10), limiter.reserve("h", requester="3", delay=10)
    assert 9 < second <= 10
    assert 19 < third <= 20
    assert limiter.reserve("h", requester="3", delay=10) <= third
    assert limiter.reserve("elsewhere", requester="4", delay=10) == 0


def test_a_host_waits_no_hour_because_the_clock_was_set_back_by_one(redis_url: str) -> None:
    redis = get_redis(redis_url)
    limiter = HostRateLimiter(redis)
    assert limiter.reserve("h", requester="1", delay=10) == 0
    assert 0 < limiter.reserve("h", requester="2", delay=10) <= 10
    # What Redis holds after its clock was set back by an hour.
    for field in ("last", "tail"):
        redis.hincrbyfloat("perennial:host:h", field, 3_600)
    redis.hincrbyfloat("perennial:host:h:slots", "2", 3_600)
    assert limiter.reserve("h", requester="2", delay=10) == 0
    assert 0 < limiter.reserve("h", requester="3", delay=10) <= 10


def test_requests_to_a_host_are_never_closer_than_its_delay(redis_url: str) -> None:
    limiter, delay = HostRateLimiter(get_redis(redis_url)), 0.2
    times: list[float] = []

    def go(requester: str) -> None:
        eventually(
            lambda: limiter.reserve("h", requester=requester, delay=delay) == 0, f"{requester} may send its request"
        )
        seconds, micros = get_redis(redis_url).time()
        times.append(seconds + micros / 1e6)

    threads = [threading.Thread(target=go, args=(str(number),)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    times.sort()
    # The tolerance is for the round trip between the limiter and the clock.
    assert all(later - earlier > delay - 0.05 for earlier, later in itertools.pairwise(times))


def test_requesters_that_missed_their_reservations_get_new_ones_at_different_times(redis_url: str) -> None:
    limiter, delay, late = HostRateLimiter(get_redis(redis_url)), 0.1, [str(number) for number in range(10)]
    last = [limiter.reserve("h", requester=requester, delay=delay) for requester in ["first", *late]][-1]
    threading.Event().wait(last + 3 * delay)
    assert limiter.reserve("h", requester=late[0], delay=delay) == 0
    waits = [limiter.reserve("h", requester=requester, delay=delay) for requester in late[1:]]
    # Reservations that had only just passed may be kept and flight; the others are spread out.
    assert sum(later - earlier > delay / 2 for earlier, later in itertools.pairwise(waits)) >= 6
    assert max(waits) > 6 * delay


def test_a_retry_after_pauses_a_host_without_using_up_reservations(redis_url: str) -> None:
    limiter = HostRateLimiter(get_redis(redis_url))
    limiter.pause("h", 0.3)
    assert 0 < limiter.reserve("h", requester="1", delay=0) <= 0.3
    eventually(lambda: limiter.reserve("h", requester="1", delay=0) == 0, "the pause is over")


@pytest.fixture
def flight(redis_url: str) -> SingleFlight:
    return SingleFlight(get_raw_redis(redis_url), ttl=60, lease=5)


@pytest.mark.parametrize(
    "result",
    [
        Indexed(
            page=Page(canonical_key="k", url="u", domain="d", path="/", headings=("a", "é"), body="text"),
            links=(Link("x", "x"), Link("y?b&a", "y?a&b")),
        ),
        Gone(why="404"),
        Redirected(target="https://b.gov/", in_scope=False),
        Skipped(why="robots", detail="disallowed"),
    ],
)
def test_the_second_message_gets_the_result_that_the_first_one_fetched(
    flight: SingleFlight, result: FetchResult
) -> None:
    assert flight.fetch("c", "index", "k", lambda: result) == result
    assert flight.fetch("c", "index", "k", lambda: pytest.fail("fetched twice")) == result


def test_many_messages_at_once_cause_one_fetch(flight: SingleFlight) -> None:
    fetched: list[int] = []

    def fetch() -> FetchResult:
        fetched.append(1)
        return Gone(why="404")

    def run() -> bool:
        with suppress(Postpone):  # A busy machine may postpone some of them; their messages would come again.
            flight.fetch("c", "index", "k", fetch)
            return True
        return False

    with ThreadPoolExecutor(8) as pool:
        runs = [pool.submit(eventually, run, "the page is fetched") for _ in range(8)]
    assert all(each.result() for each in runs)
    assert len(fetched) == 1


def test_the_second_message_is_postponed_during_a_slow_fetch(flight: SingleFlight) -> None:
    began, release = threading.Event(), threading.Event()

    def slow() -> FetchResult:
        began.set()
        release.wait(20)
        return Gone(why="404")

    thread = threading.Thread(target=lambda: flight.fetch("c", "index", "k", slow))
    thread.start()
    assert began.wait(20)

    def postponed() -> bool:
        try:
            flight.fetch("c", "index", "k", slow)
        except Postpone:
            return True
        return False

    assert eventually(postponed, "the second requester is postponed")
    release.set()
    thread.join()


def test_a_slow_fetch_renews_its_lease_and_that_of_a_dead_worker_expires(redis_url: str) -> None:
    redis = get_raw_redis(redis_url)
    alive = SingleFlight(redis, ttl=60, lease=1)
    began, release = threading.Event(), threading.Event()

    def slow() -> FetchResult:
        began.set()
        release.wait(20)
        return Gone(why="404")

    thread = threading.Thread(target=alive.fetch, args=("c", "index", "k", slow))
    thread.start()
    assert began.wait(20)
    start = redis.time()[0]
    eventually(lambda: redis.time()[0] - start >= 3, "three leases have passed")
    with pytest.raises(Postpone):
        SingleFlight(redis, ttl=60).fetch("c", "crawl", "k", lambda: pytest.fail("fetched twice"))
    release.set()
    thread.join()

    redis.set("perennial:crawl:c:visit:" + fingerprint("other") + ":by", "a worker that died", px=500)

    def fetched() -> bool:
        try:
            return SingleFlight(redis, ttl=60).fetch("c", "index", "other", lambda: Gone(why="410")) == Gone(why="410")
        except Postpone:
            return False

    assert eventually(fetched, "the page is free")


def test_a_message_that_names_a_crawl_of_another_domain_is_refused(frontier: Frontier, flight: SingleFlight) -> None:
    crawl = frontier.begin(Crawl("theirs", "a.gov", "https://a.gov/", datetime.now(UTC)))
    assert frontier.crawl_of("a.gov", "theirs") == crawl
    assert frontier.crawl_of("b.gov", "unknown") is None
    with pytest.raises(InvalidMessage, match=r"a crawl of a\.gov, not of b\.gov"):
        frontier.crawl_of("b.gov", "theirs")
    with pytest.raises(InvalidMessage, match=r"a crawl of a\.gov, not of b\.gov"):
        flight.fetch("theirs", "index", "k", lambda: pytest.fail("fetched"), domain="b.gov")
    gone = Gone(why="404")
    assert flight.fetch("theirs", "index", "k", lambda: gone, domain="a.gov") == gone
    assert flight.fetch("unknown", "index", "k", lambda: gone, domain="b.gov") == gone


def test_the_result_of_a_page_is_shown_while_it_is_shared(flight: SingleFlight) -> None:
    assert flight.shared_result("c", "k") is None
    skipped = Skipped(why="too-complex", detail="nested")
    flight.fetch("c", "index", "k", lambda: skipped)
    assert flight.shared_result("c", "k") == skipped


def test_a_failed_fetch_is_not_shared(flight: SingleFlight) -> None:
    def fail() -> FetchResult:
        raise ServerError("500")

    with pytest.raises(ServerError):
        flight.fetch("c", "index", "k", fail)
    assert flight.fetch("c", "index", "k", lambda: Gone(why="404")) == Gone(why="404")


def test_a_lease_has_one_holder_and_is_released_at_the_end(redis_url: str) -> None:
    redis = get_redis(redis_url)
    with lease(redis, "pack:a.gov"), pytest.raises(Postpone, match=r"pack:a\.gov is held"), lease(redis, "pack:a.gov"):
        pytest.fail("held twice")
    with lease(redis, "pack:a.gov"):
        assert redis.exists("perennial:lease:pack:a.gov")
    assert not redis.exists("perennial:lease:pack:a.gov")


def test_a_lease_is_renewed_while_it_is_held(redis_url: str) -> None:
    redis = get_redis(redis_url)
    with lease(redis, "long", seconds=1):
        holder = redis.get("perennial:lease:long")
        began = redis.time()[0]
        eventually(lambda: redis.time()[0] - began >= 3, "three times its seconds have gone by")
        assert holder is not None
        assert redis.get("perennial:lease:long") == holder
