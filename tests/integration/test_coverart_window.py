"""The window in which equal jobs become one, and the outage breaker, on a real Redis."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from redis import Redis

from app.broker.errors import Postpone
from app.coverart.outage import LONGEST, Outage
from app.coverart.project import COVER_ART, EVENT_ART
from app.coverart.values import Delete, Index, Move
from app.coverart.window import SETTLED, Window
from app.errors import ArchiveRefused, ArchiveUnavailable
from app.state.client import get_redis
from tasks.coverart import minding
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

A = "16ebbc86-670c-4ad3-980b-bfbd1eee4ff4"
B = "76df3287-6cda-33eb-8e9a-044b5e15ffdd"
JOB = Index(A)


@pytest.fixture
def redis(redis_url: str) -> Redis:
    return get_redis(redis_url)


@pytest.fixture
def window(redis: Redis) -> Window:
    """A window that ends long after the test."""
    return Window(redis, COVER_ART, 60)


def asks(window: Window, ident: str, job: Any = JOB) -> str:
    """Return what becomes of a message: it is dropped, waits out the window, or comes again soon."""
    told = (window.seconds, True, SETTLED), (window.seconds / 4, False, "")
    try:
        return "dropped" if window.settle(job, ident) else "runs"
    except Postpone as postpone:
        return ("waits", "soon")[told.index((postpone.seconds, postpone.exactly, postpone.mark))]


def test_an_equal_message_is_dropped_only_when_the_first_one_surely_waits(window: Window) -> None:
    assert asks(window, "first") == "waits"
    assert asks(window, "second") == "soon"
    window.opened(JOB, "first")
    assert asks(window, "second") == "dropped"


def test_when_a_job_is_about_to_run_the_next_equal_one_waits_anew(window: Window) -> None:
    asks(window, "first")
    window.opened(JOB, "first")
    window.close(JOB)
    assert asks(window, "second") == "waits"


def test_a_message_that_came_again_before_the_broker_had_it_asks_again(window: Window) -> None:
    assert asks(window, "first") == "waits"
    assert asks(window, "first") == "waits"
    window.opened(JOB, "first")
    assert asks(window, "first") == "dropped"


def test_a_late_note_tells_of_nothing_that_has_run(window: Window) -> None:
    asks(window, "first")
    window.close(JOB)
    window.opened(JOB, "first")
    assert asks(window, "second") == "waits"
    window.opened(JOB, "first")
    assert asks(window, "third") == "soon"


def test_the_mark_ends_before_its_message_comes_back_though_it_was_noted_late(redis: Redis) -> None:
    window = Window(redis, COVER_ART, 0.4)
    asks(window, "first")
    begun = redis.pttl(redis.keys("*window*")[0])
    threading.Event().wait(0.2)
    window.opened(JOB, "first")
    assert asks(window, "second") == "dropped"
    assert 0 < redis.pttl(redis.keys("*window*")[0]) <= begun - 200
    eventually(lambda: not redis.keys("*window*"), "the mark is gone")
    assert asks(window, "second") == "waits"


def test_other_jobs_and_other_archives_have_windows_of_their_own(redis: Redis, window: Window) -> None:
    asks(window, "first")
    window.opened(JOB, "first")
    for number, other in enumerate((Index(B), Delete(A), Delete(A, 1), Delete(A, 1, "png"), Move(1, A, B, "jpg"))):
        assert asks(window, f"other {number}", other) == "waits"
    assert asks(Window(redis, EVENT_ART, 60), "event") == "waits"


def test_of_many_that_ask_at_once_one_waits(window: Window) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: asks(window, str(number)), range(80)))
    assert sorted(answers) == ["soon"] * 79 + ["waits"]


@pytest.fixture
def outage(redis: Redis) -> Outage:
    return Outage(redis, 30)


def test_the_pause_doubles_with_each_failure_up_to_the_longest_and_begins_anew_after_an_answer(
    redis: Redis, outage: Outage
) -> None:
    def pause_after_the_last(retry_after: float | None = None) -> float:
        redis.delete(*redis.keys("*outage:until"))
        return outage.failed(retry_after)

    assert outage.remaining() == 0
    assert outage.failed() == 30
    assert 0 < outage.remaining() <= 30
    assert [pause_after_the_last() for _ in range(5)] == [60, 120, 240, 480, LONGEST]
    outage.over()
    assert pause_after_the_last() == 30


def test_what_the_archive_asks_for_is_kept_within_reason(redis: Redis, outage: Outage) -> None:
    assert outage.failed(90) == 90
    redis.flushdb()
    assert outage.failed(86_400) == LONGEST
    redis.flushdb()
    assert outage.failed(1) == 30


def test_those_that_fail_at_the_same_time_count_once(redis: Redis, outage: Outage) -> None:
    with ThreadPoolExecutor(8) as pool:
        pauses = list(pool.map(lambda _: outage.failed(), range(40)))
    assert max(pauses) == 30
    redis.delete(*redis.keys("*outage:until"))
    assert outage.failed() == 60


def test_a_pause_ends_by_itself(redis: Redis) -> None:
    outage = Outage(redis, 0.1)
    outage.failed()
    assert outage.remaining() > 0
    eventually(lambda: outage.remaining() == 0, "the pause is over")


def test_only_an_archive_that_does_not_answer_is_let_alone(outage: Outage) -> None:
    with pytest.raises(ArchiveRefused), minding(outage):
        raise ArchiveRefused("403: AccessDenied")
    assert outage.remaining() == 0
    with pytest.raises(ArchiveUnavailable), minding(outage):
        raise ArchiveUnavailable("503: SlowDown", 45.0)
    assert 30 < outage.remaining() <= 45
    ran = False
    with pytest.raises(Postpone) as raised, minding(outage):
        ran = True
    assert not ran
    assert 30 < raised.value.seconds <= 45
