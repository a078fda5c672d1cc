"""Timers in a real Redis: start, reset, claim, remove. tests/integration/test_tick.py rearms them."""

from __future__ import annotations

import pytest
from redis import Redis

from app.timers.timers import Callback, Timer, Timers, full_pack_callback, incremental_pack_callback
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration


@pytest.fixture
def timers(redis: Redis) -> Timers:
    return Timers(redis)


def due(timers: Timers, *, lease: float = 30) -> list[Timer]:
    return eventually(lambda: timers.claim_due(lease=lease), "a timer is due")


def test_a_reset_restores_the_stored_timeout_and_keeps_the_callback(timers: Timers, redis: Redis) -> None:
    timers.start("a.gov", timeout=100, callback=full_pack_callback("a.gov"))
    redis.zincrby("perennial:timers", -60, "a.gov")
    timers.reset("a.gov", timeout=5, callback=incremental_pack_callback("a.gov"))
    timer = timers.running("a.gov")
    assert timer is not None
    assert timer.callback == full_pack_callback("a.gov")
    assert 95 < timer.remaining <= 100


FULL, LATER, INCREMENTAL = (
    full_pack_callback("a.gov", "old"),
    full_pack_callback("a.gov", "new"),
    incremental_pack_callback("a.gov"),
)


@pytest.mark.parametrize(
    ("first", "second", "winner"), [(FULL, INCREMENTAL, FULL), (INCREMENTAL, FULL, FULL), (FULL, LATER, LATER)]
)
def test_the_stronger_callback_wins_in_any_order_of_arrival_and_of_two_full_packs_that_of_the_later_crawl(
    timers: Timers, first: Callback, second: Callback, winner: Callback
) -> None:
    for callback in (first, second):
        timers.start("a.gov", timeout=50, callback=callback)
    timer = timers.running("a.gov")
    assert timer is not None
    assert timer.callback == winner


def test_a_claimed_timer_is_due_again_only_when_its_lease_has_expired(timers: Timers) -> None:
    timers.start("a.gov", timeout=0.01, callback=full_pack_callback("a.gov"))
    [first] = due(timers, lease=0.3)
    assert timers.claim_due() == []
    [again] = due(timers)
    assert again == first


def test_timers_are_not_late_by_the_time_that_the_clock_was_set_back(timers: Timers, redis: Redis) -> None:
    timers.start("a.gov", timeout=0.5, callback=full_pack_callback("a.gov"))
    assert timers.claim_due() == []
    # What Redis holds after its clock was set back by an hour.
    redis.zincrby("perennial:timers", 3_600, "a.gov")
    redis.hincrbyfloat("perennial:timers:claimed", "at", 3_600)
    [timer] = due(timers)
    assert timer.domain == "a.gov"
