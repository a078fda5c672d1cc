"""The circuit breaker on a real Redis: what opens it, how long it stays open, and which job tries."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from redis import Redis

from app.broker.errors import Postpone
from app.redis_state.circuit_breaker import CircuitBreaker

pytestmark = pytest.mark.integration


@pytest.fixture
def breaker(redis: Redis) -> CircuitBreaker:
    """Return one that opens after three items."""
    return CircuitBreaker(redis, "x", "service", first_pause=30, longest_pause=600, memory=3_600, threshold=3)


def end_pause(redis: Redis) -> None:
    """End the pause at once; the time in which only other items may be the trial goes on."""
    redis.delete("perennial:outage:x:until")


def opened(breaker: CircuitBreaker, retry_after: float | None = None) -> float:
    """Let three items fail; return the seconds that it is open."""
    return max(breaker.fail(item, retry_after=retry_after)[0] for item in ("a", "b", "c"))


def is_admitted(breaker: CircuitBreaker, *items: str) -> bool:
    try:
        with breaker.admit(*items):
            return True
    except Postpone:
        return False


def test_it_opens_when_enough_items_failed_one_after_another(breaker: CircuitBreaker) -> None:
    assert [breaker.fail(item) for item in "ab"] == [(0, False)] * 2
    breaker.succeed()
    assert [breaker.fail(item) for item in "abbbbb"] == [(0, False)] * 6
    assert (breaker.seconds_open(), breaker.reason()) == (0, None)
    assert is_admitted(breaker, "a")
    assert breaker.fail("c", reason="503: busy") == (30, True)
    assert 0 < breaker.seconds_open() <= 30
    assert breaker.reason() == "503: busy"
    assert not is_admitted(breaker, "d")


def test_failures_of_many_workers_at_once_open_it_once(breaker: CircuitBreaker) -> None:
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(breaker.fail, map(str, range(40))))
    assert [opened for _, opened in results].count(True) == 1
    assert sum(seconds > 0 for seconds, _ in results) == 38
    assert max(seconds for seconds, _ in results) == 30


def test_the_pause_doubles_with_each_failed_trial_up_to_the_longest_and_begins_anew_after_an_answer(
    redis: Redis, breaker: CircuitBreaker
) -> None:
    pauses = [opened(breaker)]
    for _ in range(5):
        end_pause(redis)
        pauses.append(breaker.fail("d")[0])
    assert pauses == [30, 60, 120, 240, 480, 600]
    end_pause(redis)
    breaker.succeed()
    assert breaker.fail("d") == (0, False)
    assert opened(breaker) == 30


def test_it_stays_open_for_as_long_as_the_service_asks(redis: Redis, breaker: CircuitBreaker) -> None:
    assert opened(breaker, retry_after=1_800) == 1_800
    assert breaker.fail("d", retry_after=3_000) == (3_000, False)
    assert 1_800 < breaker.seconds_open() <= 3_000
    redis.flushdb()
    assert opened(breaker, retry_after=1) == 30


def test_after_the_pause_one_job_of_all_is_admitted_and_its_success_admits_the_others(
    redis: Redis, breaker: CircuitBreaker
) -> None:
    opened(breaker)
    end_pause(redis)
    assert breaker.seconds_open() == 0
    with breaker.admit("d"):
        assert breaker.seconds_open() > 0
        with ThreadPoolExecutor(8) as pool:
            assert not any(pool.map(lambda item: is_admitted(breaker, str(item)), range(20)))
        breaker.succeed()
        assert is_admitted(breaker, "e")
    assert breaker.seconds_open() == 0


def test_a_trial_that_learned_nothing_makes_room_for_another_one(redis: Redis, breaker: CircuitBreaker) -> None:
    opened(breaker)
    end_pause(redis)
    with pytest.raises(ZeroDivisionError), breaker.admit("d"):
        raise ZeroDivisionError
    with breaker.admit("e"):
        assert not is_admitted(breaker, "f")


def test_items_that_failed_let_others_try_first(redis: Redis, breaker: CircuitBreaker) -> None:
    opened(breaker)
    end_pause(redis)
    assert not is_admitted(breaker, "a")
    assert not is_admitted(breaker, "d", "a")
    assert is_admitted(breaker, "d")
    redis.delete("perennial:outage:x:others")
    assert is_admitted(breaker, "a")


def test_a_success_that_comes_late_does_not_end_a_pause(breaker: CircuitBreaker) -> None:
    opened(breaker)
    breaker.succeed()
    assert breaker.seconds_open() > 0
    assert not is_admitted(breaker, "d")
