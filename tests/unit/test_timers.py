"""The decision about a due timer."""

from __future__ import annotations

import pytest

from app.timers.timers import Callback, Firing, Timer, decide_firing, full_pack, incremental_pack

pytestmark = pytest.mark.unit

FULL, WITHOUT_DELETIONS = full_pack("a.gov", "c"), incremental_pack("a.gov").message | {"deletions": False}


def decide(open_messages: int, idle: float, *, own: int = 0, timeout: float = 5, callback: Callback = FULL) -> Firing:
    timer = Timer("a.gov", timeout, callback, "1")
    return decide_firing(timer, open_messages=open_messages, open_in_own_crawl=own, idle=idle, max_wait=60)


def test_a_timer_without_open_messages_fires_its_callback() -> None:
    assert decide(0, 0) == Firing(FULL)


@pytest.mark.parametrize(("idle", "timeout"), [(0, 5), (59, 5), (99, 100)])
def test_open_messages_rearm_the_timer_for_max_wait_or_for_its_longer_timeout(idle: float, timeout: float) -> None:
    assert decide(2, idle, timeout=timeout) == Firing(None)


def test_a_crawl_without_open_messages_of_its_own_is_packed_whole() -> None:
    firing = decide(2, 60)
    assert firing.callback == FULL
    assert "2 open messages are taken for lost: of other crawls" in firing.lost


@pytest.mark.parametrize(("own", "callback"), [(1, FULL), (0, full_pack("a.gov")), (0, incremental_pack("a.gov"))])
def test_a_pack_with_lost_messages_deletes_no_pages(own: int, callback: Callback) -> None:
    firing = decide(2, 60, own=own, callback=callback)
    assert firing.callback == Callback("site.pack", WITHOUT_DELETIONS)
    assert "packed without deletions" in firing.lost
