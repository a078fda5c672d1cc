"""The window in which equal jobs become one, on a real Redis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import SecretStr
from redis import Redis

from app.broker.errors import Postpone
from app.broker.policies.fixed_ttl import RETRIES
from app.coverart.coordination import MessageOrder
from app.coverart.indexer import Indexer
from app.coverart.jobs import Delete, Index, Job, Move
from app.coverart.project import COVER_ART, EVENT_ART, Entity
from config.settings import Settings

pytestmark = pytest.mark.integration

A = "16ebbc86-670c-4ad3-980b-bfbd1eee4ff4"
B = "76df3287-6cda-33eb-8e9a-044b5e15ffdd"
JOB = Index(A)


@pytest.fixture
def order(redis: Redis) -> MessageOrder:
    """Return a coalescing window of a minute."""
    return MessageOrder(redis=redis, project=COVER_ART, read_item=lambda _: None, window=60, patience=0)


def arrive(order: MessageOrder) -> Mapping[str, Any]:
    """Have a new message wait, and return the headers with which it comes back."""
    with pytest.raises(Postpone, match="the coalescing window is open") as waits:
        order.admit("new", {})
    assert (waits.value.seconds, waits.value.exactly) == (60, True)
    return waits.value.headers


def is_dropped(order: MessageOrder, message_id: str, headers: Mapping[str, Any], *jobs: Job) -> bool:
    """Have a message that is back claim its job, JOB by default; return whether it needs no run."""
    return not order.admit(message_id, headers)(*(jobs or [JOB]))


def test_of_equal_messages_that_arrived_before_a_run_began_that_one_runs_and_a_later_one_runs_again(
    order: MessageOrder,
) -> None:
    first, second, third = (arrive(order) for _ in range(3))
    assert not is_dropped(order, "second", second)
    assert is_dropped(order, "first", first)
    assert is_dropped(order, "third", third)
    assert not is_dropped(order, "later", arrive(order))


def test_a_stopped_job_runs_again_by_its_own_message_until_an_equal_one_ran_later(order: MessageOrder) -> None:
    first, second = arrive(order), arrive(order)
    assert not is_dropped(order, "first", first)
    assert is_dropped(order, "second", second)
    assert not is_dropped(order, "first", first)
    assert not is_dropped(order, "later", arrive(order))
    assert is_dropped(order, "first", first)


def test_a_dropped_message_covers_no_other(order: MessageOrder) -> None:
    first, second = arrive(order), arrive(order)
    # A was merged into B, whose run began by another message meanwhile.
    assert not is_dropped(order, "second", second, Index(B))
    later = arrive(order)
    assert not is_dropped(order, "first", first, Index(A))
    assert is_dropped(order, "first", first, Index(A), Index(B))
    assert not is_dropped(order, "later", later, Index(A))


def test_a_retry_runs_and_covers_no_message(order: MessageOrder) -> None:
    first = arrive(order)
    assert not is_dropped(order, "other", arrive(order))
    assert not is_dropped(order, "first", {**first, RETRIES: 3})
    assert not is_dropped(order, "first", {RETRIES: 3})
    waiting = arrive(order)
    assert not is_dropped(order, "first", {RETRIES: 3})
    assert not is_dropped(order, "waiting", waiting)


def test_after_the_loss_of_redis_each_message_runs(redis: Redis, order: MessageOrder) -> None:
    first, second = arrive(order), arrive(order)
    assert not is_dropped(order, "first", first)
    redis.flushdb()
    assert not is_dropped(order, "second", second)
    assert not is_dropped(order, "later", arrive(order))


def test_the_beginning_of_a_run_is_kept_for_minutes_beyond_the_window(redis: Redis, order: MessageOrder) -> None:
    is_dropped(order, "first", arrive(order))
    [key] = redis.keys("*art:begun*")
    assert 600_000 < redis.pttl(key) <= 660_000


def test_other_jobs_and_other_archives_have_windows_of_their_own(order: MessageOrder) -> None:
    others: list[Job] = [Index(B), Delete(A), Delete(A, 1), Delete(A, 1, "png"), Move(1, A, B, "jpg")]
    arrived = [arrive(order) for _ in others]
    events = replace(order, project=EVENT_ART)
    event = arrive(events)
    assert not is_dropped(order, "first", arrive(order))
    for number, (other, headers) in enumerate(zip(others, arrived, strict=True)):
        assert not is_dropped(order, f"other {number}", headers, other)
    assert not is_dropped(events, "event", event)


def test_of_many_equal_messages_at_once_one_runs(order: MessageOrder) -> None:
    arrived = [arrive(order) for _ in range(80)]
    with ThreadPoolExecutor(8) as pool:
        dropped = list(pool.map(lambda number: is_dropped(order, str(number), arrived[number]), range(80)))
    assert sorted(dropped) == [False] + [True] * 79


@pytest.fixture
def indexer(redis: Redis, order: MessageOrder) -> Indexer:
    """Return an indexer for a database without entities."""
    settings = Settings(musicbrainz_url=SecretStr("postgresql://musicbrainz.invalid/x"))
    return replace(Indexer.of("cover-art-archive", settings, redis), order=order, read_entity=lambda _: None)


def test_without_redis_a_message_is_postponed(indexer: Indexer) -> None:
    away = Redis.from_url("redis://127.0.0.1:1/0", retry=None)
    lost = replace(indexer, order=replace(indexer.order, redis=away))
    with pytest.raises(Postpone, match="Redis: "):
        lost.handle(JOB, "first", headers={})


def reading(entity: Entity) -> Callable[[str], Entity]:
    """Return a function that reads an entity, under both locks of a merged one, and then stops the job."""
    reads = iter([entity])

    def read(gid: str) -> Entity:
        if gid == entity.gid:
            raise ZeroDivisionError
        return next(reads, None) or read(entity.gid)

    return read


def is_read(indexer: Indexer, gid: str, headers: Mapping[str, Any], message_id: str) -> bool:
    """Have a message that is back run, and return whether its job read the database: A was merged into B."""
    try:
        replace(indexer, read_entity=reading(Entity(B, ()))).handle(Index(gid), message_id, headers)
    except ZeroDivisionError:
        return True
    return False


@pytest.mark.parametrize(("first", "second"), [(A, B), (B, A), (A, A)])
def test_a_merged_gid_shares_the_window_of_its_target(indexer: Indexer, first: str, second: str) -> None:
    one, two = arrive(indexer.order), arrive(indexer.order)
    assert is_read(indexer, first, one, "one")
    later = arrive(indexer.order)
    assert not is_read(indexer, second, two, "two")
    assert is_read(indexer, second, later, "later")


@pytest.mark.parametrize("job", [Delete(A), Move(1, A, B, "jpg")])
def test_a_message_that_comes_during_the_run_of_an_equal_job_runs_later(indexer: Indexer, job: Delete | Move) -> None:
    first, equal = arrive(indexer.order), arrive(indexer.order)
    during: list[Mapping[str, Any]] = []

    def stop(*_: object) -> None:
        during.append(arrive(indexer.order))
        raise ZeroDivisionError

    archive: Any = SimpleNamespace(copy=stop, delete=stop)
    stopping = replace(indexer, archive=archive, read_gid_of_image=lambda _: B)
    with pytest.raises(ZeroDivisionError):
        stopping.handle(job, "first", first)
    stopping.handle(job, "equal", equal)
    with pytest.raises(ZeroDivisionError):
        stopping.handle(job, "during", during[0])


def test_a_job_whose_item_is_locked_covers_no_other(indexer: Indexer) -> None:
    first, second = arrive(indexer.order), arrive(indexer.order)
    with indexer.locks.hold(B), pytest.raises(Postpone, match="held"):
        indexer.handle(Index(B), "first", first)
    assert is_read(indexer, B, second, "second")


@pytest.mark.parametrize("locked", [A, B])
def test_a_move_waits_while_another_job_has_either_item(indexer: Indexer, locked: str) -> None:
    with indexer.locks.hold(locked), pytest.raises(Postpone, match="held"):
        replace(indexer, read_gid_of_image=lambda _: B).run(Move(1, A, B, "jpg"))
