"""Searches of one process take turns."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.search.turns import Turns

pytestmark = pytest.mark.unit

THREADS, TURNS_OF_EACH = 8, 200
#: Longer than any test may take.
ENDLESS = 300.0


def test_one_block_runs_at_a_time() -> None:
    turns, running = Turns(), threading.Semaphore(1)

    def search(_: int) -> bool:
        with turns.take(ENDLESS):
            was_alone = running.acquire(blocking=False)
            threading.Event().wait(0.000_1)  # Other threads run, as while SQLite reads a row.
            if was_alone:
                running.release()
            return was_alone

    with ThreadPoolExecutor(THREADS) as threads:
        assert all(threads.map(search, range(THREADS * TURNS_OF_EACH)))


def test_a_block_runs_beside_a_slow_one_and_leaves_the_turn_to_it() -> None:
    turns, beside = Turns(), threading.Event()

    def search() -> None:
        with turns.take(0.001):
            beside.set()

    with ThreadPoolExecutor(1) as threads, turns.take(ENDLESS):
        threads.submit(search).result()
        assert beside.is_set()
    with turns.take(ENDLESS):
        pass


def test_impatient_blocks_lose_no_turn() -> None:
    turns = Turns()

    def search(number: int) -> int:
        with turns.take(0.000_01 * (number % 3)):
            return sum(range(1_000))

    with ThreadPoolExecutor(THREADS) as threads:
        assert len(list(threads.map(search, range(THREADS * TURNS_OF_EACH)))) == THREADS * TURNS_OF_EACH
    with turns.take(ENDLESS):  # A turn that is lost comes to none.
        pass


def test_a_block_that_fails_passes_its_turn_on() -> None:
    turns = Turns()
    with pytest.raises(ValueError, match="no such page"), turns.take(ENDLESS):
        raise ValueError("no such page")
    with turns.take(ENDLESS):
        pass
