"""The window in which equal jobs become one, on a real Redis."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import SecretStr
from redis import Redis

from app.broker.errors import Postpone
from app.broker.policies.fixed_ttl import RETRIES
from app.coverart.coordination import COALESCED, HOLD, CoalescingWindow, own_marks
from app.coverart.indexer import Indexer
from app.coverart.jobs import Delete, Index, Move
from app.coverart.project import COVER_ART, EVENT_ART, Entity
from config.settings import Settings
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

A = "16ebbc86-670c-4ad3-980b-bfbd1eee4ff4"
B = "76df3287-6cda-33eb-8e9a-044b5e15ffdd"
JOB = Index(A)


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


def test_the_mark_is_held_until_the_run_however_late_it_is(redis: Redis) -> None:
    window = CoalescingWindow(redis, COVER_ART, 0.1)
    decision_on(window, "first")
    window.mark_waiting(JOB, "first")
    # The window is over, and the message may be anywhere between its delay queue and a worker.
    assert not threading.Event().wait(0.2)
    assert decision_on(window, "second") == "drop"
    window.clear(JOB)
    assert decision_on(window, "third") == "wait"


def test_a_mark_whose_message_never_comes_ends_some_minutes_later(redis: Redis, window: CoalescingWindow) -> None:
    decision_on(window, "first")
    assert 0 < redis.pttl(redis.keys("*window*")[0]) <= window.seconds * 1_000
    window.mark_waiting(JOB, "first")
    remaining = redis.pttl(redis.keys("*window*")[0]) / 1_000
    assert window.seconds < remaining <= window.seconds + HOLD


def test_a_reservation_whose_message_was_never_confirmed_ends_with_the_window(redis: Redis) -> None:
    window = CoalescingWindow(redis, COVER_ART, 0.1)
    decision_on(window, "first")
    eventually(lambda: not redis.keys("*window*"), "the reservation is gone")
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
def indexer(redis: Redis, window: CoalescingWindow) -> Indexer:
    """Return an indexer for a database without entities, in which A was merged into B."""
    settings = Settings(musicbrainz_url=SecretStr("postgresql://musicbrainz.invalid/x"))
    indexer = Indexer.of("cover-art-archive", settings, redis)
    merged = {A: B}
    return replace(indexer, window=window, read_entity=lambda _: None, target_gid=lambda gid: merged.get(gid, gid))


@pytest.mark.parametrize(("headers", "decision"), [([], Postpone), ([COALESCED], str), ([RETRIES], str)])
def test_only_a_new_message_waits_for_the_coalescing_window(
    indexer: Indexer, headers: list[str], decision: type
) -> None:
    assert isinstance(indexer.decide(JOB, "first", headers), decision)


def test_without_redis_a_message_is_postponed(indexer: Indexer) -> None:
    away = Redis.from_url("redis://127.0.0.1:1/0", retry=None)
    lost = replace(indexer, window=replace(indexer.window, redis=away))
    with pytest.raises(Postpone, match="Redis: "):
        lost.handle(JOB, "first", headers={})


def reading(entity: Entity) -> Callable[[str], Entity]:
    """Return a function that reads an entity twice, under both locks of a merged one, and then stops the job."""
    reads = iter([entity])

    def read(gid: str) -> Entity:
        if gid == entity.gid:
            raise ZeroDivisionError
        return next(reads, None) or read(entity.gid)

    return read


def deliver(indexer: Indexer, gid: str, message_id: str) -> str:
    """Have a new `index` message decided on, confirm it if it waits, and return the decision."""
    job = Index(gid)
    decision = indexer.decide(job, message_id, headers=[])
    if not isinstance(decision, Postpone):
        return decision
    assert decision.mark == COALESCED
    indexer.window.mark_waiting(job, message_id)
    return "wait"


@pytest.mark.parametrize(("first", "second"), [(A, B), (B, A), (A, A)])
def test_a_merged_gid_shares_the_window_of_its_target(indexer: Indexer, first: str, second: str) -> None:
    assert deliver(indexer, first, "first") == "wait"
    assert deliver(indexer, second, "second") == "drop"
    assert deliver(indexer, second, "third") == "drop"
    with pytest.raises(ZeroDivisionError):
        replace(indexer, read_entity=reading(Entity(B, ()))).run(Index(first), headers=[COALESCED])
    assert deliver(indexer, second, "during the run") == "wait"


@pytest.mark.parametrize("job", [Delete(A), Move(1, A, B, "jpg")])
def test_a_message_that_comes_during_the_run_of_an_equal_job_waits_anew(indexer: Indexer, job: Delete | Move) -> None:
    assert isinstance(indexer.decide(job, "first", headers=[]), Postpone)
    indexer.window.mark_waiting(job, "first")
    assert indexer.decide(job, "second", headers=[]) == "drop"
    # The first request to the archive stops the job.
    archive: Any = SimpleNamespace(copy=lambda *_: 1 / 0, delete=lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        replace(indexer, archive=archive, read_home=lambda _: B).run(job, headers=[COALESCED])
    assert isinstance(indexer.decide(job, "during the run", headers=[]), Postpone)


def test_a_retry_leaves_the_mark_of_a_message_that_waits(indexer: Indexer) -> None:
    assert deliver(indexer, B, "first") == "wait"
    assert indexer.run(Index(B), headers={COALESCED: True, RETRIES: 3}) == "skipped"
    assert deliver(indexer, B, "second") == "drop"


def test_a_job_whose_item_is_locked_keeps_its_mark(indexer: Indexer) -> None:
    assert deliver(indexer, B, "first") == "wait"
    with indexer.locks.hold(B), pytest.raises(Postpone, match="held"):
        indexer.run(Index(B), headers={COALESCED: True})
    assert deliver(indexer, B, "second") == "drop"


def test_a_mark_that_was_deleted_is_set_again_if_the_job_is_postponed(window: CoalescingWindow) -> None:
    def run() -> None:
        with own_marks(window, owned=True) as clear:
            clear(JOB)
            assert not window.is_waiting(JOB)
            raise Postpone(1.0, "the archive is away")

    with pytest.raises(Postpone):
        run()
    assert window.is_waiting(JOB)


@pytest.mark.parametrize("locked", [A, B])
def test_a_move_waits_while_another_job_has_either_item(indexer: Indexer, locked: str) -> None:
    with indexer.locks.hold(locked), pytest.raises(Postpone, match="held"):
        replace(indexer, read_home=lambda _: B).run(Move(1, A, B, "jpg"))
