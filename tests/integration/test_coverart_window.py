"""The window in which equal jobs become one, and the outage breaker, on a real Redis."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from pydantic import SecretStr
from redis import Redis

from app.broker.errors import Postpone
from app.broker.policies.fixed_ttl import RETRIES
from app.coverart.coordination import COALESCED, LONGEST_PAUSE, CoalescingWindow, archive_breaker
from app.coverart.indexer import Indexer
from app.coverart.jobs import Delete, Index, Move
from app.coverart.project import COVER_ART, EVENT_ART, Entity
from app.errors import ArchiveRefused, ArchiveUnavailable
from app.state.circuit_breaker import CircuitBreaker
from app.state.client import get_redis
from config.settings import Settings
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

A = "16ebbc86-670c-4ad3-980b-bfbd1eee4ff4"
B = "76df3287-6cda-33eb-8e9a-044b5e15ffdd"
JOB = Index(A)


@pytest.fixture
def redis(redis_url: str) -> Redis:
    return get_redis(redis_url)


@pytest.fixture
def window(redis: Redis) -> CoalescingWindow:
    """Return a coalescing window that ends long after the test."""
    return CoalescingWindow(redis, COVER_ART, 60)


def decision_on(window: CoalescingWindow, message_id: str, job: Any = JOB) -> str:
    """Return the window's decision on a message: `drop`, `wait` for the window, or `soon` for a part of it."""
    decision = window.decide(job, message_id)
    if not isinstance(decision, Postpone):
        return decision
    expected = (window.seconds, True, COALESCED), (window.seconds / 4, False, "")
    return ("wait", "soon")[expected.index((decision.seconds, decision.exactly, decision.mark))]


def test_an_equal_message_is_dropped_only_when_the_first_one_surely_waits(window: CoalescingWindow) -> None:
    assert decision_on(window, "first") == "wait"
    assert decision_on(window, "second") == "soon"
    window.mark_waiting(JOB, "first")
    assert decision_on(window, "second") == "drop"


def test_when_a_job_is_about_to_run_the_next_equal_one_waits_anew(window: CoalescingWindow) -> None:
    decision_on(window, "first")
    window.mark_waiting(JOB, "first")
    window.clear(JOB)
    assert decision_on(window, "second") == "wait"


def test_a_message_that_came_again_before_the_broker_had_it_asks_again(window: CoalescingWindow) -> None:
    assert decision_on(window, "first") == "wait"
    assert decision_on(window, "first") == "wait"
    window.mark_waiting(JOB, "first")
    assert decision_on(window, "first") == "drop"


def test_a_late_mark_of_a_message_that_has_run_drops_no_other(window: CoalescingWindow) -> None:
    decision_on(window, "first")
    window.clear(JOB)
    window.mark_waiting(JOB, "first")
    assert decision_on(window, "second") == "wait"
    window.mark_waiting(JOB, "first")
    assert decision_on(window, "third") == "soon"


def test_the_mark_ends_before_its_message_comes_back_though_it_was_noted_late(redis: Redis) -> None:
    window = CoalescingWindow(redis, COVER_ART, 0.4)
    decision_on(window, "first")
    begun = redis.pttl(redis.keys("*window*")[0])
    threading.Event().wait(0.2)
    window.mark_waiting(JOB, "first")
    assert decision_on(window, "second") == "drop"
    assert 0 < redis.pttl(redis.keys("*window*")[0]) <= begun - 200
    eventually(lambda: not redis.keys("*window*"), "the mark is gone")
    assert decision_on(window, "second") == "wait"


def test_other_jobs_and_other_archives_have_windows_of_their_own(redis: Redis, window: CoalescingWindow) -> None:
    decision_on(window, "first")
    window.mark_waiting(JOB, "first")
    for number, other in enumerate((Index(B), Delete(A), Delete(A, 1), Delete(A, 1, "png"), Move(1, A, B, "jpg"))):
        assert decision_on(window, f"other {number}", other) == "wait"
    assert decision_on(CoalescingWindow(redis, EVENT_ART, 60), "event") == "wait"


def test_of_many_equal_messages_at_once_one_waits(window: CoalescingWindow) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: decision_on(window, str(number)), range(80)))
    assert sorted(answers) == ["soon"] * 79 + ["wait"]


@pytest.fixture
def breaker(redis: Redis) -> CircuitBreaker:
    return archive_breaker(redis, 30)


def test_the_pause_doubles_with_each_failure_up_to_the_longest_and_begins_anew_after_an_answer(
    redis: Redis, breaker: CircuitBreaker
) -> None:
    def pause_after_the_last(retry_after: float | None = None) -> float:
        redis.delete(*redis.keys("*outage:*:until"))
        return breaker.open(retry_after)

    assert breaker.seconds_open() == 0
    assert breaker.open() == 30
    assert 0 < breaker.seconds_open() <= 30
    assert [pause_after_the_last() for _ in range(5)] == [60, 120, 240, 480, LONGEST_PAUSE]
    breaker.reset()
    assert pause_after_the_last() == 30


def test_what_the_archive_asks_for_is_kept_within_reason(redis: Redis, breaker: CircuitBreaker) -> None:
    assert breaker.open(90) == 90
    redis.flushdb()
    assert breaker.open(86_400) == LONGEST_PAUSE
    redis.flushdb()
    assert breaker.open(1) == 30


def test_failures_at_the_same_time_count_once(redis: Redis, breaker: CircuitBreaker) -> None:
    with ThreadPoolExecutor(8) as pool:
        pauses = list(pool.map(lambda _: breaker.open(), range(40)))
    assert max(pauses) == 30
    redis.delete(*redis.keys("*outage:*:until"))
    assert breaker.open() == 60


def test_a_pause_ends_by_itself(redis: Redis) -> None:
    breaker = archive_breaker(redis, 0.1)
    breaker.open()
    assert breaker.seconds_open() > 0
    eventually(lambda: breaker.seconds_open() == 0, "the pause is over")


@pytest.fixture
def indexer(redis: Redis, window: CoalescingWindow, breaker: CircuitBreaker) -> Indexer:
    """Return an indexer whose archive is never called: reading the entity fails or finds no row."""
    settings = Settings(musicbrainz_url=SecretStr("postgresql://musicbrainz.invalid/x"))
    return replace(Indexer.of("cover-art-archive", settings, redis), window=window, breaker=breaker)


def test_only_an_unavailable_archive_opens_the_breaker_and_no_job_runs_while_it_is_open(indexer: Indexer) -> None:
    def failing(error: Exception) -> Indexer:
        def read_entity(gid: str) -> Entity | None:
            raise error

        return replace(indexer, read_entity=read_entity)

    with pytest.raises(ArchiveRefused):
        failing(ArchiveRefused("403: AccessDenied")).run(JOB)
    assert indexer.breaker.seconds_open() == 0
    with pytest.raises(ArchiveUnavailable):
        failing(ArchiveUnavailable("503: SlowDown", 45.0)).run(JOB)
    assert 30 < indexer.breaker.seconds_open() <= 45
    decision = indexer.decide(JOB, "retried", headers=[COALESCED])
    assert isinstance(decision, Postpone)
    assert 30 < decision.seconds <= 45


@pytest.mark.parametrize(("headers", "decision"), [([], Postpone), ([COALESCED], str), ([RETRIES], str)])
def test_only_a_new_message_waits_for_the_coalescing_window(
    indexer: Indexer, headers: list[str], decision: type
) -> None:
    assert isinstance(indexer.decide(JOB, "first", headers), decision)


def test_a_job_runs_without_an_entity_and_resets_the_breaker(redis: Redis, indexer: Indexer) -> None:
    indexer.breaker.open()
    redis.delete(*redis.keys("*outage:*:until"))
    assert replace(indexer, read_entity=lambda _: None).run(JOB) == "skipped"
    assert indexer.breaker.open() == 30


def test_without_redis_a_message_is_postponed(indexer: Indexer) -> None:
    away = Redis.from_url("redis://127.0.0.1:1/0", retry=None)
    lost = replace(indexer, window=replace(indexer.window, redis=away))
    with pytest.raises(Postpone, match="Redis: "):
        lost.handle(JOB, "first", headers=[])
