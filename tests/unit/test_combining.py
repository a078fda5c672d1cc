"""Calls of several threads are made together while one waits."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.broker.combining import Combiner
from tests.support.waiting import eventually

pytestmark = pytest.mark.unit


class Service:
    """Doubles numbers. The first group waits until it is released."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.released = threading.Event()

    def double(self, numbers: Sequence[int]) -> list[int | Exception]:
        self.groups.append(list(numbers))
        if len(self.groups) == 1:
            self.released.wait(30)
        if 13 in numbers:
            raise ConnectionError("lost")
        return [ValueError(number) if number < 0 else 2 * number for number in numbers]


def replies(combiner: Combiner[int, int], service: Service, numbers: Sequence[int]) -> list[int | BaseException | None]:
    """Return the replies to a call that waits, and to those that come meanwhile."""
    with ThreadPoolExecutor(len(numbers)) as threads:
        first = threads.submit(combiner, numbers[0])
        eventually(lambda: service.groups, "the first is made")
        others = [threads.submit(combiner, number) for number in numbers[1:]]
        eventually(lambda: len(combiner._gathered) == len(others), "the others wait")
        service.released.set()
        return [each.exception() or each.result() for each in [first, *others]]


def test_calls_that_come_while_one_waits_are_made_together_and_an_error_is_that_of_its_call_alone() -> None:
    service = Service()
    first, second, *others = replies(Combiner(service.double), service, [1, -2, *range(3, 9)])
    assert (first, type(second), others) == (2, ValueError, [2 * number for number in range(3, 9)])
    assert [len(group) for group in service.groups] == [1, 7]


def test_what_the_service_raises_is_the_error_of_all_that_were_made_together() -> None:
    service = Service()
    first, *others = replies(Combiner(service.double), service, [1, 13, 3])
    assert first == 2
    assert [type(each) for each in others] == [ConnectionError, ConnectionError]
    assert Combiner(service.double)(4) == 8


def test_a_call_whose_wait_is_interrupted_is_not_made() -> None:
    class Interrupted:
        def __enter__(self) -> None:
            raise KeyboardInterrupt

        def __exit__(self, *_: object) -> None:
            """Nothing was entered."""

    service = Service()
    service.released.set()
    combiner = Combiner(service.double)
    turn, combiner._turn = combiner._turn, Interrupted()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        combiner(1)
    combiner._turn = turn
    assert combiner(2) == 4
    assert service.groups == [[2]]
